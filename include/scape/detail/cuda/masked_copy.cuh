// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Moving elements between a vector and the packed values under a mask.

#include <cstdint>
#include <span>

#include <scape/detail/cuda/gate.cuh>
#include <scape/detail/cuda/masked_pass.cuh>

namespace scape::detail::cuda {

//! packed[r] = vector[i], with i the r-th set bit.
template <class T>
struct gather_op {
  static constexpr bool dense = false;
  static constexpr int words = masked_pass_tuning::copy_words;
  using value = T;

  T const* vector;
  T* packed;
  std::int64_t capacity;

  [[nodiscard]] __device__ bool done() const { return false; }
  [[nodiscard]] __device__ T load(masked_element const& e) const { return vector[e.index]; }
  __device__ void store(masked_element const& e, T x) const {
    if (e.position < capacity) packed[e.position] = x;
  }
};

//! vector[i] = packed[r], with i the r-th set bit, for shards whose values were delivered.
template <class T>
struct scatter_op {
  static constexpr bool dense = false;
  static constexpr int words = masked_pass_tuning::copy_words;
  using value = T;

  T const* packed;
  std::int64_t capacity;
  T* vector;
  mask_ranks::view ranks;
  int shards;
  gate step;

  [[nodiscard]] __device__ bool done() const { return step.closed(); }
  [[nodiscard]] __device__ T load(masked_element const& e) const {
    return e.position < capacity ? packed[e.position] : vector[e.index];
  }
  __device__ void store(masked_element const& e, T x) const {
    if (delivered(e.shard)) vector[e.index] = x;
  }

 private:
  [[nodiscard]] __device__ bool delivered(int shard) const {
    auto const begin = ranks.before_shard(shard);
    auto const end = shard + 1 < shards ? ranks.before_shard(shard + 1) : capacity;
    return !undelivered<T>::at(packed + begin, min(end, capacity) - begin);
  }
};

//! Up to 64 blocks of an array, by value.
struct block_list {
  static constexpr int capacity = 64;
  int count = 0;
  std::int64_t begin[capacity] = {};
  std::int64_t length[capacity] = {};

  void add(std::int64_t first, std::int64_t elements) {
    begin[count] = first;
    length[count++] = elements;
  }
};

//! Marks the blocks of a list as not yet written by a collective; `capacity` threads.
template <class T>
__global__ void mark_undelivered(T* values, block_list blocks) {
  auto const i = static_cast<int>(threadIdx.x);
  if (i < blocks.count) undelivered<T>::mark(values + blocks.begin[i], blocks.length[i]);
}

template <class T>
void enqueue_mark(caller who, cuda_context const& ctx, T* values, block_list const& blocks) {
  launch(who, ctx, mark_undelivered<T>, blocks.count > 0 ? 1 : 0, block_list::capacity, values,
         blocks);
}

//! Marks all of `values` as one block.
template <class T>
void enqueue_mark(caller who, cuda_context const& ctx, std::span<T> values) {
  block_list blocks;
  if (!values.empty()) blocks.add(0, std::ssize(values));
  enqueue_mark(who, ctx, values.data(), blocks);
}

}  // namespace scape::detail::cuda
