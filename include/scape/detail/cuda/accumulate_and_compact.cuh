// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The fused pass of a sparse step on a stream, and its undoing.

#include <cstdint>

#include <scape/detail/accumulate_and_split.hpp>
#include <scape/detail/cuda/gate.cuh>
#include <scape/detail/cuda/masked_pass.cuh>

namespace scape::detail::cuda {

//! A number known at the launch, or one that is in device memory by the time the kernel runs.
template <class T>
struct scalar_source {
  T value = {};
  T const* memory = nullptr;
  [[nodiscard]] __device__ T get() const { return memory == nullptr ? value : *memory; }
};

//! u = coefficient * gradient + residual; see sparse_reduce_scatter. A bit beyond `capacity` values
//! is treated as if it were not set.
template <class Wire, class Gradient>
struct accumulate_and_compact_op {
  static constexpr bool dense = true;
  static constexpr int words = masked_pass_tuning::accumulate_words;
  using value = float;

  Gradient const* gradient;
  float* residual;  //!< of element `residual_begin` and on
  std::int64_t residual_begin;
  scalar_source<float> coefficient;
  float limit;
  Wire* packed;
  std::int64_t capacity;
  gate step;

  [[nodiscard]] __device__ bool done() const { return step.skips(); }
  [[nodiscard]] __device__ float load(masked_element const& e) const {
    return accumulate(coefficient.get(), gradient[e.index], residual[e.index - residual_begin]);
  }
  __device__ void store(masked_element const& e, float u) const {
    auto rest = u;
    if (e.set && e.position < capacity) split(u, limit, packed[e.position], rest);
    residual[e.index - residual_begin] = rest;
  }
};

//! If the collective failed, the residual becomes what it was before its values were taken.
template <class Wire>
struct return_op {
  static constexpr bool dense = false;
  static constexpr int words = masked_pass_tuning::copy_words;
  using value = float;

  Wire const* packed;
  std::int64_t capacity;
  float* residual;  //!< of element `residual_begin` and on
  std::int64_t residual_begin;
  gate step;

  [[nodiscard]] __device__ bool done() const { return step.skips() || !step.fails(); }
  [[nodiscard]] __device__ float load(masked_element const& e) const {
    return residual[e.index - residual_begin];
  }
  __device__ void store(masked_element const& e, float rest) const {
    if (e.position < capacity) {
      residual[e.index - residual_begin] = rest + static_cast<float>(packed[e.position]);
    }
  }
};

}  // namespace scape::detail::cuda
