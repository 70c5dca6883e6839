// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranges of a shard as a kernel parameter, and stores to the mask words at their borders.

#include <cstdint>

#include <scape/config.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/mask_ranges.hpp>
#include <scape/layout.hpp>

namespace scape::detail::cuda {

//! Ranges of a shard for one launch, by value, so that no table needs to be copied. Their words
//! are numbered through; a word that two ranges share has two numbers.
struct range_table {
  static constexpr int capacity = 128;
  int count = 0;
  std::int64_t words = 0;
  std::int64_t first[capacity] = {};  //!< number of the range's first word
  index_range at[capacity] = {};

  void add(index_range range) {
    if (range.size() <= 0) return;
    first[count] = words;
    at[count++] = range;
    words += scape::mask_words(range.end) - range.begin / mask_word_bits;
  }
  [[nodiscard]] bool full() const { return count == capacity; }

  //! The range that word number v is in.
  [[nodiscard]] __device__ int find(std::int64_t v) const {
    int low = 0, high = count;
    while (high - low > 1) {
      auto const middle = (low + high) / 2;
      (first[middle] <= v ? low : high) = middle;
    }
    return low;
  }
  //! Its place in the mask.
  [[nodiscard]] __device__ std::int64_t word(int range, std::int64_t v) const {
    return at[range].begin / mask_word_bits + (v - first[range]);
  }
};

//! Makes the given lanes of a word equal to those of `bits`; other lanes may be others' business.
__device__ inline void store_lanes(mask_word* word, mask_word lanes, mask_word bits) {
  if (lanes == ~mask_word{0}) {
    *word = bits;
    return;
  }
  auto* const shared = reinterpret_cast<unsigned long long*>(word);
  if ((lanes & ~bits) != 0) atomicAnd(shared, ~lanes);
  if ((lanes & bits) != 0) atomicOr(shared, lanes & bits);
}

//! Sets or clears all elements of the ranges.
template <class Tuning>
__global__ void __launch_bounds__(Tuning::threads)
    topk_fill(range_table const __grid_constant__ table, mask_word* mask, mask_word bits,
              int const* skip) {
  if (skip != nullptr && *skip != 0) return;
  auto const step = std::int64_t{gridDim.x} * Tuning::threads;
  for (auto v = std::int64_t{blockIdx.x} * Tuning::threads + threadIdx.x; v < table.words;
       v += step) {
    auto const r = table.find(v);
    auto const w = table.word(r, v);
    store_lanes(mask + w, lanes_of(w, table.at[r].begin, table.at[r].end), bits);
  }
}

}  // namespace scape::detail::cuda
