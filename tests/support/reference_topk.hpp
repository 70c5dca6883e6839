// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The top-k by sorting everything.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace reference {

//! The given elements, best first: not excluded before excluded, then by magnitude with NaN in the
//! place it is given, then by index.
template <class Excluded>
std::vector<std::int64_t> topk_order(std::vector<std::int64_t> elements,
                                     std::span<float const> scores, Excluded const& excluded,
                                     bool nan_first) {
  auto const before = [&](std::int64_t a, std::int64_t b) {
    if (excluded(a) != excluded(b)) return excluded(b);
    if (!excluded(a)) {
      double const x = std::fabs(double{scores[static_cast<std::size_t>(a)]});
      double const y = std::fabs(double{scores[static_cast<std::size_t>(b)]});
      if (std::isnan(x) != std::isnan(y)) return std::isnan(x) == nan_first;
      if (!std::isnan(x) && x != y) return x > y;
    }
    return a < b;
  };
  std::sort(elements.begin(), elements.end(), before);
  return elements;
}

}  // namespace reference
