// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The small passes of an optimizer on a stream, over mask words and the weights of a shard.

#include <cstdint>
#include <span>

#include <scape/config.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/cuda/optimizer_state.cuh>
#include <scape/optim/statistics.hpp>

namespace scape::detail::cuda {

inline constexpr int word_threads = 256;

[[nodiscard]] __device__ inline std::int64_t grid_index() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
[[nodiscard]] __device__ inline std::int64_t grid_stride() {
  return std::int64_t{gridDim.x} * blockDim.x;
}
inline unsigned word_blocks(caller who, std::int64_t words) {
  return blocks_for(who, (words + word_threads - 1) / word_threads);
}

template <class Word>
__global__ void bit_or_words(Word const* in, Word* out, std::int64_t words, bool first) {
  for (auto w = grid_index(); w < words; w += grid_stride()) out[w] = in[w] | (first ? 0 : out[w]);
}

//! out = in if `first`, else out |= in.
inline void enqueue_bit_or(caller who, cuda_context const& ctx, std::span<mask_word const> in,
                           std::span<mask_word> out, bool first) {
  launch(who, ctx, bit_or_words<mask_word>, word_blocks(who, std::ssize(in)), word_threads,
         in.data(), out.data(), std::ssize(in), first);
}

template <class State>
__global__ void count_common_bits(mask_word const* mask, mask_word const* other, std::int64_t words,
                                  State* state) {
  unsigned long long all = 0, common = 0;
  for (auto w = grid_index(); w < words; w += grid_stride()) {
    all += __popcll(mask[w]);
    common += __popcll(mask[w] & other[w]);
  }
  atomicAdd(&state->mask_bits, all);
  atomicAdd(&state->common_bits, common);
}

//! Adds the bits of `mask`, and those that `other` has too, to the state's counters.
inline void enqueue_overlap(caller who, cuda_context const& ctx, std::span<mask_word const> mask,
                            std::span<mask_word const> other, optimizer_state* state) {
  launch(who, ctx, count_common_bits<optimizer_state>, word_blocks(who, std::ssize(mask)),
         word_threads, mask.data(), other.data(), std::ssize(mask), state);
}

//! The masks of one optimizer in memory.
struct mask_ring {
  mask_word* words;
  std::int64_t slots;
  std::int64_t words_per_mask;
  std::int64_t own_begin, own_end;  //!< words of the own shard's block
  [[nodiscard]] __device__ mask_word& at(std::int64_t call, std::int64_t w) const {
    return words[call % slots * words_per_mask + w];
  }
};

template <class State>
__global__ void shift_masks(mask_ring ring, std::int64_t current, std::int64_t newest,
                            State const* state) {
  if (state->skipped == 0) return;
  for (auto w = grid_index(); w < ring.words_per_mask; w += grid_stride()) {
    auto const own = ring.own_begin <= w && w < ring.own_end;
    auto& last = ring.at(current - 1 + ring.slots, w);
    auto const used_last = last;
    if (newest == current) last = ring.at(current, w);  // without a lag the two change places
    for (auto call = own ? newest : newest - 1; call > current; --call) {
      ring.at(call, w) = ring.at(call - 1, w);
    }
    ring.at(current, w) = used_last;
  }
}

//! If the step is skipped, every mask moves on by one call: that of the call before becomes the
//! current one's, and so on to the newest, which is yet to be gathered and gets its own block only.
inline void enqueue_shift(caller who, cuda_context const& ctx, mask_ring const& ring,
                          std::int64_t current, std::int64_t newest, optimizer_state const* state) {
  launch(who, ctx, shift_masks<optimizer_state>, word_blocks(who, ring.words_per_mask),
         word_threads, ring, current, newest, state);
}

template <class T>
__global__ void convert_to_float(T const* in, float* out, std::int64_t n) {
  for (auto i = grid_index(); i < n; i += grid_stride()) out[i] = static_cast<float>(in[i]);
}

template <class T>
void enqueue_convert(caller who, cuda_context const& ctx, T const* in, std::span<float> out) {
  launch(who, ctx, convert_to_float<T>, word_blocks(who, std::ssize(out)), word_threads, in,
         out.data(), std::ssize(out));
}

//! The residual of shard-relative elements, as it is.
struct kept_residual {
  float const* residual;
  [[nodiscard]] __device__ float operator()(std::int64_t i) const { return residual[i]; }
};

//! The residual with this step's gradient in it.
template <class Gradient>
struct accumulated_residual {
  Gradient const* gradient;
  float const* residual;
  optimizer_state const* state;
  [[nodiscard]] __device__ float operator()(std::int64_t i) const {
    return fmadd(state->coefficient, static_cast<float>(gradient[i]), residual[i]);
  }
};

//! A coordinate_statistic as a statistic of shard-relative indices.
template <class Statistic, class Residual>
struct shard_score {
  Statistic statistic;
  Residual residual;
  float const* m;
  std::uint16_t const* age;
  std::int64_t begin;
  optimizer_state const* state;
  std::int64_t lag;

  [[nodiscard]] __device__ float operator()(std::int64_t i) const {
    return statistic(statistic_input{.moment = m[i],
                                     .residual = residual(i),
                                     .age = static_cast<float>(age[i]),
                                     .element = begin + i,
                                     .step = state->steps + lag});
  }
};

}  // namespace scape::detail::cuda
