// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Replicated data parallelism: every rank receives the sums under a common mask.

#include <cstdint>
#include <functional>
#include <span>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/masked_blocks.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>
#include <scape/sparse_reduce_scatter.hpp>
#include <scape/workspace.hpp>

namespace scape {

//! The accumulation of sparse_reduce_scatter followed by one all-reduce: `values` receives the
//! sums over all ranks for the whole mask. For trainers that keep the whole optimizer state on
//! every rank; the mask must then come from state that is equal on all of them. The layout may
//! have any number of shards.
//!
//! @param values  plan.total() elements, all else as for sparse_reduce_scatter
//! @param ctx     scratch: sparse_collective_bytes<Wire>(plan.total()); blocks until done
//! If the collective fails, what was taken from the residual is put back first.
template <communicator C, class Wire, class Gradient>
requires has_all_reduce<C, Wire>
void sparse_all_reduce(typename C::context_type const& ctx, C& comm, layout const& layout,
                       send_plan const& plan, std::span<mask_word const> mask,
                       std::span<Gradient const> gradient, std::span<float> residual,
                       float coefficient, std::span<Wire> values) {
  detail::caller const op{"sparse_all_reduce", comm.rank(), comm.size()};
  detail::expect_masked_blocks(op, layout, plan, mask);
  detail::expect_accumulated(op, layout, std::ssize(gradient), std::ssize(residual),
                             std::ssize(values), plan.total());
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<Wire>(plan.total());
  detail::accumulate_and_compact_blocks(ctx, comm.size(), layout, plan, mask, gradient.data(),
                                        residual.data(), coefficient, packed.data());
  try {
    comm.all_reduce(ctx, std::span<Wire const>(packed), values, std::plus<>()).wait(ctx);
  } catch (...) {
    detail::return_blocks(layout, plan, mask, packed.data(), residual.data());
    throw;
  }
}

}  // namespace scape
