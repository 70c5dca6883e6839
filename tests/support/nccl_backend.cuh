// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Templated test cases on several ranks that are GPUs, each driven by a thread.

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <scape/comm/nccl.hpp>

#include "cuda_backend.cuh"

namespace scape::testing {

struct nccl_backend : cuda_backend {
  using communicator = nccl_communicator;

  //! Whether there may be `size` ranks: NCCL wants a device for each.
  static bool has_ranks(int size) {
    int devices = 0;
    detail::check_cuda(cudaGetDeviceCount(&devices), "nccl_backend", "cudaGetDeviceCount");
    return size <= devices;
  }

  //! Calls f(communicator&) on every rank and throws what the first one throws; does nothing where
  //! there are too few devices. A rank waits for its peers no longer than the deadline.
  template <class F>
  static void ranks(int size, F const& f,
                    std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    if (!has_ranks(size)) return;
    auto const id = nccl_unique_id();
    std::exception_ptr first;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        try {
          detail::check_cuda(cudaSetDevice(r), "nccl_backend", "cudaSetDevice");
          nccl_communicator comm(id, r, size, {.deadline = deadline});
          f(comm);
        } catch (...) {
          std::lock_guard const lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }
};

}  // namespace scape::testing
