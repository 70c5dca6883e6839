// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Masks travel behind the computation and are used `lag` steps after they were made.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/mask_indices.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>

namespace scape {

//! A ring of global masks, one slot for each step that is still of interest.
//!
//! The mask of step s lives in slot s mod slots(). Usage at step t: wait(ctx, t) gives the mask to
//! use now; write this rank's bits into local(t + lag), then start(ctx, comm, t + lag). With lag 0,
//! start and wait follow each other within the step. The mask of step t - 1 stays readable until
//! local(t + lag) is written.
//!
//! Which slot belongs to a step depends on the step alone, so a captured step can be replayed.
//!
//! On the wire a mask is its bits, or, on the host and if memory for it is given, a list of 16-bit
//! indices (detail/mask_indices.hpp) where that is shorter: below a density of about 1 in 16.
//! Which of the two follows from the plan, so all ranks agree without asking.
template <communicator C>
requires has_all_gather<C, mask_word>
class lagged_mask_allgather {
 public:
  using context_type = typename C::context_type;

  [[nodiscard]] static std::int64_t slots(int lag) noexcept {
    return std::int64_t{std::max(lag, 1)} + 1;
  }
  //! Words of the caller's storage.
  [[nodiscard]] static std::int64_t storage_words(layout const& layout, int lag) noexcept {
    return slots(lag) * layout.mask_words();
  }
  //! 16-bit words of further storage with which masks travel as indices where that is shorter; 0
  //! if it is not for this plan and denser ones.
  [[nodiscard]] static std::int64_t index_words(layout const& layout, int lag,
                                                send_plan const& sparsest) noexcept {
    return layout.mask_as_indices(sparsest) ? slots(lag) * slot_indices(layout) : 0;
  }

  //! Refers to `layout` and `storage` for as long as it lives; the words must start as zeros.
  lagged_mask_allgather(layout const& layout, int rank, int lag, std::span<mask_word> storage)
      : layout_(&layout), rank_(rank), lag_(lag), storage_(storage) {
    detail::expect(lag >= 0, "lagged_mask_allgather", "the lag is negative");
    detail::expect(rank >= 0 && rank < layout.shards(), "lagged_mask_allgather", [&] {
      return "rank " + std::to_string(rank) + " is not one of the layout's " +
             std::to_string(layout.shards());
    });
    detail::expect_equal("lagged_mask_allgather", "the length of the storage", std::ssize(storage),
                         storage_words(layout, lag), "see storage_words()");
    in_flight_.resize(static_cast<std::size_t>(slots(lag)));
  }
  //! The same with index_words() of storage for masks as indices.
  lagged_mask_allgather(layout const& layout, int rank, int lag, std::span<mask_word> storage,
                        std::span<std::uint16_t> indices) requires
      std::same_as<context_type, host_context> && has_all_gather<C, std::uint16_t>
      : lagged_mask_allgather(layout, rank, lag, storage) {
    detail::expect(indices.empty() || std::ssize(indices) == slots(lag) * slot_indices(layout),
                   "lagged_mask_allgather", [&] {
                     return "the storage for indices has " + std::to_string(indices.size()) +
                            " words, expected 0 or " +
                            std::to_string(slots(lag) * slot_indices(layout)) +
                            "; see index_words()";
                   });
    indices_ = indices;
    for (auto& f : in_flight_) f.counts.reserve(at(layout.shards()));
  }

  [[nodiscard]] int lag() const noexcept { return lag_; }

  //! The global mask of `step`, layout.mask_words() words.
  [[nodiscard]] std::span<mask_word> global(std::int64_t step) const noexcept {
    auto const words = static_cast<std::size_t>(layout_->mask_words());
    return storage_.subspan(slot(step) * words, words);
  }

  //! This rank's block of the mask of `step`, words_per_shard() words.
  [[nodiscard]] std::span<mask_word> local(std::int64_t step) const noexcept {
    auto const words = static_cast<std::size_t>(layout_->words_per_shard());
    return global(step).subspan(static_cast<std::size_t>(rank_) * words, words);
  }

  //! Starts gathering the mask of `step` in place. local(step) must hold this rank's bits.
  void start(context_type const& ctx, C& comm, std::int64_t step) {
    auto& taken = expect_free(comm, step);
    taken.handle = comm.all_gather(ctx, std::span<mask_word const>(local(step)), global(step),
                                   layout_->mask_counts());
  }

  //! The same with as many bits on every rank as the plan says, in the shorter form.
  void start(context_type const& ctx, C& comm, std::int64_t step, send_plan const& plan) requires
      std::same_as<context_type, host_context> && has_all_gather<C, std::uint16_t> {
    if (indices_.empty() || !layout_->mask_as_indices(plan)) return start(ctx, comm, step);
    auto& taken = expect_free(comm, step);
    detail::expect_equal({"lagged_mask_allgather", comm.rank(), comm.size()},
                         "the number of bits in this rank's mask", detail::count_bits(local(step)),
                         plan.counts[at(rank_)], "it does not match the plan");
    for (int p = 0; p < layout_->shards(); ++p) {
      taken.counts.push_back(layout_->index_words(plan, p));
    }
    auto const own = list(step, rank_);
    detail::mask_to_indices(local(step), layout_->shard_size(rank_), own);
    auto const all = indices_of(step).first(at(layout_->index_words(plan)));
    taken.handle = comm.all_gather(ctx, std::span<std::uint16_t const>(own), all, taken.counts);
  }

  //! Completes the mask of `step` if it is in flight and returns it.
  std::span<mask_word const> wait(context_type const& ctx, std::int64_t step) {
    auto& sent = in_flight_[slot(step)];
    if (sent.handle) {
      auto taken = std::move(*sent.handle);
      sent.handle.reset();
      taken.wait(ctx);
      if (!sent.counts.empty()) unpack(step);
    }
    return global(step);
  }

  //! Whether any mask is in flight.
  [[nodiscard]] bool in_flight() const noexcept {
    return std::ranges::any_of(in_flight_, [](auto const& f) { return f.handle.has_value(); });
  }

  //! Gives up what is in flight. Without it, these masks are undefined.
  void forget() noexcept {
    for (auto& f : in_flight_) f.handle.reset();
  }

  //! Completes everything in flight.
  void wait_all(context_type const& ctx) {
    for (std::int64_t s = 0; s < slots(lag_); ++s) wait(ctx, s);
  }

 private:
  struct flight {
    std::optional<typename C::handle_type> handle;
    std::vector<std::int64_t> counts;  // 16-bit words per rank, or none
  };

  static std::size_t at(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::size_t slot(std::int64_t step) const noexcept {
    return at(step % slots(lag_));
  }

  //! 16-bit words of one slot: as many as the bits take.
  static std::int64_t slot_indices(layout const& layout) noexcept {
    return layout.mask_words() * (mask_word_bits / 16);
  }
  [[nodiscard]] std::span<std::uint16_t> indices_of(std::int64_t step) const noexcept {
    auto const words = at(slot_indices(*layout_));
    return indices_.subspan(slot(step) * words, words);
  }
  //! One rank's part of them.
  [[nodiscard]] std::span<std::uint16_t> list(std::int64_t step, int p) const noexcept {
    auto const& counts = in_flight_[slot(step)].counts;
    auto const first = std::accumulate(counts.begin(), counts.begin() + p, std::int64_t{0});
    return indices_of(step).subspan(at(first), at(counts[at(p)]));
  }

  flight& expect_free(C const& comm, std::int64_t step) {
    detail::expect_equal("lagged_mask_allgather", "the communicator's size", comm.size(),
                         layout_->shards(), "a layout has one shard per rank");
    auto& free = in_flight_[slot(step)];
    detail::expect(!free.handle, "lagged_mask_allgather",
                   "the slot's previous mask is still in flight; wait for it first");
    free.counts.clear();
    return free;
  }

  void unpack(std::int64_t step) {
    auto const words = at(layout_->words_per_shard());
    for (int p = 0; p < layout_->shards(); ++p) {
      if (p == rank_) continue;
      auto const bits = global(step).subspan(at(p) * words, words);
      if (!detail::indices_to_mask(list(step, p), layout_->shard_size(p), bits)) {
        throw peer_error("lagged_mask_allgather",
                         "the mask that rank " + std::to_string(p) + " sent is damaged", p, rank_,
                         layout_->shards());
      }
    }
  }

  layout const* layout_;
  int rank_;
  int lag_;
  std::span<mask_word> storage_;
  std::span<std::uint16_t> indices_;
  std::vector<flight> in_flight_;
};

}  // namespace scape
