// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Running on a stream of the current CUDA device. Needs the CUDA runtime, not nvcc.

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include <scape/concepts.hpp>
#include <scape/error.hpp>

namespace scape {

//! The CUDA runtime refused or failed. `code()` is its error code.
class cuda_error : public error {
 public:
  cuda_error(detail::caller who, cudaError_t code, std::string const& what,
             source_location where = source_location::current())
      : error(std::string(who.operation),
              what + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code), who.rank,
              who.size, where),
        code_(code) {}
  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

namespace detail {

//! Throws cuda_error "<what>: <name>, <text>" unless the call succeeded.
inline void check_cuda(cudaError_t code, caller who, char const* what,
                       source_location where = source_location::current()) {
  if (code != cudaSuccess) throw cuda_error(who, code, what, where);
}

}  // namespace detail

//! A stream and scratch memory in device memory. Primitives enqueue their work on the stream and
//! return; results are there once the stream gets so far. They neither allocate nor synchronise.
//! The stream's device is the current one whenever a primitive is called. What earlier calls left
//! for cudaGetLastError does not matter to them, and may be gone afterwards.
struct cuda_context {
  cudaStream_t stream;
  std::span<std::byte> scratch;

  cuda_context(cudaStream_t on, std::span<std::byte> scratch_memory) noexcept
      : stream(on), scratch(scratch_memory) {}
  //! No default stream by accident: cudaStreamLegacy and cudaStreamPerThread name one on purpose.
  cuda_context(std::nullptr_t, std::span<std::byte>) = delete;
  cuda_context(int, std::span<std::byte>) = delete;
};

//! A communicator whose operations are work on a stream.
template <class C>
concept cuda_communicator = communicator<C> && std::same_as<typename C::context_type, cuda_context>;

namespace detail {

//! Throws unless the context's stream belongs to the current device.
inline void expect_current_device(caller who, cuda_context const& ctx) {
  int current = 0, own = 0;
  check_cuda(cudaGetDevice(&current), who, "cudaGetDevice");
  check_cuda(cudaStreamGetDevice(ctx.stream, &own), who, "cudaStreamGetDevice");
  expect_equal(who, "the current device", current, own,
               "that is the device of the context's stream; call cudaSetDevice first");
}

//! Throws unless the current device is the communicator's, if it has one.
template <class C>
void expect_device_of(caller who, C const& comm) {
  if constexpr (requires { comm.device(); }) {
    int current = 0;
    check_cuda(cudaGetDevice(&current), who, "cudaGetDevice");
    expect_equal(who, "the current device", current, comm.device(),
                 "that is the communicator's device; call cudaSetDevice first");
  }
}

//! The same of the context's stream too.
template <class C>
void expect_device_of(caller who, cuda_context const& ctx, C const& comm) {
  expect_current_device(who, ctx);
  expect_device_of(who, comm);
}

//! Throws if the stream is in a capture that somebody's forbidden call has invalidated.
inline bool is_capturing(caller who, cudaStream_t stream) {
  auto status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), who, "cudaStreamIsCapturing");
  expect(status != cudaStreamCaptureStatusInvalidated, who,
         "the capture of the stream was invalidated; end it first");
  return status == cudaStreamCaptureStatusActive;
}

//! Throws if nothing on the stream can be waited for.
inline void expect_no_capture(caller who, cudaStream_t stream) {
  expect(!is_capturing(who, stream), who, "the stream is being captured; end the capture first");
}

//! An event without timing, for order between streams.
class cuda_event {
 public:
  explicit cuda_event(caller who) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), who, "cudaEventCreate");
    event_.reset(event);
  }
  [[nodiscard]] cudaEvent_t get() const noexcept { return event_.get(); }

  //! Work enqueued on `second` from now on runs after all that is on `first` now.
  void order(caller who, cudaStream_t first, cudaStream_t second) const {
    check_cuda(cudaEventRecord(get(), first), who, "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(second, get(), 0), who, "cudaStreamWaitEvent");
  }

 private:
  struct release {
    void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, release> event_;
};

}  // namespace detail

//! A stream of the current device that does not wait for the legacy default stream.
class cuda_stream {
 public:
  cuda_stream() {
    cudaStream_t stream = nullptr;
    detail::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cuda_stream",
                       "cudaStreamCreate");
    stream_.reset(stream);
  }
  [[nodiscard]] cudaStream_t get() const noexcept { return stream_.get(); }
  void synchronize() const {
    detail::check_cuda(cudaStreamSynchronize(get()), "cuda_stream", "cudaStreamSynchronize");
  }

 private:
  struct release {
    void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, release> stream_;
};

//! A zero-filled, fixed-size block in the memory of the current device.
class device_buffer {
 public:
  explicit device_buffer(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    detail::check_cuda(cudaMalloc(&data, bytes), "device_buffer", "cudaMalloc");
    data_.reset(static_cast<std::byte*>(data));
    detail::check_cuda(cudaMemset(data, 0, bytes), "device_buffer", "cudaMemset");
    detail::check_cuda(cudaStreamSynchronize(nullptr), "device_buffer", "cudaStreamSynchronize");
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }

 private:
  struct release {
    void operator()(std::byte* data) const noexcept { cudaFree(data); }
  };
  std::unique_ptr<std::byte, release> data_;
  std::size_t size_;
};

//! A zero-filled, fixed-size block of page-locked host memory, which devices can read and write.
class pinned_buffer {
 public:
  explicit pinned_buffer(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    detail::check_cuda(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "pinned_buffer",
                       "cudaHostAlloc");
    data_.reset(static_cast<std::byte*>(data));
    std::memset(data, 0, bytes);
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }

 private:
  struct release {
    void operator()(std::byte* data) const noexcept { cudaFreeHost(data); }
  };
  std::unique_ptr<std::byte, release> data_;
  std::size_t size_;
};

}  // namespace scape
