// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How much of a vector's energy lies in its largest elements.

#include <cstdint>
#include <span>
#include <vector>

namespace basis_rotation {

class model_optimizer;

//! The share of the sum of squares that the largest `part` (0 ... 1) of the values holds; at least
//! one value counts. 0 if all are 0.
[[nodiscard]] double energy_share(std::span<float const> values, double part);

//! The first moments of all rotated matrices, one after the other, in one of the two bases.
[[nodiscard]] std::vector<float> rotated_moments(model_optimizer& optimizer);
[[nodiscard]] std::vector<float> original_moments(model_optimizer& optimizer);

}  // namespace basis_rotation
