// SPDX-License-Identifier: Apache-2.0
#include "cases/agreement.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <scape/comm/mpi.hpp>
#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/mpi_backend.hpp"
#include "support/optimizer_rig.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {
namespace {

using namespace std::chrono_literals;

TEST_CASE_TEMPLATE_INVOKE(agreement_1, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(agreement_2, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(agreement_3, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(agreement_4, mpi_backend);

//! An optimizer that stays, as the memory of an operation that fails has to.
template <class Wire = float>
auto& kept_rig(mpi_communicator& comm, layout const& l, double density) {
  auto const o = sparse_optimizer_options::staleness_aware(density);
  return *new sparse_rig_on<mpi_backend, adams, Wire>(comm, l, o);
}

template <class Rig>
void train(Rig& r, std::int64_t n, int steps) {
  for (int t = 0; t < steps; ++t) r.step(normal_gradient(4, world_rank(), t, n));
}

TEST_CASE("without the check, ranks that differ get errors and none waits beyond the deadline") {
  int const ranks = world_size();
  if (ranks < 2) return;
  layout const l(128 * ranks, ranks), longer(192 * ranks, ranks);
  struct difference {
    std::string text;
    std::function<void(mpi_communicator&, bool odd)> training;
  };
  std::vector<difference> const differences = {
      // n
      {"rank 1 started ",
       [&](auto& comm, bool odd) {
         auto const& own = odd ? longer : l;
         train(kept_rig(comm, own, 0.1), own.size(), 4);
       }},
      // k, which every rank sees in the others' masks
      {"the plan has a count of ",
       [&](auto& comm, bool odd) { train(kept_rig(comm, l, odd ? 0.2 : 0.1), l.size(), 4); }},
      // the element type
      {"rank 1 started ",
       [&](auto& comm, bool odd) {
         odd ? train(kept_rig<bfloat16>(comm, l, 0.1), l.size(), 4)
             : train(kept_rig(comm, l, 0.1), l.size(), 4);
       }},
      // the step
      {"rank 1 started ",
       [&](auto& comm, bool odd) {
         auto& r = kept_rig(comm, l, 0.1);
         train(r, l.size(), 3);
         auto const early = r.saved();
         train(r, l.size(), 1);
         if (odd) r.load(early);
         train(r, l.size(), 4);
       }},
  };
  for (auto const& difference : differences) {
    auto const end = ending_of({.deadline = 2s},
                               [&](auto& comm) { difference.training(comm, comm.rank() == 1); });
    CAPTURE(end.kind);
    CHECK((end.kind == "peer_error" || end.kind == "argument_error"));
    CHECK_MESSAGE(end.what.find(difference.text) != std::string::npos, end.what);
    CHECK(end.elapsed < 10s);  // the deadline, as long again for the peers' reasons, a busy machine
  }
}

}  // namespace
}  // namespace scape::testing
