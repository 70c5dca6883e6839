// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <scape/comm/threads.hpp>
#include <scape/lagged_mask_allgather.hpp>

#include "cases/lagged_mask_allgather.hpp"
#include "support/counting_communicator.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(lagged_ring, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_slots, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_traffic, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_arguments, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_lost_peer, thread_backend);

TEST_CASE("sparse masks travel as indices and arrive as the same bits") {
  for (int const ranks : {1, 2, 3, 4}) {
    auto layouts = some_layouts(ranks);
    if (ranks < 3) layouts.emplace_back(140001, ranks, layout_options{.alignment = 1});
    for (double const density : {0.0, 0.001, 0.03, 0.0624, 0.07, 1.0}) {
      for (auto const& parameters : layouts) {
        masked_problem const now(parameters, density, 1), next(parameters, density, 2);
        auto const& l = now.l;
        run_threads(ranks, [&](thread_communicator& inner) {
          using counting = counting_communicator<thread_communicator>;
          using masks_type = lagged_mask_allgather<counting>;
          counting comm(inner);
          std::vector<mask_word> storage(at(masks_type::storage_words(l, 2)));
          std::vector<std::uint16_t> indices(at(masks_type::index_words(l, 2, now.plan)));
          CHECK(indices.empty() == !l.mask_as_indices(now.plan));
          masks_type masks(l, comm.rank(), 2, storage, indices);
          host_context const ctx{{}};
          auto const own = [&](masked_problem const& p) {
            return std::span(p.mask).subspan(at(comm.rank() * l.words_per_shard()),
                                             at(l.words_per_shard()));
          };
          for (std::int64_t t = 0; t < 4; ++t) {
            std::ranges::copy(own(now), masks.local(2 * t).begin());
            std::ranges::copy(own(next), masks.local(2 * t + 1).begin());
            masks.start(ctx, comm, 2 * t, now.plan);
            masks.start(ctx, comm, 2 * t + 1, next.plan);
            CHECK(std::ranges::equal(masks.wait(ctx, 2 * t), now.mask));
            CHECK(std::ranges::equal(masks.wait(ctx, 2 * t + 1), next.mask));
          }
          CHECK(comm.gathers == traffic{8, 8 * l.mask_wire_bytes(now.plan, comm.rank())});
          CHECK(l.mask_wire_bytes(now.plan, comm.rank()) <= l.mask_wire_bytes());
        });
      }
    }
  }
}

TEST_CASE("a mask that does not fit its plan is not sent as indices") {
  layout const l(2000, 2);
  run_threads(2, [&](thread_communicator& comm) {
    using masks_type = lagged_mask_allgather<thread_communicator>;
    auto const plan = l.plan(0.01);
    std::vector<mask_word> storage(at(masks_type::storage_words(l, 1)));
    std::vector<std::uint16_t> indices(at(masks_type::index_words(l, 1, plan)));
    CHECK(rejects([&] { masks_type(l, 0, 1, storage, std::span(indices).first(3)); },
                  {"storage for indices", "3", std::to_string(indices.size())}));
    masks_type masks(l, comm.rank(), 1, storage, indices);
    masks.local(0)[0] = 0b111;
    CHECK(rejects([&] { masks.start({{}}, comm, 0, plan); },
                  {"bits in this rank's mask", "3", "10"}));
    CHECK_FALSE(masks.in_flight());
  });
}

}  // namespace
}  // namespace scape::testing
