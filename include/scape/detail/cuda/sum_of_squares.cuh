// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Sums of squares on a stream.

#include <cub/block/block_reduce.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <scape/detail/cuda/launch.cuh>
#include <scape/workspace.hpp>

namespace scape::detail::cuda {

struct sum_of_squares_tuning {
  static constexpr int threads = 256;
  static constexpr int loads = 8;  //!< under way at a time in each thread
  static constexpr int max_blocks = 2048;
};

//! sums[block] = the sum of x[j]^2 over the tiles of that block, in double.
template <class T>
__global__ void __launch_bounds__(sum_of_squares_tuning::threads)
    square_tiles(T const* x, std::int64_t n, double* sums) {
  using tuning = sum_of_squares_tuning;
  using reduce = cub::BlockReduce<double, tuning::threads>;
  __shared__ typename reduce::TempStorage memory;
  constexpr std::int64_t tile = std::int64_t{tuning::threads} * tuning::loads;
  double sum = 0;
  for (auto begin = blockIdx.x * tile; begin < n; begin += gridDim.x * tile) {
    float values[tuning::loads];
#pragma unroll
    for (int l = 0; l < tuning::loads; ++l) {
      auto const j = begin + l * tuning::threads + threadIdx.x;
      values[l] = j < n ? static_cast<float>(x[j]) : 0.0F;
    }
#pragma unroll
    for (int l = 0; l < tuning::loads; ++l) {
      auto const value = static_cast<double>(values[l]);
      sum = fma(value, value, sum);
    }
  }
  sum = reduce(memory).Sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(sum_of_squares_tuning::threads)
    add_sums(T const* sums, int count, T* total) {
  using reduce = cub::BlockReduce<T, sum_of_squares_tuning::threads>;
  __shared__ typename reduce::TempStorage memory;
  T sum = 0;
  for (auto i = static_cast<int>(threadIdx.x); i < count; i += sum_of_squares_tuning::threads) {
    sum += sums[i];
  }
  sum = reduce(memory).Sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

//! Scratch bytes, for any length.
[[nodiscard]] inline std::size_t sum_of_squares_bytes() noexcept {
  return workspace_size().add<double>(sum_of_squares_tuning::max_blocks).bytes();
}

//! Enqueues *total = the sum of x[j]^2 in double; infinite or NaN exactly when an element is. The
//! order of the additions depends on n and the device alone.
template <class T>
void sum_of_squares(caller who, cuda_context const& ctx, std::span<T const> x, double* total) {
  using tuning = sum_of_squares_tuning;
  carver scratch(ctx.scratch, who);
  auto const sums = scratch.take<double>(tuning::max_blocks);
  constexpr std::int64_t tile = std::int64_t{tuning::threads} * tuning::loads;
  auto const blocks = static_cast<int>(
      std::min<unsigned>(blocks_for(who, (std::ssize(x) + tile - 1) / tile), tuning::max_blocks));
  launch(who, ctx, square_tiles<T>, static_cast<unsigned>(blocks), tuning::threads, x.data(),
         std::ssize(x), sums.data());
  launch(who, ctx, add_sums<double>, 1, tuning::threads, sums.data(), blocks, total);
}

}  // namespace scape::detail::cuda
