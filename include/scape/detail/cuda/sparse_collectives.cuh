// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The masked collectives below their argument checks, for callers that rank the mask once and
//! gate the whole step.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/detail/cuda/accumulate_and_compact.cuh>
#include <scape/detail/cuda/masked_copy.cuh>
#include <scape/detail/cuda/masked_pass.cuh>
#include <scape/float16.hpp>
#include <scape/layout.hpp>

namespace scape::detail::cuda {

//! The word by which a communicator tells kernels that it failed, if it has one.
template <class C>
int const* failure_flag_of(C const& comm) {
  if constexpr (requires {
                  { comm.failure_flag() } -> std::convertible_to<int const*>;
                }) {
    return comm.failure_flag();
  } else {
    return nullptr;
  }
}

//! A part of the residual and where it is.
struct residual_part {
  index_range elements;
  float* data;  //!< of element `begin` and on
  std::int64_t begin = 0;
};

//! Enqueues the pass over one part of the residual; `ranks` take part in the sum.
template <class Wire, class Gradient>
void accumulate_and_compact(caller who, cuda_context const& ctx, layout const& layout,
                            mask_ranks const& mask, Gradient const* gradient,
                            residual_part const& residual, scalar_source<float> coefficient,
                            std::span<Wire> packed, int ranks, gate const& step = {}) {
  enqueue_masked_pass(who, ctx, layout, 0, layout.shards(), residual.elements, mask,
                      accumulate_and_compact_op<Wire, Gradient>{
                          gradient, residual.data, residual.begin, coefficient,
                          wire_limit<Wire>(ranks), packed.data(), std::ssize(packed), step});
}

//! Calls send(), which starts a collective on ctx that is to write `result`. Behind it, or at once
//! if it throws, `failed` in device memory becomes 1 if it did not, else 0; if so, passes give the
//! residual back what was packed.
template <class Wire, class Send>
void send_packed(caller who, cuda_context const& ctx, layout const& layout, mask_ranks const& mask,
                 std::span<Wire const> packed, std::span<Wire> result,
                 std::span<residual_part const> residual, gate const& step, int* failed,
                 Send const& send) {
  auto const give_back = [&](bool known) {
    launch(who, ctx, latch_failure<Wire>, 1, 1, result.data(), std::ssize(result), known, step,
           failed);
    for (auto const& part : residual) {
      enqueue_masked_pass(who, ctx, layout, 0, layout.shards(), part.elements, mask,
                          return_op<Wire>{packed.data(), std::ssize(packed), part.data, part.begin,
                                          gate{step.skipped, failed}});
    }
  };
  enqueue_mark(who, ctx, result);
  try {
    send();
  } catch (...) {
    give_back(true);
    throw;
  }
  give_back(false);
}

inline std::int64_t receipt_count(layout const& layout) { return layout.shards() + 1; }

//! The reduce-scatter of packed values. A rank that gets none would not see it fail: if there is
//! one, a second reduce-scatter follows, of one value per rank, which does not arrive where the
//! first one failed.
template <class C, class Wire>
struct packed_reduce_scatter {
  C& comm;
  send_plan const& plan;
  std::span<Wire const> packed;
  std::span<Wire> values;
  std::span<Wire> receipts;  //!< receipt_count() of them

  //! What this rank gets of it.
  [[nodiscard]] std::span<Wire> result() const {
    return values.empty() && receipted() ? receipts.last(1) : values;
  }
  void operator()(caller who, cuda_context const& ctx) const {
    comm.reduce_scatter(ctx, packed, values, plan.counts, std::plus<>()).wait(ctx);
    if (!receipted()) return;
    auto const sent = receipts.first(receipts.size() - 1);
    check_cuda(cudaMemsetAsync(sent.data(), 0, sent.size_bytes(), ctx.stream), who,
               "cudaMemsetAsync");
    std::vector<std::int64_t> const one_each(sent.size(), 1);
    comm.reduce_scatter(ctx, std::span<Wire const>(sent), receipts.last(1), one_each, std::plus<>())
        .wait(ctx);
  }

 private:
  [[nodiscard]] bool receipted() const {
    return plan.total() > 0 && std::ranges::count(plan.counts, 0) > 0;
  }
};

//! Gathers this rank's elements of `vector` into their place of `packed`, all-gathers, and
//! overwrites those of the other shards. What was not delivered is not overwritten.
template <class C, class T>
void all_gather_packed(caller who, cuda_context const& ctx, C& comm, layout const& layout,
                       send_plan const& plan, mask_ranks const& mask, std::span<T> packed,
                       T* vector, gate const& step) {
  auto const rank = comm.rank();
  auto const own =
      packed.subspan(static_cast<std::size_t>(plan.offsets[static_cast<std::size_t>(rank)]),
                     static_cast<std::size_t>(plan.counts[static_cast<std::size_t>(rank)]));
  auto const total = plan.total();
  if constexpr (undelivered<T>::exists) {
    block_list others;
    for (int p = 0; p < layout.shards(); ++p) {
      auto const shard = static_cast<std::size_t>(p);
      if (p != rank && plan.counts[shard] > 0) others.add(plan.offsets[shard], plan.counts[shard]);
      if (others.count == block_list::capacity || p + 1 == layout.shards()) {
        enqueue_mark(who, ctx, packed.data(), others);
        others.count = 0;
      }
    }
  }
  index_range const all{0, layout.size()};
  enqueue_masked_pass(who, ctx, layout, rank, rank + 1, all, mask,
                      gather_op<T>{vector, packed.data(), total});
  comm.all_gather(ctx, std::span<T const>(own), packed, plan.counts).wait(ctx);
  scatter_op<T> const scatter{packed.data(), total, vector, mask.get(), layout.shards(), step};
  enqueue_masked_pass(who, ctx, layout, 0, rank, all, mask, scatter);
  enqueue_masked_pass(who, ctx, layout, rank + 1, layout.shards(), all, mask, scatter);
}

}  // namespace scape::detail::cuda
