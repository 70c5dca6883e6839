// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of lagged_mask_allgather that hold on every backend.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <scape/lagged_mask_allgather.hpp>

#include "support/counting_communicator.hpp"
#include "support/masked_buffers.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {

template <class Backend>
using lagged_masks = lagged_mask_allgather<typename Backend::communicator>;
template <class Backend>
using mask_storage = typename Backend::template vector<mask_word>;

inline mask_word mask_word_of(int rank, std::int64_t step, std::int64_t w) {
  return scramble(1, at(rank), at(step), at(w));
}

inline void fill_mask(std::span<mask_word> local, int rank, std::int64_t step) {
  for (std::int64_t w = 0; w < std::ssize(local); ++w) local[at(w)] = mask_word_of(rank, step, w);
}

inline bool is_mask_of(std::span<mask_word const> global, layout const& l, std::int64_t step) {
  if (std::ssize(global) != l.mask_words()) return false;
  for (int p = 0; p < l.shards(); ++p) {
    for (std::int64_t w = 0; w < l.words_per_shard(); ++w) {
      if (global[at(p * l.words_per_shard() + w)] != mask_word_of(p, step, w)) return false;
    }
  }
  return true;
}

//! 12 steps; masks are sent on one stream and waited for on another, where there are streams.
template <class Backend>
void check_ring(typename Backend::communicator& comm, layout const& l, int lag) {
  mask_storage<Backend> storage(at(lagged_masks<Backend>::storage_words(l, lag)));
  lagged_masks<Backend> masks(l, comm.rank(), lag, storage);
  bool right = true, previous = true;
  Backend::run(0, [&](auto const& sends) {
    Backend::run(0, [&](auto const& ctx) {
      auto const start = [&](std::int64_t step) {
        fill_mask(masks.local(step), comm.rank(), step);
        masks.start(sends, comm, step);
      };
      auto const arrived = [&](std::int64_t step) {
        auto const mask = masks.wait(ctx, step);
        complete(comm, ctx);
        return is_mask_of(mask, l, step);
      };
      for (std::int64_t s = 0; s < lag; ++s) start(s);
      for (std::int64_t t = 0; t < 12; ++t) {
        if (lag == 0) start(t);
        right = right && arrived(t);
        right = right && arrived(t);  // again: the same
        if (t > 0) previous = previous && is_mask_of(masks.global(t - 1), l, t - 1);
        if (lag > 0) start(t + lag);
      }
      masks.wait_all(ctx);
      complete(comm, ctx);
      for (std::int64_t t = 12; t < 12 + lag; ++t) {
        right = right && is_mask_of(masks.global(t), l, t);
      }
    });
  });
  CHECK(right);
  CHECK(previous);
}

TEST_CASE_TEMPLATE_DEFINE(
    "a mask is used lag steps after it was made, and the one before stays readable", Backend,
    lagged_ring) {
  for (int const ranks : {1, 2, 3, 5, 8}) {
    if (!Backend::has_ranks(ranks)) continue;
    Backend::ranks(ranks, [&](auto& comm) {
      for (auto const& l : some_layouts(ranks)) {
        if (Backend::cuda && l.size() != 0 && l.size() != 65 && l.size() < 700) continue;
        for (int const lag : {0, 1, 2, 4}) {
          CAPTURE(ranks);
          CAPTURE(lag);
          check_ring<Backend>(comm, l, lag);
        }
      }
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("slots depend on the step alone", Backend, lagged_slots) {
  using masks_type = lagged_masks<Backend>;
  layout const l(200, 2);
  CHECK(masks_type::slots(0) == 2);
  CHECK(masks_type::slots(1) == 2);
  CHECK(masks_type::slots(4) == 5);
  CHECK(masks_type::storage_words(l, 4) == 5 * l.mask_words());
  mask_storage<Backend> storage(at(masks_type::storage_words(l, 2)));
  masks_type const masks(l, 1, 2, storage);
  CHECK(masks.lag() == 2);
  for (std::int64_t s = 0; s < 9; ++s) {
    CHECK(masks.global(s).data() == storage.data() + (s % 3) * l.mask_words());
    CHECK(masks.local(s).data() == masks.global(s).data() + l.words_per_shard());
    CHECK(std::ssize(masks.local(s)) == l.words_per_shard());
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "one all-gather per mask, of the predicted bytes, waited for by none before its time", Backend,
    lagged_traffic) {
  if (!Backend::has_ranks(3)) return;
  using counting = counting_communicator<typename Backend::communicator>;
  Backend::ranks(3, [&](auto& inner) {
    for (auto const& l : some_layouts(3)) {
      counting comm(inner);
      mask_storage<Backend> storage(at(lagged_mask_allgather<counting>::storage_words(l, 3)));
      lagged_mask_allgather<counting> masks(l, comm.rank(), 3, storage);
      Backend::run(0, [&](auto const& ctx) {
        for (std::int64_t s = 0; s < 3; ++s) {
          if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          fill_mask(masks.local(s), comm.rank(), s);
          masks.start(ctx, comm, s);
        }
        CHECK(comm.gathers == traffic{3, 3 * l.mask_wire_bytes()});
        for (std::int64_t s = 0; s < 3; ++s) {
          auto const mask = masks.wait(ctx, s);
          complete(inner, ctx);
          CHECK(is_mask_of(mask, l, s));
        }
      });
      CHECK(comm.gathers.calls == 3);
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("wrong uses are refused", Backend, lagged_arguments) {
  using masks_type = lagged_masks<Backend>;
  layout const l(200, 2);
  mask_storage<Backend> storage(at(masks_type::storage_words(l, 1)));
  CHECK(rejects([&] { masks_type(l, 0, -1, storage); }, {"lagged_mask_allgather", "negative"}));
  CHECK(rejects([&] { masks_type(l, 0, 2, storage); }, {"storage", "8", "12"}));
  for (int const rank : {-1, 2}) {
    CHECK(rejects([&] { masks_type(l, rank, 1, storage); }, {"rank", std::to_string(rank), "2"}));
  }
  Backend::ranks(1, [&](auto& comm) {
    layout const one(100, 1);
    mask_storage<Backend> small(at(masks_type::storage_words(one, 1)));
    Backend::run(0, [&](auto const& ctx) {
      masks_type masks(l, 0, 1, storage);
      CHECK(rejects([&] { masks.start(ctx, comm, 0); }, {"size is 1", "expected 2"}));
      masks_type alone(one, 0, 1, small);
      alone.start(ctx, comm, 3);
      CHECK(rejects([&] { alone.start(ctx, comm, 5); }, {"in flight"}));
      alone.wait(ctx, 3);
      CHECK_NOTHROW(alone.start(ctx, comm, 5));
      alone.wait_all(ctx);
    });
  });
}

TEST_CASE_TEMPLATE_DEFINE("a peer's failure shows when its mask is waited for", Backend,
                          lagged_lost_peer) {
  if (!Backend::has_ranks(3)) return;
  layout const l(200, 3);
  auto const body = [&](auto& comm) {
    if (comm.rank() == 1) throw std::runtime_error("lost");
    mask_storage<Backend> storage(at(lagged_masks<Backend>::storage_words(l, 1)));
    lagged_masks<Backend> masks(l, comm.rank(), 1, storage);
    Backend::run(0, [&](auto const& ctx) {
      int peer = -2;
      try {
        masks.start(ctx, comm, 0);
        masks.wait(ctx, 0);
        complete(comm, ctx);
      } catch (peer_error const& e) {
        peer = e.peer();
      }
      CHECK(peer == (Backend::cuda ? -1 : 1));
    });
  };
  CHECK_THROWS_AS(
      Backend::ranks(3, body,
                     Backend::cuda ? std::chrono::milliseconds(300) : std::chrono::seconds(20)),
      std::runtime_error);
}

}  // namespace scape::testing
