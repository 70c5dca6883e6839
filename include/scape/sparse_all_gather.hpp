// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Spreads the elements that changed on their owners to every rank.

#include <cstdint>
#include <span>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/masked_blocks.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>
#include <scape/sparse_reduce_scatter.hpp>
#include <scape/workspace.hpp>

namespace scape {

//! Sends this rank's elements of `vector` under the mask, one all-gather, and overwrites those of
//! the other shards with what their owners sent. Elements outside the mask are not touched.
//!
//! @param mask    the global mask, layout.mask_words() words, the same on every rank
//! @param plan    its counts
//! @param vector  n elements of a trivially copyable type
//! @param ctx     scratch: sparse_collective_bytes<T>(plan.total()); blocks until done
//! Throws argument_error before anything is changed; after a peer_error `vector` is unchanged.
template <communicator C, class T>
requires has_all_gather<C, T>
void sparse_all_gather(typename C::context_type const& ctx, C& comm, layout const& layout,
                       send_plan const& plan, std::span<mask_word const> mask,
                       std::span<T> vector) {
  detail::caller const op{"sparse_all_gather", comm.rank(), comm.size()};
  detail::expect_one_shard_per_rank(op, layout);
  detail::expect_masked_blocks(op, layout, plan, mask);
  detail::expect_equal(op, "the length of the vector", std::ssize(vector), layout.size());
  carver scratch(ctx.scratch, op);
  auto const packed = scratch.take<T>(plan.total());
  auto const rank = comm.rank();
  auto const own =
      packed.subspan(static_cast<std::size_t>(plan.offsets[static_cast<std::size_t>(rank)]),
                     static_cast<std::size_t>(plan.counts[static_cast<std::size_t>(rank)]));
  detail::gather_block(ctx, layout, rank, mask, vector.data(), own.data());
  comm.all_gather(ctx, std::span<T const>(own), packed, plan.counts).wait(ctx);
  for (int p = 0; p < layout.shards(); ++p) {
    if (p == rank) continue;
    detail::scatter_block(ctx, layout, p, mask,
                          packed.data() + plan.offsets[static_cast<std::size_t>(p)], vector.data());
  }
}

}  // namespace scape
