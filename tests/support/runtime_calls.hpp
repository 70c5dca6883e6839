// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Counts the calls of a thread to functions of the CUDA runtime that allocate, that wait, or that
//! bring device memory to the host. The program is linked with runtime_calls.cpp, whose definitions
//! come before those of the shared runtime.

namespace scape::testing {

struct runtime_calls {
  int allocations = 0;
  int waits = 0;
  int reads = 0;
};
inline thread_local runtime_calls calls_of_thread;

}  // namespace scape::testing
