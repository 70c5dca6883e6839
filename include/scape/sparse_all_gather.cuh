// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! sparse_all_gather on a stream.

#include <span>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/detail/cuda/sparse_collectives.cuh>
#include <scape/detail/plan_arguments.hpp>
#include <scape/sparse_all_gather.hpp>
#include <scape/sparse_reduce_scatter.cuh>

namespace scape {

//! The same as on the host, enqueued on ctx.stream outside of any NCCL group.
//!
//! @param ctx  scratch: sparse_collective_bytes<T>(layout, plan.total())
//! As for sparse_reduce_scatter, bits past the plan's total are treated as unset. If the collective
//! fails, the call throws or, later, comm.synchronize(). Values of float and of 16-bit floats that
//! were not delivered are then not written: a shard's values count as such if the first 16 bytes of
//! them, or all if they are fewer, are still the NaNs that mark their places
//! (detail/cuda/gate.cuh). Only values that equal these marks could be mistaken for them.
template <cuda_communicator C, class T>
requires has_all_gather<C, T>
void sparse_all_gather(typename C::context_type const& ctx, C& comm, layout const& layout,
                       send_plan const& plan, std::span<mask_word const> mask,
                       std::span<T> vector) {
  detail::cuda::nvtx_range const range("sparse_all_gather");
  detail::caller const op{"sparse_all_gather", comm.rank(), comm.size()};
  detail::expect_device_of(op, ctx, comm);
  detail::expect_one_shard_per_rank(op, layout);
  detail::expect_plan(op, layout, plan, mask);
  detail::expect_equal(op, "the length of the vector", std::ssize(vector), layout.size());
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<T>(plan.total());
  detail::cuda::mask_ranks const ranks(op, ctx, mask, layout.words_per_shard(), scratch);
  detail::cuda::all_gather_packed(op, ctx, comm, layout, plan, ranks, packed, vector.data(),
                                  {nullptr, detail::cuda::failure_flag_of(comm)});
}

}  // namespace scape
