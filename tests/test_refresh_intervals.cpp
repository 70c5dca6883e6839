// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include <scape/pipeline/refresh_intervals.hpp>

#include "support/raises.hpp"

namespace scape::testing {
namespace {

TEST_CASE("refresh intervals by delay") {
  using intervals = std::vector<std::int64_t>;
  using enum refresh_budget;
  std::vector<std::int64_t> const delays{3, 2, 1, 0};
  CHECK(refresh_intervals(delays, 10, uniform) == intervals{10, 10, 10, 10});
  // The mean delay is 1.5: intervals 10 * 1.5 / delay.
  CHECK(refresh_intervals(delays, 10, stage_aware) == intervals{5, 8, 15, 0});
  CHECK(refresh_intervals(delays, 10, inverse) == intervals{0, 15, 8, 5});
  CHECK(refresh_intervals(delays, 1, stage_aware) == intervals{1, 1, 2, 0});
  std::vector<std::int64_t> const none(3, 0);
  for (auto const budget : {uniform, stage_aware, inverse}) {
    CHECK(refresh_intervals(none, 7, budget) == intervals{7, 7, 7});
    CHECK(refresh_intervals({}, 7, budget).empty());
  }
  // Rounding an interval of at least 3 to a whole number changes a share by a sixth at the most.
  std::vector<std::int64_t> stages;
  for (std::int64_t k = 1; k <= 32; ++k) stages.push_back(32 - k);
  for (auto const budget : {stage_aware, inverse}) {
    double refreshes = 0;
    for (auto const f : refresh_intervals(stages, 10, budget)) {
      CHECK((f == 0 || f >= 5));
      if (f > 0) refreshes += 1 / static_cast<double>(f);
    }
    CHECK(refreshes == doctest::Approx(32 / 10.0).epsilon(0.02));
  }
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> const huge{largest, largest};
  for (auto const budget : {stage_aware, inverse}) {
    CHECK(refresh_intervals(huge, 10, budget) == intervals{10, 10});
    for (auto const f : refresh_intervals(delays, largest, budget))
      CHECK((f == 0 || f > largest / 16));
  }
  CHECK(rejects([&] { (void)refresh_intervals(delays, 0, uniform); }, {"interval is below 1"}));
  std::vector<std::int64_t> const negative{1, -1};
  CHECK(rejects([&] { (void)refresh_intervals(negative, 5, uniform); }, {"a delay is negative"}));
}

}  // namespace
}  // namespace scape::testing
