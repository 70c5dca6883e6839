// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks as threads with a device each, device memory between canaries, and slow streams.

#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <scape/comm/nccl.hpp>
#include <scape/context/cuda.hpp>

#include "support/rank_data.hpp"

namespace scape::testing {

inline int devices() {
  int count = 0;
  cudaGetDeviceCount(&count);
  return count;
}

//! A stream of the current device and no scratch memory.
struct rank_stream {
  cuda_stream stream;
  cuda_context ctx{stream.get(), {}};
};

//! Calls body(rank) on one thread per rank whose current device is number `rank`.
template <class Body>
void on_devices(int ranks, Body const& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&body, r] {
      try {
        detail::check_cuda(cudaSetDevice(r), "on_devices", "cudaSetDevice");
        body(r);
      } catch (std::exception const& e) {
        FAIL_CHECK("rank ", r, ": ", std::string(e.what()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

//! The same with a communicator: body(communicator, context).
template <class Body>
void on_ranks(int ranks, nccl_options const& options, Body const& body) {
  auto const id = nccl_unique_id();
  on_devices(ranks, [&](int r) {
    rank_stream s;
    nccl_communicator comm(id, r, ranks, options);
    body(comm, s.ctx);
  });
}

inline void copy_memory(void* to, void const* from, std::size_t bytes) {
  if (bytes == 0) return;
  detail::check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy_memory", "cudaMemcpy");
  detail::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "copy_memory",
                     "cudaStreamSynchronize");
}

//! Device memory with 64 bytes before and after it that nobody may change.
template <class T>
class device_array {
 public:
  explicit device_array(std::int64_t count)
      : count_(at(count)), memory_(count_ * sizeof(T) + 2 * margin) {
    std::vector<std::byte> const fill(memory_.bytes().size(), canary);
    copy_memory(memory_.bytes().data(), fill.data(), fill.size());
  }
  explicit device_array(std::vector<T> const& values) : device_array(std::ssize(values)) {
    write(values);
  }

  [[nodiscard]] std::span<T> span() const {
    return {reinterpret_cast<T*>(memory_.bytes().data() + margin), count_};
  }
  [[nodiscard]] std::span<T const> view() const { return span(); }
  void write(std::vector<T> const& values) const {
    copy_memory(span().data(), values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    copy_memory(values.data(), span().data(), count_ * sizeof(T));
    return values;
  }
  [[nodiscard]] bool intact() const {
    std::vector<std::byte> all(memory_.bytes().size());
    copy_memory(all.data(), memory_.bytes().data(), all.size());
    bool same = true;
    for (std::size_t i = 0; i < margin; ++i) {
      same &= all[i] == canary && all[all.size() - 1 - i] == canary;
    }
    return same;
  }

 private:
  static constexpr std::size_t margin = 64;
  static constexpr auto canary = std::byte{0x5a};
  std::size_t count_;
  device_buffer memory_;
};

//! Makes what is enqueued on the stream from now on start `milliseconds` later.
inline void delay(cudaStream_t stream, int milliseconds) {
  auto const sleep = [](void* data) {
    std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<std::intptr_t>(data)));
  };
  detail::check_cuda(
      cudaLaunchHostFunc(stream, sleep,
                         reinterpret_cast<void*>(static_cast<std::intptr_t>(milliseconds))),
      "delay", "cudaLaunchHostFunc");
}

//! Enqueues to = from.
template <class T>
void enqueue_copy(std::span<T> to, std::span<T const> from, cudaStream_t stream) {
  detail::check_cuda(
      cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToDevice, stream),
      "enqueue_copy", "cudaMemcpyAsync");
}

}  // namespace scape::testing
