// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Elements as unique integers in the order of selection, and the search for one rank among them.

#include <cub/block/block_scan.cuh>
#include <cuda/std/bit>

#include <cstdint>

#include <scape/config.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/topk_key.hpp>

namespace scape::detail::cuda {

//! A key and, below it, the bits of the element's index, inverted: larger goes first.
using composite = unsigned long long;

//! Composites lo ... hi, both included; empty if lo is hi + 1.
struct composite_range {
  composite lo, hi;
  [[nodiscard]] __device__ bool holds(composite c) const { return lo <= c && c <= hi; }
};

//! How elements become composites.
struct composite_order {
  int index_bits;

  [[nodiscard]] __device__ composite of(topk::key key, std::int64_t i) const {
    return (static_cast<composite>(key) << index_bits) | (last() - static_cast<composite>(i));
  }
  [[nodiscard]] __device__ topk::key key(composite c) const {
    return static_cast<topk::key>(c >> index_bits);
  }
  [[nodiscard]] __device__ std::int64_t index(composite c) const {
    return static_cast<std::int64_t>(last() - (c & last()));
  }
  //! All composites of the keys lo ... hi.
  [[nodiscard]] __device__ composite_range of_keys(topk::key lo, topk::key hi) const {
    return {static_cast<composite>(lo) << index_bits,
            (static_cast<composite>(hi) << index_bits) | last()};
  }
  [[nodiscard]] __device__ composite_range everything() const {
    return of_keys(0, topk::largest_key);
  }

 private:
  [[nodiscard]] __device__ composite last() const { return (composite{1} << index_bits) - 1; }
};

//! A range cut into at most 2^bits bins of 2^shift composites.
struct composite_bins {
  composite_range range;
  int shift;
  int count;

  __device__ composite_bins(composite_range r, int bits)
      : range(r),
        shift(topk::greater(static_cast<int>(::cuda::std::bit_width(r.hi - r.lo)) - bits, 0)),
        count(static_cast<int>((r.hi - r.lo) >> shift) + 1) {}
  [[nodiscard]] __device__ int of(composite c) const {
    return static_cast<int>((c - range.lo) >> shift);
  }
  [[nodiscard]] __device__ composite_range bin(int i) const {
    auto const first = static_cast<composite>(i) << shift;
    auto const last = first + ((composite{1} << shift) - 1);
    return {range.lo + first, range.lo + topk::lesser(last, range.hi - range.lo)};
  }
};

//! The bin with the element of a rank, counted from 1 at the top.
struct found_bin {
  int bin;             //!< -1 if there are fewer elements
  std::int64_t rank;   //!< within the bin
  std::int64_t count;  //!< elements of the bin
};

//! Finds that bin, with all threads of a block.
template <int Threads, int MaxBins>
class bin_finder {
  using scan = cub::BlockScan<std::int64_t, Threads>;

 public:
  struct storage {
    typename scan::TempStorage scan;
    found_bin found;
  };

  //! `total` becomes the number of elements. Counts are in memory the whole block sees.
  template <class Count>
  static __device__ found_bin find(storage& memory, Count const* counts, int bins,
                                   std::int64_t rank, std::int64_t& total) {
    constexpr int per_thread = MaxBins / Threads;
    static_assert(MaxBins % Threads == 0);
    auto const thread = static_cast<int>(threadIdx.x);
    auto const top = bins - 1 - thread * per_thread;
    auto const count = [&](int b) { return b < 0 ? 0 : static_cast<std::int64_t>(counts[b]); };
    std::int64_t own = 0;
    // Every thread starts elsewhere, so that they do not wait for one bank.
    for (int i = 0; i < per_thread; ++i) own += count(top - (i + thread) % per_thread);
    std::int64_t before = 0;
    if (thread == 0) memory.found = {-1, 0, 0};
    scan(memory.scan).ExclusiveSum(own, before, total);
    __syncthreads();
    if (before < rank && rank <= before + own) {
      auto b = top;
      for (rank -= before; rank > count(b); --b) rank -= count(b);
      memory.found = {b, rank, count(b)};
    }
    __syncthreads();
    return memory.found;
  }
};

//! Where a list in memory divides by rank, with all threads of one block.
template <int Threads, int Bits>
class list_divider {
  using finder = bin_finder<Threads, 1 << Bits>;

 public:
  struct storage {
    unsigned counts[1 << Bits];
    typename finder::storage finder;
  };

  //! The value that `rank` of the listed composites in `range` are not below.
  static __device__ composite divide(storage& memory, composite const* list, std::int64_t size,
                                     composite_range range, std::int64_t rank) {
    while (true) {
      composite_bins const bins(range, Bits);
      for (auto b = static_cast<int>(threadIdx.x); b < bins.count; b += Threads) {
        memory.counts[b] = 0;
      }
      __syncthreads();
      for (auto i = std::int64_t{threadIdx.x}; i < size; i += Threads) {
        if (range.holds(list[i])) atomicAdd(&memory.counts[bins.of(list[i])], 1U);
      }
      __syncthreads();
      std::int64_t total = 0;
      auto const found = finder::find(memory.finder, memory.counts, bins.count, rank, total);
      if (found.bin < 0) return range.lo;
      range = bins.bin(found.bin);
      rank = found.rank;
      if (found.count == rank) return range.lo;
    }
  }
};

//! True in the last of `blocks` blocks to come here, which sees what the others wrote before.
__device__ inline bool is_last_block(unsigned* arrived, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrived, 1U) == blocks - 1;
    if (last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace scape::detail::cuda
