// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Times what is enqueued on a stream against a copy in device memory at the same moment.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <benchmark/benchmark.h>

#include <scape/context/cuda.hpp>

#include "support/device_data.cuh"

namespace scape::bench {

inline void check(cudaError_t code, char const* what) {
  detail::check_cuda(code, "benchmark", what);
}

//! Two events around work on a stream.
class event_timer {
 public:
  explicit event_timer(cudaStream_t stream) : stream_(stream) {}

  //! Seconds that the device takes for what f() enqueues. Waits for it.
  template <class F>
  double seconds_of(F&& f) {
    check(cudaEventRecord(start_.get(), stream_), "cudaEventRecord");
    f();
    check(cudaEventRecord(stop_.get(), stream_), "cudaEventRecord");
    check(cudaEventSynchronize(stop_.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_.get(), stop_.get()), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  struct release {
    void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
  };
  using handle = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, release>;

  static handle make() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    return handle(event);
  }

  cudaStream_t stream_;
  handle start_ = make(), stop_ = make();
};

//! A stream of the current device, a memory copy to compare with, and what empties its L2 cache.
class bench_device {
 public:
  static bench_device& get() {
    static bench_device instance;
    return instance;
  }

  [[nodiscard]] cuda_context context(std::span<std::byte> scratch = {}) const {
    return {stream_.get(), scratch};
  }

  //! Seconds of f() with an L2 cache that holds other data.
  template <class F>
  double seconds_of(F&& f) {
    check(cudaMemsetAsync(other_.data(), 0, other_.span().size_bytes(), stream_.get()),
          "cudaMemsetAsync");
    return timer_.seconds_of(f);
  }

  //! Bytes that the copy reads and writes.
  [[nodiscard]] double copy_bytes() const {
    return 2 * static_cast<double>(from_.span().size_bytes());
  }
  double copy_seconds() {
    return seconds_of([&] {
      check(cudaMemcpyAsync(to_.data(), from_.data(), from_.span().size_bytes(),
                            cudaMemcpyDeviceToDevice, stream_.get()),
            "cudaMemcpyAsync");
    });
  }

 private:
  static std::int64_t cache_bytes() {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
    return std::max(bytes, 1);
  }

  cuda_stream stream_;
  event_timer timer_{stream_.get()};
  device_array<std::byte> other_{2 * cache_bytes()};
  device_array<float> from_{elements()}, to_{elements()};
};

inline double median(std::vector<double> times) {
  auto const at = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

//! Runs kernel() for all iterations of a benchmark (registered with UseManualTime), each followed
//! by a copy, and reports
//!
//!     GB/s           `bytes`, the least that has to move, by the median time
//!     copy_GB/s      the copy, bytes read and written
//!     share_of_copy  the ratio of the two
//!     ns/element
template <class Kernel>
void compare(benchmark::State& state, double bytes, Kernel&& kernel) {
  auto& device = bench_device::get();
  kernel();  // loads the code
  std::vector<double> times, copies;
  for (auto _ : state) {
    times.push_back(device.seconds_of(kernel));
    state.SetIterationTime(times.back());
    copies.push_back(device.copy_seconds());
  }
  auto const time = median(times);
  auto const speed = 1e-9 * bytes / time;
  auto const copy = 1e-9 * device.copy_bytes() / median(copies);
  state.counters["GB/s"] = speed;
  state.counters["copy_GB/s"] = copy;
  state.counters["share_of_copy"] = speed / copy;
  state.counters["ns/element"] = 1e9 * time / static_cast<double>(elements());
}

//! The share of 32-byte sectors of an array of T that a random mask touches.
template <class T>
double touched_sectors(double density) {
  return 1 - std::pow(1 - density, 32 / sizeof(T));
}

inline double density_of(benchmark::State const& state) {
  return static_cast<double>(state.range(0)) / 100;
}

}  // namespace scape::bench
