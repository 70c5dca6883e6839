// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <scape/scape.hpp>
#include <vector>

int main() {
  scape::layout const layout(64, 1);
  std::vector<scape::mask_word> mask(1);
  [[maybe_unused]] auto select = [&](auto const& statistic) {
    scape::partitioned_topk_mask({}, layout, layout.plan(0.5), 0, statistic, mask);
  };
#if defined(CASE_statistic_in_double)  // expect: constraints not satisfied
  select([](std::int64_t) { return 1.0; });
#elif defined(CASE_statistic_of_nothing)    // expect: constraints not satisfied
  select([] { return 1.0F; });
#elif defined(CASE_statistic_that_changes)  // expect: constraints not satisfied
  select([calls = 0.0F](std::int64_t) mutable { return ++calls; });
#else
  select([](std::int64_t) { return 1.0F; });
#endif
}
