// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of partitioned_topk_mask that hold on every backend.

#include <scape/partitioned_topk_mask.hpp>

#include <doctest/doctest.h>

#include <algorithm>
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

#include "support/backend.hpp"
#include "support/reference_topk.hpp"

namespace topk_cases {

using scape::mask_word;
using words = std::vector<mask_word>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr mask_word canary = 0x5ca9e5ca9e5ca9e5U;

//! More elements than a selection can collect, on either backend.
template <class Backend>
constexpr std::int64_t large = Backend::cuda ? 20011 : 100003;

template <class Backend>
std::vector<std::int64_t> const sizes{0, 1, 2, 63, 64, 65, 127, 1000, 4097, large<Backend>};

inline std::vector<std::int64_t> ks_of(std::int64_t n) {
  std::vector<std::int64_t> ks;
  for (auto const k : {std::int64_t{0}, std::int64_t{1}, n / 100, n / 10, n / 2, n - 1, n}) {
    if (k >= 0 && k <= n) ks.push_back(k);
  }
  return ks;
}

using pattern = std::function<float(std::int64_t i, std::int64_t n, std::mt19937& random)>;

inline float normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

inline float real(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

inline std::map<std::string, pattern> const patterns{
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

template <class Backend>
typename Backend::template vector<float> make(pattern const& p, std::int64_t n,
                                              std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  typename Backend::template vector<float> scores;
  scores.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) scores.push_back(p(i, n, random));
  return scores;
}

//! Reads the scores, and notes when asked for anything else.
struct observed {
  float const* scores;
  std::int64_t n;
  int* strayed;
  SCAPE_HOST_DEVICE float operator()(std::int64_t i) const {
    if (i >= 0 && i < n) return scores[i];
    *strayed = 1;
    return 0;
  }
};

struct constant_one {
  SCAPE_HOST_DEVICE float operator()(std::int64_t) const { return 1; }
};

//! A selection with its memory; the words after the mask are checked.
template <class Backend>
class fixture {
 public:
  explicit fixture(scape::layout layout, int threads = 1)
      : layout_(std::move(layout)), pool_(threads) {}

  words operator()(std::vector<std::int64_t> const& ks, std::span<float const> scores,
                   scape::topk_options const& options = {}, int shard = 0) {
    auto plan = layout_.plan(1);
    plan.group_k = ks;
    auto const size = static_cast<std::size_t>(layout_.words_per_shard());
    typename Backend::template vector<mask_word> mask(size + 2, canary);
    typename Backend::template vector<int> strayed(1);
    auto const bytes = scape::partitioned_topk_mask_bytes<typename Backend::context>(layout_);
    Backend::run(bytes + 1, [&](auto ctx) {
      ctx.scratch = ctx.scratch.subspan(1);
      if constexpr (!Backend::cuda) ctx.pool = &pool_;
      scape::partitioned_topk_mask(ctx, layout_, plan, shard,
                                   observed{scores.data(), std::ssize(scores), strayed.data()},
                                   std::span(mask).first(size), options);
    });
    CHECK(strayed[0] == 0);
    CHECK(mask[size] == canary);
    CHECK(mask[size + 1] == canary);
    return {mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(size)};
  }

 private:
  scape::layout layout_;
  scape::host_pool pool_;
};

template <class Words>
void set(Words& mask, std::int64_t i) {
  mask[static_cast<std::size_t>(i / 64)] |= mask_word{1} << (i % 64);
}

inline bool test(std::span<mask_word const> mask, std::int64_t i) {
  return !mask.empty() && (mask[static_cast<std::size_t>(i / 64)] >> (i % 64) & 1) != 0;
}

template <class Backend>
using hint_vector = typename Backend::template vector<scape::topk_hint>;

//! The mask of one shard by sorting each group.
inline words expected(scape::layout const& layout, std::vector<std::int64_t> const& ks,
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

inline words first_of(std::vector<std::int64_t> const& order, std::int64_t k, std::int64_t n) {
  words mask(static_cast<std::size_t>(scape::mask_words(n)));
  for (std::int64_t r = 0; r < k; ++r) set(mask, order[static_cast<std::size_t>(r)]);
  return mask;
}

template <class Backend>
typename Backend::template vector<mask_word> random_exclude(std::int64_t n, std::int64_t one_in,
                                                            std::uint32_t seed) {
  std::mt19937 random(seed);
  typename Backend::template vector<mask_word> mask(static_cast<std::size_t>(scape::mask_words(n)));
  for (std::int64_t i = 0; i < n; ++i) {
    if (random() % static_cast<std::uint32_t>(one_in) == 0) set(mask, i);
  }
  return mask;
}

inline std::vector<std::int64_t> all_of(std::int64_t n) {
  std::vector<std::int64_t> elements(static_cast<std::size_t>(n));
  std::iota(elements.begin(), elements.end(), 0);
  return elements;
}

TEST_CASE_TEMPLATE_DEFINE("a single group equals the sorted reference, with and without a hint",
                          Backend, topk_equals_reference) {
  for (auto const& entry : patterns) {
    auto const& name = entry.first;
    for (auto const n : sizes<Backend>) {
      auto const scores = make<Backend>(entry.second, n);
      bool const has_nan = std::ranges::any_of(scores, [](float s) { return std::isnan(s); });
      fixture<Backend> select(scape::layout(n, 1));
      for (auto const nan_policy : {scape::nan_policy::first, scape::nan_policy::last}) {
        if (nan_policy == scape::nan_policy::last && !has_nan) continue;
        auto const order = reference::topk_order(
            all_of(n), scores, [](std::int64_t) { return false; },
            nan_policy == scape::nan_policy::first);
        hint_vector<Backend> hints(n == 0 ? 0 : 1);  // goes on from one k to the next
        for (auto const k : ks_of(n)) {
          CAPTURE(name);
          CAPTURE(n);
          CAPTURE(k);
          auto const want = first_of(order, k, n);
          std::vector<std::int64_t> const ks(n == 0 ? 0 : 1, k);
          CHECK(select(ks, scores, {.nan = nan_policy}) == want);
          for (int repeat = 0; repeat < (Backend::cuda ? 2 : 3); ++repeat) {
            CHECK(select(ks, scores, {.hints = hints, .nan = nan_policy}) == want);
          }
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("hints are only hints", Backend, topk_only_hints) {
  std::int64_t const n = large<Backend>, k = n / 10;
  scape::layout const layout(n, 1);
  fixture<Backend> select(layout, 2);
  auto const narrow = [](std::int64_t, std::int64_t, std::mt19937& r) {
    return 1 + normal(r) / 64;
  };
  for (std::uint32_t seed = 0; seed < (Backend::cuda ? 1 : 3); ++seed) {
    for (auto const& scores :
         {make<Backend>(patterns.at("normal"), n, seed),
          make<Backend>(patterns.at("three values"), n, seed), make<Backend>(narrow, n, seed)}) {
      auto const want = expected(layout, {k}, scores);
      hint_vector<Backend> good(1);
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
        hint_vector<Backend> hints{hint};
        CAPTURE(hint.key);
        CAPTURE(hint.width);
        for (int repeat = 0; repeat < (Backend::cuda ? 2 : 3); ++repeat) {
          CHECK(select({k}, scores, {.hints = hints}) == want);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a hint follows drifting, vanishing and returning scores", Backend,
                          topk_follows) {
  std::int64_t const n = 70001, k = 700;
  scape::layout const layout(n, 1);
  fixture<Backend> select(layout, 2);
  hint_vector<Backend> hints(1);
  float const scales[] = {1, 1.01F, 1.02F, 1.5F, 1e-30F, 1e-44F, 0, 0, 1e30F, 1e30F, 1};
  std::uint32_t seed = 0;
  for (auto const scale : scales) {
    auto scores = make<Backend>(patterns.at("normal"), n, ++seed);
    for (auto& s : scores) s *= scale;
    CHECK(select({k}, scores, {.hints = hints}) == expected(layout, {k}, scores));
    CHECK(select({k * 2}, scores, {.hints = hints}) == expected(layout, {k * 2}, scores));
  }
}

TEST_CASE_TEMPLATE_DEFINE("more equal values at the threshold than can be collected", Backend,
                          topk_equal_values) {
  std::int64_t const n = std::int64_t{1} << (Backend::cuda ? 18 : 20);
  scape::layout const layout(n, 1);
  fixture<Backend> one(layout, 1), three(layout, 3);
  auto const scores = make<Backend>(patterns.at("twenty values"), n);
  for (auto const k : {n / 20, n / 10, n / 10 + 1, n / 2}) {
    auto const want = expected(layout, {k}, scores);
    CHECK(one({k}, scores) == want);
    CHECK(three({k}, scores) == want);
  }
}

TEST_CASE_TEMPLATE_DEFINE("excluded elements come last", Backend, topk_excluded_last) {
  for (auto const n : sizes<Backend>) {
    if (n == 0) continue;
    scape::layout const layout(n, 1);
    fixture<Backend> select(layout, 2);
    auto const all = random_exclude<Backend>(n, 1, 0);
    for (auto const& name : {"normal", "specials", "three values"}) {
      auto const scores = make<Backend>(patterns.at(name), n);
      for (auto const& exclude :
           {random_exclude<Backend>(n, 0xffffffffU, 4), all, random_exclude<Backend>(n, 2, 5),
            random_exclude<Backend>(n, 50, 6)}) {
        for (auto const nan_policy : {scape::nan_policy::first, scape::nan_policy::last}) {
          auto const order = reference::topk_order(
              all_of(n), scores, [&](std::int64_t i) { return test(exclude, i); },
              nan_policy == scape::nan_policy::first);
          hint_vector<Backend> hints(1);
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

TEST_CASE_TEMPLATE_DEFINE("several groups of several ranges, on any border", Backend,
                          topk_several_groups) {
  std::mt19937 random(7);
  for (int repeat = 0; repeat < (Backend::cuda ? 30 : 60); ++repeat) {
    std::vector<scape::parameter_span> spans;
    std::int64_t n = 0;
    auto const longest = repeat % 10 == 0 ? (Backend::cuda ? 10000U : 60000U)
                         : repeat % 2     ? 300U
                                          : 20U;
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
    fixture<Backend> select(layout, 1 + repeat % 3);
    auto const plan = layout.plan(0.1);
    for (int p = 0; p < shards; ++p) {
      auto const scores = make<Backend>(patterns.at(repeat % 2 ? "normal" : "three values"),
                                        layout.shard_size(p), static_cast<std::uint32_t>(repeat));
      auto const exclude = random_exclude<Backend>(layout.words_per_shard() * 64, 4, 1);
      hint_vector<Backend> hints(layout.groups(p).size());
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

TEST_CASE_TEMPLATE_DEFINE("a group of hundreds of ranges", Backend, topk_many_ranges) {
  std::mt19937 random(8);
  std::vector<scape::parameter_span> spans;
  std::int64_t n = 0;
  for (int s = 0; s < 600; ++s) {
    auto const length = static_cast<std::int64_t>(random() % 200);
    scape::span_policy const policies[] = {scape::span_policy::sparse, scape::span_policy::always,
                                           scape::span_policy::sparse, scape::span_policy::frozen};
    spans.push_back({.offset = n, .length = length, .policy = policies[s % 4]});
    n += length;
  }
  scape::layout const layout(n, 1, spans);
  fixture<Backend> select(layout, 2);
  hint_vector<Backend> hints(layout.groups(0).size());
  for (auto const& name : {"normal", "equal"}) {
    auto const scores = make<Backend>(patterns.at(name), n);
    auto const exclude = random_exclude<Backend>(n, 5, 9);
    for (auto const density : {0.01, 0.3, 0.9}) {
      auto const ks = layout.plan(density).group_k;
      for (auto const& o : {scape::topk_options{}, scape::topk_options{.hints = hints},
                            scape::topk_options{.exclude = exclude, .hints = hints}}) {
        CHECK(select(ks, scores, o) == expected(layout, ks, scores, o));
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("repeats give the same mask", Backend, topk_repeats) {
  std::int64_t const n = large<Backend>;
  fixture<Backend> select(scape::layout(n, 1), 3);
  for (auto const& name : {"equal", "three values", "zero"}) {
    auto const scores = make<Backend>(patterns.at(name), n);
    hint_vector<Backend> hints(1);
    auto const first = select({n / 7}, scores);
    for (int repeat = 0; repeat < (Backend::cuda ? 5 : 100); ++repeat) {
      CHECK(select({n / 7}, scores, {.hints = hints}) == first);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("scores at any address", Backend, topk_any_address) {
  std::int64_t const n = 1000;
  fixture<Backend> select(scape::layout(n, 1));
  auto const scores = make<Backend>(patterns.at("normal"), n);
  auto const want = select({99}, scores);
  for (std::size_t offset = 1; offset < 16; ++offset) {
    typename Backend::template vector<float> moved(scores.size() + offset);
    std::copy(scores.begin(), scores.end(), moved.begin() + static_cast<std::ptrdiff_t>(offset));
    CHECK(select({99}, std::span(moved).subspan(offset)) == want);
  }
}

TEST_CASE_TEMPLATE_DEFINE("wrong arguments change nothing and name the numbers", Backend,
                          topk_wrong_arguments) {
  std::int64_t const n = 1000;
  scape::layout const layout(n, 2);
  auto const bytes = scape::partitioned_topk_mask_bytes<typename Backend::context>(layout);
  typename Backend::template vector<mask_word> mask(
      static_cast<std::size_t>(layout.words_per_shard()), canary);
  auto const untouched = mask;
  auto plan = layout.plan(0.1);
  hint_vector<Backend> hints(2);
  typename Backend::template vector<mask_word> exclude(3);
  struct arguments {
    int shard = 0;
    std::size_t words = 8;
    scape::topk_options options = {};
    std::size_t missing_scratch = 0;
  };
  auto const throws = [&](std::string const& part, arguments const& wrong) {
    std::string what;
    Backend::run(bytes, [&](auto ctx) {
      ctx.scratch = ctx.scratch.first(bytes - wrong.missing_scratch);
      try {
        scape::partitioned_topk_mask(ctx, layout, plan, wrong.shard, constant_one{},
                                     std::span(mask).first(wrong.words), wrong.options);
      } catch (scape::argument_error const& e) {
        what = e.what();
      }
    });
    CHECK_MESSAGE(what.find(part) != std::string::npos, what);
    CHECK(mask == untouched);
  };
  throws("shard 2 is not one of the layout's 2", {.shard = 2});
  throws("is 7, expected 8", {.words = 7});
  throws("is 3, expected 8", {.options = {.exclude = exclude}});
  throws("is 2, expected 1", {.options = {.hints = hints}});
  throws("has " + std::to_string(bytes - 1) + " bytes, " + std::to_string(bytes),
         {.missing_scratch = 1});
  plan.group_k[0] = 513;
  throws("is 513, the group has 512", {});
  plan.group_k.pop_back();
  throws("has 1 groups, at least 2", {.shard = 1});
}

}  // namespace topk_cases
