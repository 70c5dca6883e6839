// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where a templated test case runs. A backend has containers whose elements both the test and the
//! primitives can reach, a buffer whose bytes are for the primitives alone, and run(scratch bytes,
//! f), which calls f(context) with that much scratch memory full of rubbish and returns when
//! everything f started is done.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <scape/context/host.hpp>
#include <scape/workspace.hpp>

namespace scape::testing {

struct host_backend {
  static constexpr bool cuda = false;
  using context = host_context;
  using buffer = host_buffer;
  template <class T>
  using vector = std::vector<T>;

  template <class F>
  static void run(std::size_t scratch, F&& f) {
    host_buffer const memory(scratch);
    std::ranges::fill(memory.bytes(), std::byte{0xcb});
    f(host_context{memory.bytes()});
  }
};

}  // namespace scape::testing
