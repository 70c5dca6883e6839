// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! sparse_all_reduce on a stream.

#include <functional>
#include <span>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/detail/cuda/sparse_collectives.cuh>
#include <scape/detail/plan_arguments.hpp>
#include <scape/sparse_all_reduce.hpp>
#include <scape/sparse_reduce_scatter.cuh>

namespace scape {

//! The same as on the host, enqueued on ctx.stream outside of any NCCL group; failures as for
//! sparse_reduce_scatter.
//!
//! @param ctx  scratch: sparse_collective_bytes<Wire>(layout, plan.total())
template <cuda_communicator C, class Wire, class Gradient>
requires has_all_reduce<C, Wire>
void sparse_all_reduce(typename C::context_type const& ctx, C& comm, layout const& layout,
                       send_plan const& plan, std::span<mask_word const> mask,
                       std::span<Gradient const> gradient, std::span<float> residual,
                       float coefficient, std::span<Wire> values) {
  detail::cuda::nvtx_range const range("sparse_all_reduce");
  detail::caller const op{"sparse_all_reduce", comm.rank(), comm.size()};
  detail::expect_device_of(op, ctx, comm);
  detail::expect_plan(op, layout, plan, mask);
  detail::expect_accumulated(op, layout, std::ssize(gradient), std::ssize(residual),
                             std::ssize(values), plan.total());
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<Wire>(plan.total());
  auto const failed = scratch.take<int>(1);
  detail::cuda::mask_ranks const ranks(op, ctx, mask, layout.words_per_shard(), scratch);
  detail::cuda::residual_part const all{{0, layout.size()}, residual.data()};
  detail::cuda::accumulate_and_compact(op, ctx, layout, ranks, gradient.data(), all, {coefficient},
                                       packed, comm.size());
  detail::cuda::send_packed<Wire>(
      op, ctx, layout, ranks, packed, values, std::span(&all, 1),
      {nullptr, detail::cuda::failure_flag_of(comm)}, failed.data(), [&] {
        comm.all_reduce(ctx, std::span<Wire const>(packed), values, std::plus<>()).wait(ctx);
      });
}

}  // namespace scape
