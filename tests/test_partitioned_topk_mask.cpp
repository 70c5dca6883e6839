// SPDX-License-Identifier: Apache-2.0
#include "cases/partitioned_topk_mask.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace topk_cases;
using scape::testing::host_backend;

TEST_CASE_TEMPLATE_INVOKE(topk_equals_reference, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_only_hints, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_follows, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_equal_values, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_excluded_last, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_several_groups, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_many_ranges, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_repeats, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_any_address, host_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_wrong_arguments, host_backend);

TEST_CASE("the number of threads does not matter") {
  auto const n = large<host_backend>;
  for (auto const& entry : patterns) {
    auto const& name = entry.first;
    CAPTURE(name);
    auto const scores = make<host_backend>(entry.second, n, 2);
    fixture<host_backend> one(scape::layout(n, 1), 1), two(scape::layout(n, 1), 2),
        three(scape::layout(n, 1), 3);
    auto const exclude = random_exclude<host_backend>(n, 3, 3);
    for (auto const k : ks_of(n)) {
      for (auto const& options : {scape::topk_options{}, scape::topk_options{.exclude = exclude}}) {
        auto const mask = one({k}, scores, options);
        CHECK(two({k}, scores, options) == mask);
        CHECK(three({k}, scores, options) == mask);
      }
    }
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
    auto const scores = make<host_backend>(patterns.at("normal"), n);
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
  fixture<host_backend> select(scape::layout(n, 1));
  auto const scores = make<host_backend>(patterns.at("denormals"), n);
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
  words mask(2), exclude = random_exclude<host_backend>(n, 2, 1);
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

}  // namespace
