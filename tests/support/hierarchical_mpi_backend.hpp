// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Templated test cases on ranks in nodes with MPI between the nodes.

#include <mpi.h>

#include <chrono>
#include <utility>
#include <vector>

#include <scape/comm/hierarchical.hpp>
#include <scape/comm/mpi.hpp>
#include <scape/comm/threads.hpp>
#include <scape/workspace.hpp>

#include "backend.hpp"
#include "hierarchical_backend.hpp"
#include "mpi_backend.hpp"

namespace scape::testing {

//! Nodes that are processes of `count` threads.
template <int count>
struct nodes_of_threads {
  using intra = thread_communicator;
  static int locals() { return count; }
  static int nodes() { return world_size(); }

  template <class F>
  static void run(F const& f, std::chrono::milliseconds deadline) {
    thread_group group(count, {.deadline = deadline});
    std::vector<node_rank<intra, mpi_communicator>> ranks;
    for (int b = 0; b < count; ++b) {
      ranks.push_back(
          {mpi_communicator(MPI_COMM_WORLD, {.deadline = deadline}), group.communicator(b)});
    }
    run_node_ranks(std::move(ranks), f);
  }
};

//! Nodes of `count` processes, or of all if these cannot be divided so.
template <int count>
struct nodes_of_processes {
  using intra = mpi_communicator;
  static int locals() { return world_size() % count == 0 ? count : world_size(); }
  static int nodes() { return world_size() / locals(); }

  template <class F>
  static void run(F const& f, std::chrono::milliseconds deadline) {
    int const a = world_rank() / locals(), b = world_rank() % locals();
    MPI_Comm node = MPI_COMM_NULL, between = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, a, b, &node);
    MPI_Comm_split(MPI_COMM_WORLD, b, a, &between);
    std::vector<node_rank<intra, mpi_communicator>> ranks;
    ranks.push_back({mpi_communicator(between, {.deadline = deadline}),
                     mpi_communicator(node, {.deadline = deadline})});
    MPI_Comm_free(&between);
    MPI_Comm_free(&node);
    run_node_ranks(std::move(ranks), f);
  }
};

template <class Nodes>
struct hierarchical_mpi_backend : host_backend {
  using intra = typename Nodes::intra;
  using communicator = hierarchical_communicator<intra, mpi_communicator>;
  static constexpr bool sums_on_two_levels = true;

  static int locals() { return Nodes::locals(); }
  static int nodes() { return Nodes::nodes(); }
  static int size() { return locals() * nodes(); }
  //! A case with another number of ranks is the matter of another run.
  static bool has_ranks(int ranks) { return ranks == size(); }

  //! Calls f(intra, inter) on every rank; as mpi_backend's `ranks`.
  template <class F>
  static void parts(F const& f, std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    in_all_processes([&] { Nodes::run(f, deadline); });
  }

  template <class F>
  static void ranks(int count, F const& f,
                    std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    if (!has_ranks(count)) return;
    parts(
        [&](intra& inner, mpi_communicator& outer) {
          host_buffer const workspace(hierarchical_workspace_bytes<float>(1 << 17));
          communicator comm(inner, outer, workspace.bytes());
          f(comm);
        },
        deadline);
  }
};

}  // namespace scape::testing
