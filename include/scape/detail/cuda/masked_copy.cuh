// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Moving elements between a vector and the packed values under a mask.

#include <cstdint>

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
  gate step;

  [[nodiscard]] __device__ bool done() const { return step.closed(); }
  [[nodiscard]] __device__ T load(masked_element const& e) const {
    return e.position < capacity ? packed[e.position] : vector[e.index];
  }
  __device__ void store(masked_element const& e, T x) const {
    if (!undelivered<T>::at(packed + ranks.before_shard(e.shard))) vector[e.index] = x;
  }
};

//! Up to 64 places in an array, by value.
struct place_list {
  static constexpr int capacity = 64;
  int count = 0;
  std::int64_t at[capacity] = {};
};

//! Marks the places of a list as not yet written by a collective; one block of `capacity` threads.
template <class T>
__global__ void mark_undelivered(T* values, place_list places) {
  if (static_cast<int>(threadIdx.x) < places.count) {
    undelivered<T>::mark(values + places.at[threadIdx.x]);
  }
}

//! Enqueues the mark of the first value, if there is one.
template <class T>
void mark_first(caller who, cuda_context const& ctx, std::span<T> values) {
  if (values.empty()) return;
  place_list first;
  first.count = 1;
  launch(who, ctx, mark_undelivered<T>, 1, place_list::capacity, values.data(), first);
}

}  // namespace scape::detail::cuda
