// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How often the matrices of a pipeline refresh their bases: the stage-aware budget of basis
//! rotation (arXiv 2602.03515), for rotated_adam_options::refresh_interval.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <scape/error.hpp>

namespace scape {

//! How the refreshes of a model are dealt out to its matrices.
enum class refresh_budget : std::uint8_t {
  uniform,
  stage_aware,  //!< in proportion to the delay of the matrix's gradient
  inverse       //!< the wrong way round, as a control: the stalest gradient has the smallest share
};

//! Intervals in steps between the refreshes of matrices whose gradients come `delays` steps late
//! (one per matrix): as many refreshes in all as with `interval` for each of them, but for rounding
//! and for shares beyond a refresh per step. A matrix without a share has the interval 0: it keeps
//! its first basis. Throws if the interval is below 1 or a delay is negative.
[[nodiscard]] inline std::vector<std::int64_t> refresh_intervals(
    std::span<std::int64_t const> delays, std::int64_t interval, refresh_budget budget) {
  constexpr auto op = "refresh_intervals";
  detail::expect(interval >= 1, op, "the interval is below 1");
  detail::expect(std::ranges::all_of(delays, [](std::int64_t d) { return d >= 0; }), op,
                 "a delay is negative");
  std::vector<std::int64_t> intervals(delays.size(), interval);
  if (delays.empty()) return intervals;
  auto const ends = std::ranges::minmax(delays);
  auto const share = [&](std::int64_t delay) {
    auto const own = static_cast<double>(delay);
    if (budget != refresh_budget::inverse) return own;
    return static_cast<double>(ends.min) + (static_cast<double>(ends.max) - own);
  };
  double sum = 0;
  for (auto const delay : delays) sum += share(delay);
  if (budget == refresh_budget::uniform || sum == 0) return intervals;
  constexpr double most = 1e18;  // fits, and never comes
  auto const mean = sum / static_cast<double>(delays.size());
  for (std::size_t i = 0; i < delays.size(); ++i) {
    auto const own = share(delays[i]);
    intervals[i] =
        own == 0 ? 0
                 : std::max<std::int64_t>(
                       1, std::llround(std::min(most, static_cast<double>(interval) * mean / own)));
  }
  return intervals;
}

}  // namespace scape
