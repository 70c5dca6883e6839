// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Stages times replicas as threads of one process.

#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <scape/comm/threads.hpp>
#include <scape/error.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "paci/place.hpp"

namespace paci {

//! Calls fn(place, pipeline, replicas) on one thread per place and joins them all. `pipeline` is
//! the communicator of the replica's stages, `replicas` that of the stage's replicas. What a place
//! throws ends both of its communicators, and these the whole grid within their deadline. Rethrows
//! the first exception that is not a consequence of another one: a peer_error, where nobody threw
//! but somebody did not come in time.
template <class F>
void run_thread_grid(int stages, int replicas, F const& fn,
                     scape::thread_options const& options = {}) {
  struct member {
    place at;
    scape::thread_communicator pipeline, replicas;
  };
  std::deque<scape::thread_group> pipelines, stage_groups;
  for (int r = 0; r < replicas; ++r) pipelines.emplace_back(stages, options);
  for (int s = 0; s < stages; ++s) stage_groups.emplace_back(replicas, options);
  std::vector<member> members;
  for (int r = 0; r < replicas; ++r) {
    for (int s = 0; s < stages; ++s) {
      members.push_back({{s, r},
                         pipelines[static_cast<std::size_t>(r)].communicator(s),
                         stage_groups[static_cast<std::size_t>(s)].communicator(r)});
    }
  }

  std::mutex mutex;
  std::exception_ptr cause, consequence;
  auto const run = [&](member mine) noexcept {
    auto const fail = [&](std::exception_ptr& first, char const* what) {
      {
        std::lock_guard const lock(mutex);
        if (!first) first = std::current_exception();
      }
      mine.pipeline.abort(what);
      mine.replicas.abort(what);
    };
    try {
      fn(mine.at, mine.pipeline, mine.replicas);
    } catch (scape::peer_error const& e) {
      fail(consequence, e.what());
    } catch (std::exception const& e) {
      fail(cause, e.what());
    } catch (...) {
      fail(cause, "not a std::exception");
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(members.size());
    for (auto& m : members) threads.emplace_back(run, std::move(m));
  } catch (std::exception const& e) {  // the members that have no thread cannot come
    {
      std::lock_guard const lock(mutex);
      if (!cause) cause = std::current_exception();
    }
    for (auto& m : members) m.pipeline.abort(e.what());
    for (auto& m : members) m.replicas.abort(e.what());
  }
  for (auto& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace paci
