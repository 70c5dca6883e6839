// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One thread per rank, from start to the exception that explains a failure.

#include <cstddef>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <scape/detail/host/thread_group.hpp>
#include <scape/error.hpp>

namespace scape::detail {

//! Calls fn(ranks[r]) on thread r; ranks[r] is gone when its thread ends.
template <class Communicator, class F>
void run_ranks(thread_engine& engine, std::vector<Communicator> ranks, F& fn) {
  std::vector<std::exception_ptr> exceptions(ranks.size());
  auto const run = [&](std::size_t r) noexcept {
    auto comm = std::move(ranks[r]);
    int const rank = comm.rank();
    try {
      fn(comm);
    } catch (std::exception const& e) {
      exceptions[r] = std::current_exception();
      engine.fail(rank, e.what(), exceptions[r]);
    } catch (...) {
      exceptions[r] = std::current_exception();
      engine.fail(rank, "not a std::exception", exceptions[r]);
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) threads.emplace_back(run, r);
  } catch (std::exception const& e) {
    engine.fail(static_cast<int>(threads.size()), e.what(), std::current_exception());
  }
  for (auto& thread : threads) thread.join();

  if (auto const cause = engine.cause()) std::rethrow_exception(cause);
  for (auto const& exception : exceptions) {
    if (exception) std::rethrow_exception(exception);
  }
  if (auto const failure = engine.failure()) {
    throw peer_error("run_threads", failure->message, failure->rank, -1, engine.size());
  }
}

}  // namespace scape::detail
