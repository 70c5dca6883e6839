// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! sparse_reduce_scatter on a stream.

#include <cstdint>
#include <functional>
#include <span>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/detail/cuda/sparse_collectives.cuh>
#include <scape/detail/plan_arguments.hpp>
#include <scape/sparse_reduce_scatter.hpp>

namespace scape {

//! Scratch of the masked collectives for up to `values` values of type T, in device memory.
template <class T>
[[nodiscard]] std::size_t sparse_collective_bytes(layout const& layout, std::int64_t values) {
  return workspace_size()
      .add<T>(values)
      .add_bytes(detail::cuda::mask_ranks::scratch_bytes(layout.words_per_shard(), layout.shards()))
      .template add<T>(detail::cuda::receipt_count(layout))
      .template add<int>(1)
      .bytes();
}

//! The same as on the host, enqueued on ctx.stream outside of any NCCL group: memory traffic is one
//! read of gradient and residual, one write of the residual, two reads of the mask. Gradient and
//! Wire may also be CUDA's __half and __nv_bfloat16.
//!
//! @param ctx  scratch: sparse_collective_bytes<Wire>(layout, plan.total())
//! The mask's bits are not checked against the plan; where it has more, those past the plan's total
//! are treated as unset. If the collective fails, the call throws or, later, comm.synchronize();
//! either way a kernel behind it puts back into the residual what was not delivered. Where a shard
//! sends nothing, a second collective, of one value per rank, tells its owner of a failure.
template <cuda_communicator C, class Wire, class Gradient>
requires has_reduce_scatter<C, Wire>
void sparse_reduce_scatter(typename C::context_type const& ctx, C& comm, layout const& layout,
                           send_plan const& plan, std::span<mask_word const> mask,
                           std::span<Gradient const> gradient, std::span<float> residual,
                           float coefficient, std::span<Wire> values) {
  detail::cuda::nvtx_range const range("sparse_reduce_scatter");
  detail::caller const op{"sparse_reduce_scatter", comm.rank(), comm.size()};
  detail::expect_device_of(op, ctx, comm);
  detail::expect_one_shard_per_rank(op, layout);
  detail::expect_plan(op, layout, plan, mask);
  detail::expect_accumulated(op, layout, std::ssize(gradient), std::ssize(residual),
                             std::ssize(values),
                             plan.counts[static_cast<std::size_t>(comm.rank())]);
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<Wire>(plan.total());
  detail::cuda::packed_reduce_scatter<C, Wire> const send{
      comm, plan, packed, values, scratch.take<Wire>(detail::cuda::receipt_count(layout))};
  auto const failed = scratch.take<int>(1);
  detail::cuda::mask_ranks const ranks(op, ctx, mask, layout.words_per_shard(), scratch);
  detail::cuda::residual_part const all{{0, layout.size()}, residual.data()};
  detail::cuda::accumulate_and_compact(op, ctx, layout, ranks, gradient.data(), all, {coefficient},
                                       packed, comm.size());
  detail::cuda::send_packed<Wire>(op, ctx, layout, ranks, packed, send.result(), std::span(&all, 1),
                                  {nullptr, detail::cuda::failure_flag_of(comm)}, failed.data(),
                                  [&] { send(op, ctx); });
}

//! The same for a dense vector's values, without a residual.
template <cuda_communicator C, class T>
requires has_reduce_scatter<C, T>
void sparse_reduce_scatter(typename C::context_type const& ctx, C& comm, layout const& layout,
                           send_plan const& plan, std::span<mask_word const> mask,
                           std::span<T const> dense, std::span<T> values) {
  detail::cuda::nvtx_range const range("sparse_reduce_scatter");
  detail::caller const op{"sparse_reduce_scatter", comm.rank(), comm.size()};
  detail::expect_device_of(op, ctx, comm);
  detail::expect_one_shard_per_rank(op, layout);
  detail::expect_plan(op, layout, plan, mask);
  detail::expect_equal(op, "the length of the dense vector", std::ssize(dense), layout.size());
  detail::expect_equal(op, "the number of values", std::ssize(values),
                       plan.counts[static_cast<std::size_t>(comm.rank())], "as the plan says");
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<T>(plan.total());
  detail::cuda::mask_ranks const ranks(op, ctx, mask, layout.words_per_shard(), scratch);
  detail::cuda::enqueue_masked_pass(
      op, ctx, layout, 0, layout.shards(), {0, layout.size()}, ranks,
      detail::cuda::gather_op<T>{dense.data(), packed.data(), plan.total()});
  comm.reduce_scatter(ctx, std::span<T const>(packed), values, plan.counts, std::plus<>())
      .wait(ctx);
}

}  // namespace scape
