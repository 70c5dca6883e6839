// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <scape/comm/hierarchical.hpp>
#include <scape/comm/mpi.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>

#include "cases/lagged_mask_allgather.hpp"
#include "cases/sparse_all_gather.hpp"
#include "cases/sparse_all_reduce.hpp"
#include "cases/sparse_reduce_scatter.hpp"
#include "support/counting_communicator.hpp"
#include "support/hierarchical_checks.hpp"
#include "support/hierarchical_mpi_backend.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using one = hierarchical_mpi_backend<nodes_of_threads<1>>;
using two = hierarchical_mpi_backend<nodes_of_threads<2>>;
using three = hierarchical_mpi_backend<nodes_of_threads<3>>;
using split = hierarchical_mpi_backend<nodes_of_processes<2>>;

host_context const ctx;

template <class Backend, class T>
void check_everything() {
  int const size = Backend::size();
  for (auto const& counts : {equal_counts(size, 0), equal_counts(size, 65), uneven_counts(size)}) {
    std::vector<std::vector<std::vector<T>>> flat(at(size));
    run_threads(size, [&](thread_communicator& comm) {
      flat[at(comm.rank())] = everything<T, std::plus<>>(comm, counts);
    });
    Backend::ranks(size, [&](auto& comm) {
      CHECK(comm.size() == size);
      CHECK(std::ranges::equal(everything<T, std::plus<>>(comm, counts), flat[at(comm.rank())],
                               same_bits<std::vector<T>, std::vector<T>>));
    });
  }
}

TEST_CASE_TEMPLATE("every operation gives the flat communicator's bits", Backend, one, two, three,
                   split) {
  check_everything<Backend, float>();
  check_everything<Backend, bfloat16>();
}

TEST_CASE_TEMPLATE("what crosses between processes is 1 / L of what a flat exchange takes across",
                   Backend, one, two, three, split) {
  using counting = counting_communicator<mpi_communicator>;
  constexpr std::int64_t count = 24, block = count * sizeof(float);
  int const size = Backend::size(), locals = Backend::locals();
  auto const counts = equal_counts(size, count);
  // Flat: each rank receives one block from every rank outside its node.
  auto const flat = (size - locals) * block;
  Backend::parts([&](auto& intra, mpi_communicator& inner) {
    host_buffer const workspace(hierarchical_workspace_bytes<float>(count * inner.size()));
    counting inter(inner);
    hierarchical_communicator<typename Backend::intra, counting> comm(intra, inter,
                                                                      workspace.bytes());
    std::vector<float> whole(at(count * size)), own(at(count));
    comm.reduce_scatter(ctx, whole, std::span(own), counts).wait(ctx);
    comm.all_gather(ctx, own, std::span(whole), counts).wait(ctx);
    comm.all_reduce(ctx, whole, std::span(whole)).wait(ctx);
    CHECK(locals * inter.reduce_scatters.bytes == flat);
    CHECK(locals * inter.gathers.bytes == flat);
    CHECK(locals * inter.all_reduces.bytes == 2 * flat);
  });
}

TEST_CASE_TEMPLATE("ranks wait in any order, and differently", Backend, two, three, split) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    Backend::parts([&](auto& intra, mpi_communicator& inter) {
      host_buffer const workspace(1 << 20);
      typename Backend::communicator comm(intra, inter, workspace.bytes(), random_in_flight(seed));
      check_random_waits(comm, seed);
    });
  }
}

TEST_CASE_TEMPLATE("a root that has gone on keeps nobody waiting", Backend, two, split) {
  if (Backend::nodes() < 2) return;
  int const size = Backend::size(), nodes = Backend::nodes();
  auto const start = clock::now();
  Backend::ranks(size, [&](auto& comm) {
    int const a = comm.rank() % nodes, b = comm.rank() / nodes;
    std::vector<float> first(100000, static_cast<float>(comm.rank())), second = first;
    std::vector<float> all(at(size)), own{static_cast<float>(comm.rank())};
    auto const counts = equal_counts(size, 1);
    auto const broadcast = [&](std::vector<float>& data, int root) {
      return comm.broadcast(ctx, std::span(data), root);
    };
    if ((a + b) % 2 == 0) {
      std::array handles{broadcast(first, nodes), broadcast(second, 0),
                         comm.all_gather(ctx, own, std::span(all), counts)};
      for (int i = 2; i >= 0; --i) handles[at(i)].wait(ctx);
    } else {
      broadcast(first, nodes).wait(ctx);
      broadcast(second, 0).wait(ctx);
      comm.all_gather(ctx, own, std::span(all), counts).wait(ctx);
    }
    CHECK(std::ranges::count(first, static_cast<float>(nodes)) == std::ssize(first));
    CHECK(std::ranges::count(second, 0.0F) == std::ssize(second));
    CHECK(all.back() == static_cast<float>(size - 1));
  });
  CHECK(clock::now() - start < 30s);
}

TEST_CASE_TEMPLATE("a rank that is lost ends all others in time", Backend, one, two, three, split) {
  int const size = Backend::size();
  if (size < 2) return;
  for (bool const throws : {true, false}) {
    CAPTURE(throws);
    std::atomic<int> ended = 0;
    auto const start = clock::now();
    auto const body = [&](auto& comm) {
      auto& data = *new std::vector<float>(1000, 1.0F);  // stays, as a failure wants it
      auto const sum = [&] { comm.all_reduce(ctx, data, std::span(data)).wait(ctx); };
      sum();
      if (comm.rank() == size - 1) {
        if (throws) throw std::runtime_error("the disk is full");
        return;
      }
      try {
        sum();
        comm.barrier(ctx).wait(ctx);
      } catch (peer_error const& e) {
        ++ended;
        CHECK(e.size() == size);
        CHECK(e.peer() >= 0);
        CHECK(e.peer() < size);
        if (throws) CHECK(std::string(e.what()).find("the disk is full") != std::string::npos);
        throw;
      }
    };
    CHECK_THROWS(Backend::ranks(size, body));
    bool const last = world_rank() == world_size() - 1;
    int const here = size / world_size();
    CHECK(ended == (last ? here - 1 : here));
    CHECK(clock::now() - start < 30s);
  }
}

TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_sums, one, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_by_hand, two, split);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_dense, one, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_traffic, three);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_limit, two, split);

TEST_CASE_TEMPLATE_INVOKE(all_gather_values, one, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(all_gather_long, two, split);
TEST_CASE_TEMPLATE_INVOKE(all_gather_lost_peer, one, three);

TEST_CASE_TEMPLATE_INVOKE(all_reduce_sums, one, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_traffic, one, three);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_lost_peer, one, three);

TEST_CASE_TEMPLATE_INVOKE(lagged_ring, one, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(lagged_lost_peer, one, three);

}  // namespace
}  // namespace scape::testing
