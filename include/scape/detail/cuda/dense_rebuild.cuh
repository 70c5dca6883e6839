// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The passes of a dense step on a stream.

#include <cstdint>
#include <span>

#include <scape/detail/cuda/gate.cuh>
#include <scape/detail/cuda/masked_rebuild.cuh>
#include <scape/detail/cuda/optimizer_kernels.cuh>

namespace scape::detail::cuda {

template <class Gradient>
__global__ void scale_gradient(Gradient const* gradient, float* out, std::int64_t n,
                               optimizer_state const* state) {
  if (state->skipped != 0) return;
  for (auto j = grid_index(); j < n; j += grid_stride()) {
    out[j] = fmadd(state->coefficient, static_cast<float>(gradient[j]), 0.0F);
  }
}

//! out = coefficient * gradient
template <class Gradient>
void enqueue_scale(caller who, cuda_context const& ctx, std::span<Gradient const> gradient,
                   float* out, optimizer_state const* state) {
  launch(who, ctx, scale_gradient<Gradient>, word_blocks(who, std::ssize(gradient)), word_threads,
         gradient.data(), out, std::ssize(gradient), state);
}

template <class Rule>
__global__ void dense_rebuild(scale_table scales, index_range elements, float const* sums,
                              std::int64_t count, shard_arrays<float> shard,
                              rebuild_scalars const* scalars, gate step) {
  if (step.closed() || undelivered<float>::at(sums, count)) return;
  for (auto i = elements.begin + grid_index(); i < elements.end; i += grid_stride()) {
    auto const scale = scales.find(i);
    if (scales.frozen[scale]) continue;
    float no_second_moment = 0;
    auto* const v = Rule::keeps_second_moment ? shard.v + i : &no_second_moment;
    rebuild_element<Rule>(scales.apply(scale, *scalars), sums[i], 1.0F, shard.m[i], *v, shard.w[i]);
  }
}

//! Enqueues the update of all elements of a shard from their sums.
template <class Rule>
void enqueue_dense_rebuild(caller who, cuda_context const& ctx, layout const& layout, int shard,
                           std::span<float const> sums, rebuild_scalars const* scalars,
                           shard_arrays<float> const& arrays, gate const& step) {
  for_each_scale_table(layout, shard, [&](scale_table const& scales, index_range elements) {
    launch(who, ctx, dense_rebuild<Rule>, word_blocks(who, elements.size()), word_threads, scales,
           elements, sums.data(), std::ssize(sums), arrays, scalars, step);
  });
}

}  // namespace scape::detail::cuda
