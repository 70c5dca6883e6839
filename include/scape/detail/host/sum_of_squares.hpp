// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Sums of squares that do not depend on the number of threads.

#include <algorithm>
#include <cstdint>
#include <span>

#include <scape/context/host.hpp>
#include <scape/workspace.hpp>

namespace scape::detail {

inline constexpr std::int64_t norm_block = 16384;

[[nodiscard]] inline std::size_t sum_of_squares_bytes(std::int64_t n) noexcept {
  return workspace_size().add<double>((n + norm_block - 1) / norm_block).bytes();
}

template <class T>
double block_sum_of_squares(T const* x, std::int64_t n) noexcept {
  constexpr std::int64_t lanes = 16;
  double sums[lanes] = {};
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    for (std::int64_t l = 0; l < lanes; ++l) {
      auto const value = static_cast<double>(static_cast<float>(x[j + l]));
      sums[l] += value * value;
    }
  }
  for (; j < n; ++j) {
    auto const value = static_cast<double>(static_cast<float>(x[j]));
    sums[j % lanes] += value * value;
  }
  double sum = 0;
  for (auto const s : sums) sum += s;
  return sum;
}

//! Sum of x[j]^2 in double; infinite or NaN exactly when an element is.
template <class T>
double sum_of_squares(host_context const& ctx, std::span<T const> x) {
  auto const n = std::ssize(x);
  auto const blocks = (n + norm_block - 1) / norm_block;
  carver scratch(ctx.scratch, "sum_of_squares");
  auto const sums = scratch.take<double>(blocks);
  ctx.parallel([&](int part, int parts) {
    auto const [first, last] = part_of(blocks, part, parts);
    for (auto b = first; b < last; ++b) {
      auto const begin = b * norm_block;
      sums[static_cast<std::size_t>(b)] =
          block_sum_of_squares(x.data() + begin, std::min(norm_block, n - begin));
    }
  });
  double sum = 0;
  for (auto const s : sums) sum += s;
  return sum;
}

}  // namespace scape::detail
