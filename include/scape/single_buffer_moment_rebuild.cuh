// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! single_buffer_moment_rebuild on a stream.

#include <cstdint>
#include <span>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/masked_rebuild.cuh>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/single_buffer_moment_rebuild.hpp>

namespace scape {

//! Scratch in device memory.
inline std::size_t single_buffer_moment_rebuild_bytes(layout const& layout) {
  return detail::cuda::mask_ranks::scratch_bytes(layout.words_per_shard(), 1);
}

//! The same as on the host, enqueued on ctx.stream. The mask is not read here, so a bit beyond the
//! given values, beyond the shard's elements or of a frozen one is treated as unset, not reported.
//!
//! @param ctx  scratch: single_buffer_moment_rebuild_bytes(layout)
template <class Rule, class Wire>
void single_buffer_moment_rebuild(cuda_context const& ctx, layout const& layout, int shard,
                                  std::span<mask_word const> mask, std::span<Wire const> values,
                                  rebuild_scalars const& scalars, unmasked_moment unmasked,
                                  moment_state state, std::span<float> weights) {
  detail::cuda::nvtx_range const range("single_buffer_moment_rebuild");
  constexpr auto op = "single_buffer_moment_rebuild";
  detail::expect_current_device(op, ctx);
  detail::expect_rebuilt<Rule>(op, layout, shard, mask, state, weights.size());
  carver scratch(ctx.scratch, op);
  detail::cuda::mask_ranks const ranks(op, ctx, mask, layout.words_per_shard(), scratch, shard);
  detail::cuda::masked_rebuild<Rule>(
      op, ctx, layout, shard, ranks, 0, values, {scalars}, unmasked == unmasked_moment::decay,
      detail::cuda::shard_arrays<float>{state.m.data(), state.v.data(), state.age.data(),
                                        weights.data(), nullptr});
}

}  // namespace scape
