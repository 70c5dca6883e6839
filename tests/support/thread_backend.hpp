// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Templated test cases on several ranks that are threads.

#include <chrono>
#include <cstddef>
#include <utility>

#include <scape/comm/threads.hpp>

#include "backend.hpp"

namespace scape::testing {

struct thread_backend : host_backend {
  using communicator = thread_communicator;

  //! Whether there may be `size` ranks.
  static bool has_ranks(int) { return true; }

  //! Calls f(communicator&) on every rank and throws what a rank throws. A rank waits for its peers
  //! no longer than the deadline.
  template <class F>
  static void ranks(int size, F const& f,
                    std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    thread_group group(size, {.deadline = deadline});
    run_threads(group, [&](thread_communicator& comm) { f(comm); });
  }
};

//! The same, with a pool of `threads` for each rank.
template <int threads>
struct pooled_backend : thread_backend {
  template <class F>
  static void run(std::size_t scratch, F&& f) {
    host_pool pool(threads);
    thread_backend::run(scratch, [&](host_context ctx) {
      ctx.pool = &pool;
      f(std::as_const(ctx));
    });
  }
};

}  // namespace scape::testing
