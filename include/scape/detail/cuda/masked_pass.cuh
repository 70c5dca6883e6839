// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The one traversal of elements under a mask. A warp takes a chunk of eight mask words: 512
//! consecutive elements, loaded and stored side by side whatever the mask looks like. Where the
//! packed values of a chunk start comes from one scan over the popcounts of all chunks.

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <cstdint>
#include <span>

#include <scape/config.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/cuda/tuning/masked_pass.cuh>
#include <scape/layout.hpp>
#include <scape/workspace.hpp>

namespace scape::detail::cuda {

inline constexpr int chunk_words = 8;
inline constexpr int chunk_elements = chunk_words * static_cast<int>(mask_word_bits);

//! The blocks of a global mask, or one of them, cut into chunks.
struct mask_chunks {
  mask_word const* words;
  std::int64_t words_per_shard;
  int first_shard = 0;  //!< whose block `words` begins with

  [[nodiscard]] SCAPE_HOST_DEVICE std::int64_t per_shard() const {
    return (words_per_shard + chunk_words - 1) / chunk_words;
  }
  //! Word `w` of chunk `c` of a block; 0 past the block's end.
  [[nodiscard]] __device__ mask_word word(std::int64_t block, std::int64_t c, int w) const {
    auto const at = c * chunk_words + w;
    return at < words_per_shard ? words[block * words_per_shard + at] : 0;
  }
  //! Set bits of the i-th chunk of all.
  [[nodiscard]] __device__ std::int64_t operator()(std::int64_t i) const {
    auto const block = i / per_shard();
    int count = 0;
#pragma unroll
    for (int w = 0; w < chunk_words; ++w) count += __popcll(word(block, i % per_shard(), w));
    return count;
  }
};

//! How many bits are set before each chunk.
class mask_ranks {
 public:
  //! For kernels.
  struct view {
    mask_chunks chunks;
    std::int64_t const* before;
    [[nodiscard]] __device__ std::int64_t before_shard(int shard) const {
      return before[(shard - chunks.first_shard) * chunks.per_shard()];
    }
  };

  [[nodiscard]] static std::size_t scratch_bytes(std::int64_t words_per_shard,
                                                 std::int64_t shards) {
    auto const chunks = shards * mask_chunks{nullptr, words_per_shard}.per_shard();
    return workspace_size().add<std::int64_t>(chunks).add_bytes(scan_bytes(chunks)).bytes();
  }

  //! Enqueues the scan. `mask` has the blocks of consecutive shards; scratch stays in use while
  //! the ranks are.
  mask_ranks(caller who, cuda_context const& ctx, std::span<mask_word const> mask,
             std::int64_t words_per_shard, carver& scratch, int first_shard = 0)
      : view_{{mask.data(), words_per_shard, first_shard}, nullptr} {
    if (mask.empty()) return;
    auto const shards = std::ssize(mask) / words_per_shard;
    auto const count = shards * view_.chunks.per_shard();
    auto const before = scratch.take<std::int64_t>(count);
    auto const temporary = scratch.take<std::byte>(static_cast<std::int64_t>(scan_bytes(count)));
    auto bytes = temporary.size();
    forget_last_error();
    check_cuda(cub::DeviceScan::ExclusiveSum(temporary.data(), bytes, counts(), before.data(),
                                             count, ctx.stream),
               who, "cub::DeviceScan");
    view_.before = before.data();
  }

  [[nodiscard]] view const& get() const noexcept { return view_; }

 private:
  using count_iterator =
      thrust::transform_iterator<mask_chunks, thrust::counting_iterator<std::int64_t>, std::int64_t,
                                 std::int64_t>;

  [[nodiscard]] count_iterator counts() const {
    return {thrust::counting_iterator<std::int64_t>(0), view_.chunks};
  }
  //! CUB takes an error that an earlier call left behind for one of its own.
  static void forget_last_error() { static_cast<void>(cudaGetLastError()); }
  static std::size_t scan_bytes(std::int64_t chunks) {
    std::size_t bytes = 0;
    std::int64_t* const none = nullptr;
    forget_last_error();
    check_cuda(cub::DeviceScan::ExclusiveSum(
                   nullptr, bytes, count_iterator{{}, mask_chunks{nullptr, 1}}, none, chunks),
               "mask_ranks", "cub::DeviceScan");
    return bytes;
  }

  view view_;
};

//! Where the shards of one launch begin. Goes by value, so that no table needs to be copied.
struct shard_table {
  static constexpr int capacity = 64;
  int first = 0;
  int count = 0;
  std::int64_t begin[capacity + 1] = {};
};

//! What a pass knows of one element.
struct masked_element {
  std::int64_t index;  //!< in the flat vector
  int shard;
  bool set;               //!< its bit
  std::int64_t position;  //!< set bits of the whole mask before it
};

//! Calls op.load for a group of elements and then op.store for the same ones, so that many loads
//! are under way at a time. An element belongs to one thread.
template <class Op>
__global__ void __launch_bounds__(masked_pass_tuning::threads)
    masked_pass(shard_table table, mask_ranks::view ranks, index_range elements, Op op) {
  if (op.done()) return;
  auto const& mask = ranks.chunks;
  auto const lane = static_cast<int>(threadIdx.x) % warp_size;
  auto const warp = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp_size;
  auto const warps = std::int64_t{gridDim.x} * blockDim.x / warp_size;
  auto const per_shard = mask.per_shard();
  auto const lanes_below = (1U << lane) - 1U;
  for (auto i = warp; i < table.count * per_shard; i += warps) {
    auto const local = static_cast<int>(i / per_shard);
    auto const shard = table.first + local;
    auto const block = shard - mask.first_shard;
    auto const chunk = i % per_shard;
    auto const first = table.begin[local] + chunk * chunk_elements;
    auto const end = min(table.begin[local + 1], elements.end);
    if (first >= end || first + chunk_elements <= elements.begin) continue;
    auto const own = lane < chunk_words ? mask.word(block, chunk, lane) : mask_word{0};
    if (!Op::dense && __ballot_sync(~0U, own != 0) == 0) continue;
    int prefix = __popcll(own);
#pragma unroll
    for (int step = 1; step < chunk_words; step *= 2) {
      auto const left = __shfl_up_sync(~0U, prefix, step);
      if (lane >= step) prefix += left;
    }
    prefix -= __popcll(own);
    auto const base = ranks.before[block * per_shard + chunk];

#pragma unroll 1
    for (int group = 0; group < chunk_words; group += Op::words) {
      masked_element at[2 * Op::words];
      typename Op::value values[2 * Op::words];
#pragma unroll
      for (int w = 0; w < Op::words; ++w) {
        auto const word = __shfl_sync(~0U, own, group + w);
        auto const low = static_cast<unsigned>(word);
        auto const high = static_cast<unsigned>(word >> warp_size);
        auto const rank = base + __shfl_sync(~0U, prefix, group + w);
        auto const j = first + (group + w) * mask_word_bits + lane;
        at[2 * w] = {j, shard, (low >> lane & 1U) != 0, rank + __popc(low & lanes_below)};
        at[2 * w + 1] = {j + warp_size, shard, (high >> lane & 1U) != 0,
                         rank + __popc(low) + __popc(high & lanes_below)};
      }
#pragma unroll
      for (int e = 0; e < 2 * Op::words; ++e) {
        if (at[e].index >= elements.begin && at[e].index < end && (Op::dense || at[e].set)) {
          values[e] = op.load(at[e]);
        }
      }
#pragma unroll
      for (int e = 0; e < 2 * Op::words; ++e) {
        if (at[e].index >= elements.begin && at[e].index < end && (Op::dense || at[e].set)) {
          op.store(at[e], values[e]);
        }
      }
    }
  }
}

//! Enqueues a pass over the elements of the table's shards that lie in `elements`.
//!
//! @tparam Op  dense (false: only set elements are visited), words (mask words whose elements are
//!             loaded before the first is stored), value, done(), load(element), store(element,
//!             value)
template <class Op>
void enqueue_masked_pass(caller who, cuda_context const& ctx, shard_table const& table,
                         index_range elements, mask_ranks const& ranks, Op const& op) {
  constexpr auto warps = masked_pass_tuning::threads / warp_size;
  auto const chunks = table.count * ranks.get().chunks.per_shard();
  launch(who, ctx, masked_pass<Op>, blocks_for(who, (chunks + warps - 1) / warps),
         masked_pass_tuning::threads, table, ranks.get(), elements, op);
}

//! The same for shards [first, last) of a layout.
template <class Op>
void enqueue_masked_pass(caller who, cuda_context const& ctx, layout const& layout, int first,
                         int last, index_range elements, mask_ranks const& ranks, Op const& op) {
  for (auto p = first; p < last; p += shard_table::capacity) {
    shard_table table;
    table.first = p;
    table.count = std::min(last - p, shard_table::capacity);
    for (int s = 0; s <= table.count; ++s) table.begin[s] = layout.begin(p + s);
    enqueue_masked_pass(who, ctx, table, elements, ranks, op);
  }
}

//! The same for all n elements of a mask that is no layout's. Takes
//! mask_ranks::scratch_bytes(mask_words(n), 1) of the context's scratch.
template <class Op>
void enqueue_masked_pass(caller who, cuda_context const& ctx, std::span<mask_word const> mask,
                         std::int64_t n, Op const& op) {
  carver scratch(ctx.scratch, who);
  mask_ranks const ranks(who, ctx, mask, std::ssize(mask), scratch);
  shard_table table;
  table.count = 1;
  table.begin[1] = n;
  enqueue_masked_pass(who, ctx, table, {0, n}, ranks, op);
}

}  // namespace scape::detail::cuda
