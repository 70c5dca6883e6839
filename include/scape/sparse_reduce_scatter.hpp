// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Sums the values under a common mask over the ranks; each rank receives those of its shard.

#include <cstdint>
#include <functional>
#include <span>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/masked_blocks.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>
#include <scape/workspace.hpp>

namespace scape {

//! Scratch of sparse_reduce_scatter and sparse_all_gather for up to `values` values of type T.
template <class T>
[[nodiscard]] std::size_t sparse_collective_bytes(std::int64_t values) noexcept {
  return workspace_size().add<T>(values).bytes();
}

//! Accumulates and sends in one pass over gradient and residual:
//!
//!     u = coefficient * gradient + residual
//!     in the mask:      sent = u rounded to Wire; residual = u - sent
//!     not in the mask:  residual = u
//!
//! then one reduce-scatter: `values` receives the sums of `sent` over all ranks for this rank's
//! shard, in index order. sent + residual = u exactly, on every wire; the sum of 16-bit values is
//! rounded once to Wire. On a float16 wire a rank sends at most the largest power of two up to
//! 65504 / P of a coordinate in one step, so that finite values have a finite sum.
//!
//! @param mask      the global mask, layout.mask_words() words, the same on every rank
//! @param plan      its counts: plan.counts[p] bits in shard p's block
//! @param gradient  n elements of float, bfloat16 or float16
//! @param residual  n elements
//! @param values    plan.counts[rank] elements
//! @param ctx       scratch: sparse_collective_bytes<Wire>(plan.total()); blocks until done
//! Throws argument_error before anything is changed. If the collective itself fails, what was
//! taken from the residual is put back first: it then holds u, and nothing is lost.
template <communicator C, class Wire, class Gradient>
requires has_reduce_scatter<C, Wire>
void sparse_reduce_scatter(typename C::context_type const& ctx, C& comm, layout const& layout,
                           send_plan const& plan, std::span<mask_word const> mask,
                           std::span<Gradient const> gradient, std::span<float> residual,
                           float coefficient, std::span<Wire> values) {
  detail::caller const op{"sparse_reduce_scatter", comm.rank(), comm.size()};
  detail::expect_one_shard_per_rank(op, layout);
  detail::expect_masked_blocks(op, layout, plan, mask);
  detail::expect_accumulated(op, layout, std::ssize(gradient), std::ssize(residual),
                             std::ssize(values),
                             plan.counts[static_cast<std::size_t>(comm.rank())]);
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<Wire>(plan.total());
  detail::accumulate_and_compact_blocks(ctx, comm.size(), layout, plan, mask, gradient.data(),
                                        residual.data(), coefficient, packed.data());
  try {
    comm.reduce_scatter(ctx, std::span<Wire const>(packed), values, plan.counts, std::plus<>())
        .wait(ctx);
  } catch (...) {
    detail::return_blocks(layout, plan, mask, packed.data(), residual.data());
    throw;
  }
}

//! Sends a dense vector's values under the mask and keeps no residual.
//!
//! @param dense   n elements
//! @param values  plan.counts[rank] sums; all else as above
template <communicator C, class T>
requires has_reduce_scatter<C, T>
void sparse_reduce_scatter(typename C::context_type const& ctx, C& comm, layout const& layout,
                           send_plan const& plan, std::span<mask_word const> mask,
                           std::span<T const> dense, std::span<T> values) {
  detail::caller const op{"sparse_reduce_scatter", comm.rank(), comm.size()};
  detail::expect_one_shard_per_rank(op, layout);
  detail::expect_masked_blocks(op, layout, plan, mask);
  detail::expect_equal(op, "the length of the dense vector", std::ssize(dense), layout.size());
  detail::expect_equal(op, "the number of values", std::ssize(values),
                       plan.counts[static_cast<std::size_t>(comm.rank())], "as the plan says");
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<T>(plan.total());
  detail::gather_blocks(ctx, layout, plan, mask, dense.data(), packed.data());
  comm.reduce_scatter(ctx, std::span<T const>(packed), values, plan.counts, std::plus<>())
      .wait(ctx);
}

}  // namespace scape
