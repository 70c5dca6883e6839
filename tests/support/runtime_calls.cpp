// SPDX-License-Identifier: Apache-2.0
#include "runtime_calls.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>

namespace scape::testing {

template <class F>
F* next_function(char const* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace scape::testing

#define SCAPE_TEST_INTERCEPT(counter, name, parameters, arguments)                          \
  extern "C" cudaError_t name parameters {                                                  \
    static auto* const next = scape::testing::next_function<cudaError_t parameters>(#name); \
    ++scape::testing::calls_of_thread.counter;                                              \
    return next arguments;                                                                  \
  }

SCAPE_TEST_INTERCEPT(allocations, cudaMalloc, (void** p, std::size_t n), (p, n))
SCAPE_TEST_INTERCEPT(allocations, cudaMallocAsync, (void** p, std::size_t n, cudaStream_t s),
                     (p, n, s))
SCAPE_TEST_INTERCEPT(allocations, cudaMallocManaged, (void** p, std::size_t n, unsigned f),
                     (p, n, f))
SCAPE_TEST_INTERCEPT(allocations, cudaHostAlloc, (void** p, std::size_t n, unsigned f), (p, n, f))
SCAPE_TEST_INTERCEPT(allocations, cudaMallocHost, (void** p, std::size_t n), (p, n))
SCAPE_TEST_INTERCEPT(allocations, cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned f), (e, f))
SCAPE_TEST_INTERCEPT(allocations, cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned f), (s, f))
SCAPE_TEST_INTERCEPT(waits, cudaDeviceSynchronize, (), ())
SCAPE_TEST_INTERCEPT(waits, cudaStreamSynchronize, (cudaStream_t s), (s))
SCAPE_TEST_INTERCEPT(waits, cudaStreamQuery, (cudaStream_t s), (s))
SCAPE_TEST_INTERCEPT(waits, cudaEventSynchronize, (cudaEvent_t e), (e))
SCAPE_TEST_INTERCEPT(waits, cudaEventQuery, (cudaEvent_t e), (e))
SCAPE_TEST_INTERCEPT(waits, cudaFree, (void* p), (p))
SCAPE_TEST_INTERCEPT(waits, cudaMemset, (void* p, int v, std::size_t n), (p, v, n))
SCAPE_TEST_INTERCEPT(reads, cudaMemcpy,
                     (void* to, void const* from, std::size_t n, cudaMemcpyKind kind),
                     (to, from, n, kind))

extern "C" cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t n,
                                       cudaMemcpyKind kind, cudaStream_t stream) {
  using function = cudaError_t(void*, void const*, std::size_t, cudaMemcpyKind, cudaStream_t);
  static auto* const next = scape::testing::next_function<function>("cudaMemcpyAsync");
  if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDefault) {
    ++scape::testing::calls_of_thread.reads;
  }
  return next(to, from, n, kind, stream);
}
#undef SCAPE_TEST_INTERCEPT
