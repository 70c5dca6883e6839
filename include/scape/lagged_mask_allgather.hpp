// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Masks travel behind the computation and are used `lag` steps after they were made.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <scape/concepts.hpp>
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
    detail::expect_equal("lagged_mask_allgather", "the communicator's size", comm.size(),
                         layout_->shards(), "a layout has one shard per rank");
    detail::expect(!in_flight_[slot(step)], "lagged_mask_allgather",
                   "the slot's previous mask is still in flight; wait for it first");
    in_flight_[slot(step)] = comm.all_gather(ctx, std::span<mask_word const>(local(step)),
                                             global(step), layout_->mask_counts());
  }

  //! Completes the mask of `step` if it is in flight and returns it.
  std::span<mask_word const> wait(context_type const& ctx, std::int64_t step) {
    auto& handle = in_flight_[slot(step)];
    if (handle) {
      auto taken = std::move(*handle);
      handle.reset();
      taken.wait(ctx);
    }
    return global(step);
  }

  //! Whether any mask is in flight.
  [[nodiscard]] bool in_flight() const noexcept {
    return std::ranges::any_of(in_flight_, [](auto const& handle) { return handle.has_value(); });
  }

  //! Completes everything in flight.
  void wait_all(context_type const& ctx) {
    for (std::int64_t s = 0; s < slots(lag_); ++s) wait(ctx, s);
  }

 private:
  [[nodiscard]] std::size_t slot(std::int64_t step) const noexcept {
    return static_cast<std::size_t>(step % slots(lag_));
  }

  layout const* layout_;
  int rank_;
  int lag_;
  std::span<mask_word> storage_;
  std::vector<std::optional<typename C::handle_type>> in_flight_;
};

}  // namespace scape
