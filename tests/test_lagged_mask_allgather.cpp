// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/lagged_mask_allgather.hpp>

#include "support/counting_communicator.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using scape::layout;
using scape::layout_options;
using scape::mask_word;
using scape::run_threads;
using scape::self_communicator;
using scape::thread_communicator;

using lagged = scape::lagged_mask_allgather<thread_communicator>;
using lagged_self = scape::lagged_mask_allgather<self_communicator>;

scape::host_context const ctx;

mask_word word_of(int rank, std::int64_t step, std::int64_t w) {
  return scramble(1, at(rank), at(step), at(w));
}

void fill(std::span<mask_word> local, int rank, std::int64_t step) {
  for (std::int64_t w = 0; w < std::ssize(local); ++w) local[at(w)] = word_of(rank, step, w);
}

bool is_mask_of(std::span<mask_word const> global, layout const& l, std::int64_t step) {
  if (std::ssize(global) != l.mask_words()) return false;
  for (int p = 0; p < l.shards(); ++p) {
    for (std::int64_t w = 0; w < l.words_per_shard(); ++w) {
      if (global[at(p * l.words_per_shard() + w)] != word_of(p, step, w)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("a mask is used lag steps after it was made, and the one before stays readable") {
  for (int const ranks : {1, 2, 3, 5}) {
    for (auto const& l : some_layouts(ranks)) {
      for (int const lag : {0, 1, 2, 4}) {
        CAPTURE(ranks);
        CAPTURE(lag);
        run_threads(ranks, [&](thread_communicator& comm) {
          std::vector<mask_word> storage(at(lagged::storage_words(l, lag)));
          lagged masks(l, comm.rank(), lag, storage);
          bool right = true, previous = true;
          for (std::int64_t s = 0; s < lag; ++s) {
            fill(masks.local(s), comm.rank(), s);
            masks.start(ctx, comm, s);
          }
          for (std::int64_t t = 0; t < 12; ++t) {
            if (lag == 0) {
              fill(masks.local(t), comm.rank(), t);
              masks.start(ctx, comm, t);
            }
            right = right && is_mask_of(masks.wait(ctx, t), l, t);
            right = right && is_mask_of(masks.wait(ctx, t), l, t);  // again: the same
            if (t > 0) previous = previous && is_mask_of(masks.global(t - 1), l, t - 1);
            if (lag > 0) {
              fill(masks.local(t + lag), comm.rank(), t + lag);
              masks.start(ctx, comm, t + lag);
            }
          }
          masks.wait_all(ctx);
          for (std::int64_t t = 12; t < 12 + lag; ++t) {
            right = right && is_mask_of(masks.global(t), l, t);
          }
          CHECK(right);
          CHECK(previous);
        });
      }
    }
  }
}

TEST_CASE("slots depend on the step alone") {
  layout const l(200, 2);
  CHECK(lagged::slots(0) == 2);
  CHECK(lagged::slots(1) == 2);
  CHECK(lagged::slots(4) == 5);
  CHECK(lagged::storage_words(l, 4) == 5 * l.mask_words());
  std::vector<mask_word> storage(at(lagged_self::storage_words(l, 2)));
  lagged_self const masks(l, 1, 2, storage);
  CHECK(masks.lag() == 2);
  for (std::int64_t s = 0; s < 9; ++s) {
    CHECK(masks.global(s).data() == storage.data() + (s % 3) * l.mask_words());
    CHECK(masks.local(s).data() == masks.global(s).data() + l.words_per_shard());
    CHECK(std::ssize(masks.local(s)) == l.words_per_shard());
  }
}

TEST_CASE("one all-gather per mask, of the predicted bytes, waited for by none before its time") {
  using counting = counting_communicator<thread_communicator>;
  for (auto const& l : some_layouts(3)) {
    run_threads(3, [&](thread_communicator& inner) {
      counting comm(inner);
      std::vector<mask_word> storage(
          at(scape::lagged_mask_allgather<counting>::storage_words(l, 3)));
      scape::lagged_mask_allgather<counting> masks(l, comm.rank(), 3, storage);
      for (std::int64_t s = 0; s < 3; ++s) {
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        fill(masks.local(s), comm.rank(), s);
        masks.start(ctx, comm, s);
      }
      CHECK(comm.gathers == traffic{3, 3 * l.mask_wire_bytes()});
      for (std::int64_t s = 0; s < 3; ++s) CHECK(is_mask_of(masks.wait(ctx, s), l, s));
      CHECK(comm.gathers.calls == 3);
    });
  }
}

TEST_CASE("wrong uses are refused") {
  layout const l(200, 2);
  std::vector<mask_word> storage(at(lagged::storage_words(l, 1)));
  CHECK(rejects([&] { lagged(l, 0, -1, storage); }, {"lagged_mask_allgather", "negative"}));
  CHECK(rejects([&] { lagged(l, 0, 2, storage); }, {"storage", "8", "12"}));
  for (int const rank : {-1, 2}) {
    CHECK(rejects([&] { lagged(l, rank, 1, storage); }, {"rank", std::to_string(rank), "2"}));
  }

  self_communicator self;
  lagged_self masks(l, 0, 1, storage);
  CHECK(rejects([&] { masks.start(ctx, self, 0); }, {"size is 1", "expected 2"}));

  layout const one(100, 1);
  std::vector<mask_word> small(at(lagged_self::storage_words(one, 1)));
  lagged_self alone(one, 0, 1, small);
  alone.start(ctx, self, 3);
  CHECK(rejects([&] { alone.start(ctx, self, 5); }, {"in flight"}));
  alone.wait(ctx, 3);
  CHECK_NOTHROW(alone.start(ctx, self, 5));
}

TEST_CASE("a peer's failure shows when its mask is waited for") {
  layout const l(200, 3);
  scape::thread_group group(3, {.deadline = std::chrono::seconds(20)});
  CHECK_THROWS_AS(run_threads(group,
                              [&](thread_communicator& comm) {
                                if (comm.rank() == 1) throw std::runtime_error("lost");
                                std::vector<mask_word> storage(at(lagged::storage_words(l, 1)));
                                lagged masks(l, comm.rank(), 1, storage);
                                int peer = -1;
                                try {
                                  masks.start(ctx, comm, 0);
                                  masks.wait(ctx, 0);
                                } catch (scape::peer_error const& e) {
                                  peer = e.peer();
                                }
                                CHECK(peer == 1);
                              }),
                  std::runtime_error);
}
