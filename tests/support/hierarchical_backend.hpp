// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Templated test cases on ranks that are threads in nodes.

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <scape/comm/hierarchical.hpp>
#include <scape/comm/threads.hpp>
#include <scape/error.hpp>
#include <scape/workspace.hpp>

#include "backend.hpp"

namespace scape::testing {

//! One rank's parts. The one in the node is left first, which keeps nobody waiting.
template <class Intra, class Inter>
struct node_rank {
  Inter inter;
  Intra intra;
};

//! Calls f(intra, inter) on a thread for each of `ranks`. One that throws ends its two parts.
//! Throws what is not a peer_error rather than what it led to.
template <class Intra, class Inter, class F>
void run_node_ranks(std::vector<node_rank<Intra, Inter>> ranks, F const& f) {
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  auto const run = [&](node_rank<Intra, Inter> own) noexcept {
    auto const end = [&](std::exception_ptr& first, std::string const& why) {
      own.intra.abort(why);
      own.inter.abort(why);
      std::lock_guard const lock(mutex);
      if (!first) first = std::current_exception();
    };
    try {
      f(own.intra, own.inter);
    } catch (peer_error const& e) {
      end(consequence, e.what());
    } catch (std::exception const& e) {
      end(cause, e.what());
    }
  };
  std::vector<std::thread> threads;
  for (auto& own : ranks) threads.emplace_back(run, std::move(own));
  for (auto& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

//! The same for `locals` ranks in each of `nodes` nodes, all of them threads. Throws a peer_error
//! if a group has failed and nobody threw.
template <class F>
void run_nodes(int locals, int nodes, F const& f, thread_options const& options = {}) {
  std::deque<thread_group> intra_groups, inter_groups;
  for (int a = 0; a < nodes; ++a) intra_groups.emplace_back(locals, options);
  for (int b = 0; b < locals; ++b) inter_groups.emplace_back(nodes, options);
  std::vector<node_rank<thread_communicator, thread_communicator>> ranks;
  for (std::size_t b = 0; b < inter_groups.size(); ++b) {
    for (std::size_t a = 0; a < intra_groups.size(); ++a) {
      ranks.push_back({inter_groups[b].communicator(static_cast<int>(a)),
                       intra_groups[a].communicator(static_cast<int>(b))});
    }
  }
  run_node_ranks(std::move(ranks), f);
  for (auto const* groups : {&intra_groups, &inter_groups}) {
    for (auto const& group : *groups) {
      if (auto const failure = group.failure()) {
        throw peer_error("run_nodes", failure->message, failure->rank, -1, group.size());
      }
    }
  }
}

//! `locals` ranks in each node, or as many as divide the number of ranks.
template <int locals>
struct hierarchical_backend : host_backend {
  using communicator = hierarchical_communicator<thread_communicator, thread_communicator>;
  static constexpr bool sums_on_two_levels = true;

  static bool has_ranks(int) { return true; }

  //! As thread_backend's.
  template <class F>
  static void ranks(int size, F const& f,
                    std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    int const in_node = std::gcd(locals, size);
    run_nodes(in_node, size / in_node,
              [&](thread_communicator& intra, thread_communicator& inter) {
                host_buffer const workspace(hierarchical_workspace_bytes<float>(1 << 17));
                communicator comm(intra, inter, workspace.bytes());
                f(comm);
              },
              {.deadline = deadline});
  }
};

}  // namespace scape::testing
