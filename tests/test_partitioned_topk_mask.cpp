// SPDX-License-Identifier: Apache-2.0
#include <scape/partitioned_topk_mask.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/reference_topk.hpp"

namespace {

using scape::mask_word;
using words = std::vector<mask_word>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr mask_word canary = 0x5ca9e5ca9e5ca9e5U;

std::vector<std::int64_t> const sizes{0, 1, 2, 63, 64, 65, 127, 1000, 4097, 100003};

std::vector<std::int64_t> ks_of(std::int64_t n) {
  std::vector<std::int64_t> ks;
  for (auto const k : {std::int64_t{0}, std::int64_t{1}, n / 100, n / 10, n / 2, n - 1, n}) {
    if (k >= 0 && k <= n) ks.push_back(k);
  }
  return ks;
}

using pattern = std::function<float(std::int64_t i, std::int64_t n, std::mt19937& random)>;

float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

float real(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

std::map<std::string, pattern> const patterns{
    {"normal", [](auto, auto, auto& r) { return normal(r); }},
    {"any bits", [](auto, auto, auto& r) { return real(r()); }},
    {"equal", [](auto, auto, auto&) { return -1.5F; }},
    {"zero", [](auto i, auto, auto&) { return i % 2 == 0 ? 0.0F : -0.0F; }},
    {"three values", [](auto, auto, auto& r) { return static_cast<float>(r() % 3) - 1; }},
    {"twenty values", [](auto i, auto, auto&) { return static_cast<float>(i % 20); }},
    {"ascending", [](auto i, auto, auto&) { return static_cast<float>(i); }},
    {"descending", [](auto i, auto n, auto&) { return static_cast<float>(n - i); }},
    {"largest last", [](auto i, auto n, auto& r) { return i == n - 1 ? -1e30F : normal(r); }},
    {"narrow", [](auto, auto, auto& r) { return real(0x3f800000U + r() % 252U); }},
    {"denormals", [](auto, auto, auto& r) { return real((r() & 0x7fffffU) >> (r() % 8)); }},
    {"half denormal", [](auto, auto, auto& r) { return r() % 2 ? real(r() >> 9) : normal(r); }},
    {"specials",
     [](auto, auto, auto& r) {
       float const values[] = {nan, -nan, infinity, -infinity, 0.0F, -0.0F, 1.0F, real(1), 3e38F};
       return values[r() % 9];
     }},
    {"mostly NaN",
     [](auto, auto, auto& r) { return r() % 10 ? real(0xffc00000U + r() % 9) : 1.0F; }},
};

std::vector<float> make(pattern const& p, std::int64_t n, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<float> scores;
  for (std::int64_t i = 0; i < n; ++i) scores.push_back(p(i, n, random));
  return scores;
}

//! Reads the scores, and notes when asked for anything else.
struct observed {
  std::span<float const> scores;
  std::atomic<bool>* strayed;
  float operator()(std::int64_t i) const {
    if (i < 0 || i >= std::ssize(scores)) {
      strayed->store(true);
      return 0;
    }
    return scores[static_cast<std::size_t>(i)];
  }
};

//! A selection with its memory; the words after the mask are checked.
class fixture {
 public:
  explicit fixture(scape::layout layout, int threads = 1)
      : layout_(std::move(layout)),
        scratch_(scape::partitioned_topk_mask_bytes(layout_) + 1),
        pool_(threads) {}

  words operator()(std::vector<std::int64_t> const& ks, std::span<float const> scores,
                   scape::topk_options const& options = {}, int shard = 0) {
    auto plan = layout_.plan(1);
    plan.group_k = ks;
    auto const size = static_cast<std::size_t>(layout_.words_per_shard());
    words mask(size + 2, canary);
    std::atomic<bool> strayed = false;
    scape::host_context const ctx{scratch_.bytes().subspan(1), &pool_};
    scape::partitioned_topk_mask(ctx, layout_, plan, shard, observed{scores, &strayed},
                                 std::span(mask).first(size), options);
    CHECK_FALSE(strayed);
    CHECK(mask[size] == canary);
    CHECK(mask[size + 1] == canary);
    mask.resize(size);
    return mask;
  }

 private:
  scape::layout layout_;
  scape::host_buffer scratch_;
  scape::host_pool pool_;
};

void set(words& mask, std::int64_t i) {
  mask[static_cast<std::size_t>(i / 64)] |= mask_word{1} << (i % 64);
}

bool test(std::span<mask_word const> mask, std::int64_t i) {
  return !mask.empty() && (mask[static_cast<std::size_t>(i / 64)] >> (i % 64) & 1) != 0;
}

//! The mask of one shard by sorting each group.
words expected(scape::layout const& layout, std::vector<std::int64_t> const& ks,
               std::span<float const> scores, scape::topk_options const& options = {},
               int shard = 0) {
  words mask(static_cast<std::size_t>(layout.words_per_shard()));
  auto k = ks.begin();
  for (auto const& group : layout.groups(shard)) {
    std::vector<std::int64_t> elements;
    for (auto const& range : group.ranges) {
      for (auto i = range.begin; i < range.end; ++i) elements.push_back(i);
    }
    auto const order = reference::topk_order(
        elements, scores, [&](std::int64_t i) { return test(options.exclude, i); },
        options.nan == scape::nan_policy::first);
    auto const taken = group.policy == scape::span_policy::always ? std::ssize(order) : *k;
    ++k;
    for (std::int64_t r = 0; r < taken; ++r) set(mask, order[static_cast<std::size_t>(r)]);
  }
  return mask;
}

words first_of(std::vector<std::int64_t> const& order, std::int64_t k, std::int64_t n) {
  words mask(static_cast<std::size_t>(scape::mask_words(n)));
  for (std::int64_t r = 0; r < k; ++r) set(mask, order[static_cast<std::size_t>(r)]);
  return mask;
}

words random_exclude(std::int64_t n, std::int64_t one_in, std::uint32_t seed) {
  std::mt19937 random(seed);
  words mask(static_cast<std::size_t>(scape::mask_words(n)));
  for (std::int64_t i = 0; i < n; ++i) {
    if (random() % static_cast<std::uint32_t>(one_in) == 0) set(mask, i);
  }
  return mask;
}

std::vector<std::int64_t> all_of(std::int64_t n) {
  std::vector<std::int64_t> elements(static_cast<std::size_t>(n));
  std::iota(elements.begin(), elements.end(), 0);
  return elements;
}

}  // namespace

TEST_CASE("a single group equals the sorted reference, with and without a hint") {
  for (auto const& entry : patterns) {
    auto const& name = entry.first;
    for (auto const n : sizes) {
      auto const scores = make(entry.second, n);
      bool const has_nan = std::ranges::any_of(scores, [](float s) { return std::isnan(s); });
      fixture select(scape::layout(n, 1));
      for (auto const nan_policy : {scape::nan_policy::first, scape::nan_policy::last}) {
        if (nan_policy == scape::nan_policy::last && !has_nan) continue;
        auto const order = reference::topk_order(
            all_of(n), scores, [](std::int64_t) { return false; },
            nan_policy == scape::nan_policy::first);
        std::vector<scape::topk_hint> hints(n == 0 ? 0 : 1);  // goes on from one k to the next
        for (auto const k : ks_of(n)) {
          CAPTURE(name);
          CAPTURE(n);
          CAPTURE(k);
          auto const want = first_of(order, k, n);
          std::vector<std::int64_t> const ks(n == 0 ? 0 : 1, k);
          CHECK(select(ks, scores, {.nan = nan_policy}) == want);
          for (int repeat = 0; repeat < 3; ++repeat) {
            CHECK(select(ks, scores, {.hints = hints, .nan = nan_policy}) == want);
          }
        }
      }
    }
  }
}

TEST_CASE("the number of threads does not matter") {
  auto const n = sizes.back();
  for (auto const& entry : patterns) {
    auto const& name = entry.first;
    CAPTURE(name);
    auto const scores = make(entry.second, n, 2);
    fixture one(scape::layout(n, 1), 1), two(scape::layout(n, 1), 2), three(scape::layout(n, 1), 3);
    auto const exclude = random_exclude(n, 3, 3);
    for (auto const k : ks_of(n)) {
      for (auto const& options : {scape::topk_options{}, scape::topk_options{.exclude = exclude}}) {
        auto const mask = one({k}, scores, options);
        CHECK(two({k}, scores, options) == mask);
        CHECK(three({k}, scores, options) == mask);
      }
    }
  }
}

TEST_CASE("hints are only hints") {
  std::int64_t const n = 100003, k = n / 10;
  scape::layout const layout(n, 1);
  fixture select(layout, 2);
  auto const narrow = [](std::int64_t, std::int64_t, std::mt19937& r) {
    return 1 + normal(r) / 64;
  };
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    for (auto const& scores : {make(patterns.at("normal"), n, seed),
                               make(patterns.at("three values"), n, seed), make(narrow, n, seed)}) {
      auto const want = expected(layout, {k}, scores);
      std::vector<scape::topk_hint> good(1);
      select({k}, scores, {.hints = good});
      auto const t = good[0].key;
      CHECK(t > 0);
      auto const max = std::numeric_limits<std::int32_t>::max();
      for (auto const hint :
           {good[0], scape::topk_hint{}, scape::topk_hint{t, 0}, scape::topk_hint{t, max},
            scape::topk_hint{t, -5}, scape::topk_hint{t - 1, 0}, scape::topk_hint{t + 1, 0},
            scape::topk_hint{t + 9000, 100}, scape::topk_hint{t - 9000, 100},
            scape::topk_hint{1, 0}, scape::topk_hint{2, 1}, scape::topk_hint{max, max},
            scape::topk_hint{-max, max}, scape::topk_hint{0x7f800003, 1},
            scape::topk_hint{0x7f800003, max}, scape::topk_hint{1, max}}) {
        std::vector<scape::topk_hint> hints{hint};
        CAPTURE(hint.key);
        CAPTURE(hint.width);
        for (int repeat = 0; repeat < 3; ++repeat) {
          CHECK(select({k}, scores, {.hints = hints}) == want);
        }
      }
    }
  }
}

TEST_CASE("a hint follows drifting, vanishing and returning scores") {
  std::int64_t const n = 70001, k = 700;
  scape::layout const layout(n, 1);
  fixture select(layout, 2);
  std::vector<scape::topk_hint> hints(1);
  float const scales[] = {1, 1.01F, 1.02F, 1.5F, 1e-30F, 1e-44F, 0, 0, 1e30F, 1e30F, 1};
  std::uint32_t seed = 0;
  for (auto const scale : scales) {
    auto scores = make(patterns.at("normal"), n, ++seed);
    for (auto& s : scores) s *= scale;
    CHECK(select({k}, scores, {.hints = hints}) == expected(layout, {k}, scores));
    CHECK(select({k * 2}, scores, {.hints = hints}) == expected(layout, {k * 2}, scores));
  }
}

TEST_CASE("more equal values at the threshold than can be collected") {
  std::int64_t const n = std::int64_t{1} << 20;
  scape::layout const layout(n, 1);
  fixture one(layout, 1), three(layout, 3);
  auto const scores = make(patterns.at("twenty values"), n);
  for (auto const k : {n / 20, n / 10, n / 10 + 1, n / 2}) {
    auto const want = expected(layout, {k}, scores);
    CHECK(one({k}, scores) == want);
    CHECK(three({k}, scores) == want);
  }
}

TEST_CASE("excluded elements come last") {
  for (auto const n : sizes) {
    if (n == 0) continue;
    scape::layout const layout(n, 1);
    fixture select(layout, 2);
    auto const all = random_exclude(n, 1, 0);
    for (auto const& name : {"normal", "specials", "three values"}) {
      auto const scores = make(patterns.at(name), n);
      for (auto const& exclude :
           {words(all.size()), all, random_exclude(n, 2, 5), random_exclude(n, 50, 6)}) {
        for (auto const nan_policy : {scape::nan_policy::first, scape::nan_policy::last}) {
          auto const order = reference::topk_order(
              all_of(n), scores, [&](std::int64_t i) { return test(exclude, i); },
              nan_policy == scape::nan_policy::first);
          std::vector<scape::topk_hint> hints(1);
          for (auto const k : ks_of(n)) {
            CAPTURE(n);
            CAPTURE(k);
            CHECK(select({k}, scores, {.exclude = exclude, .hints = hints, .nan = nan_policy}) ==
                  first_of(order, k, n));
          }
        }
      }
    }
  }
}

TEST_CASE("several groups of several ranges, on any border") {
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 60; ++repeat) {
    std::vector<scape::parameter_span> spans;
    std::int64_t n = 0;
    auto const longest = repeat % 10 == 0 ? 60000U : repeat % 2 ? 300U : 20U;
    for (auto count = 1 + random() % 40; count > 0; --count) {
      auto const length = static_cast<std::int64_t>(random() % longest);
      auto const kind = random() % 5;
      spans.push_back({.offset = n, .length = length});
      if (kind == 0) spans.back().policy = scape::span_policy::always;
      if (kind == 1) spans.back().policy = scape::span_policy::frozen;
      if (kind == 2) spans.back().density = 0.3;
      n += length;
    }
    scape::layout_options options;
    options.alignment = 1;
    options.scope = repeat % 3 ? scape::topk_scope::shard : scape::topk_scope::tensor;
    auto const shards = 1 + static_cast<int>(random() % 4);
    scape::layout const layout(n, shards, spans, options);
    fixture select(layout, 1 + repeat % 3);
    auto const plan = layout.plan(0.1);
    for (int p = 0; p < shards; ++p) {
      auto const scores = make(patterns.at(repeat % 2 ? "normal" : "three values"),
                               layout.shard_size(p), static_cast<std::uint32_t>(repeat));
      auto const exclude = random_exclude(layout.words_per_shard() * 64, 4, 1);
      std::vector<scape::topk_hint> hints(layout.groups(p).size());
      std::vector<std::int64_t> const own(
          plan.group_k.begin() + static_cast<std::ptrdiff_t>(layout.first_group(p)),
          plan.group_k.end());
      for (auto const& o : {scape::topk_options{}, scape::topk_options{.hints = hints},
                            scape::topk_options{.exclude = exclude, .hints = hints}}) {
        CAPTURE(repeat);
        auto const mask = select(plan.group_k, scores, o, p);
        CHECK(mask == expected(layout, own, scores, o, p));
        CHECK(scape::detail::count_bits(mask) == plan.counts[static_cast<std::size_t>(p)]);
      }
    }
  }
}

TEST_CASE("a hundred repeats give the same mask") {
  std::int64_t const n = 100003;
  fixture select(scape::layout(n, 1), 3);
  for (auto const& name : {"equal", "three values", "zero"}) {
    auto const scores = make(patterns.at(name), n);
    std::vector<scape::topk_hint> hints(1);
    auto const first = select({n / 7}, scores);
    for (int repeat = 0; repeat < 100; ++repeat) {
      CHECK(select({n / 7}, scores, {.hints = hints}) == first);
    }
  }
}

TEST_CASE("scores at any address") {
  std::int64_t const n = 1000;
  fixture select(scape::layout(n, 1));
  auto const scores = make(patterns.at("normal"), n);
  auto const want = select({99}, scores);
  for (std::size_t offset = 1; offset < 16; ++offset) {
    std::vector<float> moved(scores.size() + offset);
    std::copy(scores.begin(), scores.end(), moved.begin() + static_cast<std::ptrdiff_t>(offset));
    CHECK(select({99}, std::span(moved).subspan(offset)) == want);
  }
}

TEST_CASE("a statistic that prefetches stays within its elements") {
  struct prefetching {
    std::span<float const> scores;
    std::int64_t* last;
    float operator()(std::int64_t i) const { return scores[static_cast<std::size_t>(i)]; }
    void prefetch(std::int64_t i) const {
      scape::prefetch_word(scores.data() + i);
      *last = std::max(*last, i + 63);
    }
  };
  static_assert(scape::detail::topk::prefetching_statistic<prefetching>);
  for (std::int64_t const n : {1000, 1087, 1088, 5000}) {
    scape::layout const layout(n, 1);
    scape::host_buffer const scratch(scape::partitioned_topk_mask_bytes(layout));
    auto const scores = make(patterns.at("normal"), n);
    auto const plan = layout.plan(0.1);
    words mask(static_cast<std::size_t>(layout.words_per_shard()));
    std::int64_t last = 0;
    scape::partitioned_topk_mask(scape::host_context{scratch.bytes()}, layout, plan, 0,
                                 prefetching{scores, &last}, std::span(mask));
    CHECK(last < n);
    CHECK((last > 0) == (n >= 1088));
    CHECK(mask == expected(layout, plan.group_k, scores));
  }
}

#if defined(__SSE2__)
TEST_CASE("flush-to-zero does not matter") {
  std::int64_t const n = 4097;
  fixture select(scape::layout(n, 1));
  auto const scores = make(patterns.at("denormals"), n);
  auto const want = select({n / 10}, scores);
  auto const saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040U);
  auto const flushed = select({n / 10}, scores);
  _mm_setcsr(saved);
  CHECK(flushed == want);
}
#endif

TEST_CASE("k above the number of elements takes them all") {
  std::int64_t const n = 100;
  scape::index_range const range{3, 90};
  scape::host_buffer const scratch(scape::detail::topk::scratch_bytes(n));
  words mask(2), exclude = random_exclude(n, 2, 1);
  auto const one = [](std::int64_t) { return 1.0F; };
  scape::detail::topk::select(scape::host_context{scratch.bytes()},
                              {{&range, 1}, exclude.data(), range.size()}, 1000,
                              {one, scape::detail::topk::largest_key}, {}, mask.data());
  words want(2);
  scape::detail::set_range(want, range);
  CHECK(mask == want);
}

TEST_CASE("candidates further apart than 32 bits keep their places") {
  namespace topk = scape::detail::topk;
  scape::workspace_size size;
  topk::candidate_pool::add_bytes(size, 1000);
  scape::host_buffer const memory(size.bytes());
  scape::carver carver(memory.bytes(), "test");
  topk::candidate_pool pool(carver, 1000);
  topk::candidate_pool::chain chain;
  topk::key_block keys{};
  keys.at[63] = 7;
  std::vector<std::int64_t> const at{0, 1, (std::int64_t{1} << 26) - 1, std::int64_t{1} << 26,
                                     std::int64_t{1} << 40};
  for (auto const w : at) CHECK(pool.append(chain, w, mask_word{1} << 63, keys));
  pool.close(chain);
  std::vector<std::int64_t> found;
  pool.for_each(chain, [&](topk::key key, std::int64_t i) {
    CHECK(key == 7);
    CHECK(i % 64 == 63);
    found.push_back(i / 64);
  });
  CHECK(found == at);
}

TEST_CASE("wrong arguments change nothing and name the numbers") {
  std::int64_t const n = 1000;
  scape::layout const layout(n, 2);
  scape::host_buffer const scratch(scape::partitioned_topk_mask_bytes(layout));
  scape::host_context const ctx{scratch.bytes()};
  words mask(static_cast<std::size_t>(layout.words_per_shard()), canary);
  auto const untouched = mask;
  auto const one = [](std::int64_t) { return 1.0F; };
  auto plan = layout.plan(0.1);
  std::vector<scape::topk_hint> hints(2);
  words exclude(3);
  auto const throws = [&](std::string const& part, auto&& call) {
    std::string what;
    try {
      call();
    } catch (scape::argument_error const& e) {
      what = e.what();
    }
    CHECK_MESSAGE(what.find(part) != std::string::npos, what);
    CHECK(mask == untouched);
  };
  using std::span;
  throws("shard 2 is not one of the layout's 2",
         [&] { partitioned_topk_mask(ctx, layout, plan, 2, one, span(mask)); });
  throws("is 7, expected 8",
         [&] { partitioned_topk_mask(ctx, layout, plan, 0, one, span(mask).first(7)); });
  throws("is 3, expected 8", [&] {
    partitioned_topk_mask(ctx, layout, plan, 0, one, span(mask), {.exclude = exclude});
  });
  throws("is 2, expected 1",
         [&] { partitioned_topk_mask(ctx, layout, plan, 0, one, span(mask), {.hints = hints}); });
  auto const bytes = scratch.bytes().size();
  throws("has " + std::to_string(bytes - 1) + " bytes, " + std::to_string(bytes), [&] {
    partitioned_topk_mask(scape::host_context{scratch.bytes().first(bytes - 1)}, layout, plan, 0,
                          one, span(mask));
  });
  plan.group_k[0] = 513;
  throws("is 513, the group has 512",
         [&] { partitioned_topk_mask(ctx, layout, plan, 0, one, span(mask)); });
  plan.group_k.pop_back();
  throws("has 1 groups, at least 2",
         [&] { partitioned_topk_mask(ctx, layout, plan, 1, one, span(mask)); });
}
