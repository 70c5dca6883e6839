// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Templated test cases on a stream of the current device, with managed memory.

#include <cstddef>
#include <new>
#include <vector>

#include <scape/context/cuda.hpp>

#include "backend.hpp"

namespace scape::testing {

template <class T>
struct managed_allocator {
  using value_type = T;
  managed_allocator() = default;
  template <class U>
  managed_allocator(managed_allocator<U> const&) noexcept {}

  T* allocate(std::size_t n) {
    void* data = nullptr;
    if (cudaMallocManaged(&data, n == 0 ? 1 : n * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    return static_cast<T*>(data);
  }
  void deallocate(T* data, std::size_t) noexcept { cudaFree(data); }
  friend bool operator==(managed_allocator, managed_allocator) { return true; }
};

struct cuda_backend {
  static constexpr bool cuda = true;
  using context = cuda_context;
  using buffer = device_buffer;
  template <class T>
  using vector = std::vector<T, managed_allocator<T>>;

  template <class F>
  static void run(std::size_t scratch, F&& f) {
    cuda_stream const stream;
    device_buffer const memory(scratch);
    if (scratch > 0) {
      detail::check_cuda(cudaMemsetAsync(memory.bytes().data(), 0xcb, scratch, stream.get()),
                         "cuda_backend", "cudaMemsetAsync");
    }
    try {
      f(cuda_context{stream.get(), memory.bytes()});
    } catch (...) {
      cudaStreamSynchronize(stream.get());
      throw;
    }
    stream.synchronize();
  }
};

}  // namespace scape::testing
