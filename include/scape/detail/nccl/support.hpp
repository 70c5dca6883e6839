// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! NCCL's errors, types and operators, and two small tools for devices and streams.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <concepts>
#include <functional>
#include <string>
#include <string_view>

#include <scape/concepts.hpp>
#include <scape/context/cuda.hpp>
#include <scape/detail/collective_arguments.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>

namespace scape {

//! NCCL refused or failed. `code()` is its result code.
class nccl_error : public error {
 public:
  nccl_error(detail::caller who, ncclResult_t code, std::string const& what,
             source_location where = source_location::current())
      : error(std::string(who.operation), what, who.rank, who.size, where), code_(code) {}
  [[nodiscard]] ncclResult_t code() const noexcept { return code_; }

 private:
  ncclResult_t code_;
};

namespace detail {

//! What the code means and NCCL's last message, if there is one.
inline std::string nccl_text(ncclResult_t code, ncclComm_t comm) {
  std::string const text = ncclGetErrorString(code), last = ncclGetLastError(comm);
  return last.empty() ? text : text + " (" + last + ")";
}

//! Throws nccl_error "<call>: <text>" unless the call succeeded or goes on in the background.
inline void check_nccl(ncclResult_t code, caller who, char const* call,
                       source_location where = source_location::current()) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw nccl_error(who, code, std::string(call) + ": " + nccl_text(code, nullptr), where);
}

//! NCCL's name for T; ncclNumTypes if it has none.
template <class T>
constexpr ncclDataType_t nccl_type() noexcept {
  if constexpr (std::same_as<T, float>) {
    return ncclFloat32;
  } else if constexpr (std::same_as<T, double>) {
    return ncclFloat64;
  } else if constexpr (std::same_as<T, float16> || std::same_as<T, __half>) {
    return ncclFloat16;
  } else if constexpr (std::same_as<T, bfloat16> || std::same_as<T, __nv_bfloat16>) {
    return ncclBfloat16;
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    constexpr bool is_signed = std::signed_integral<T>;
    if constexpr (sizeof(T) == 1) return is_signed ? ncclInt8 : ncclUint8;
    if constexpr (sizeof(T) == 4) return is_signed ? ncclInt32 : ncclUint32;
    if constexpr (sizeof(T) == 8) return is_signed ? ncclInt64 : ncclUint64;
  }
  return ncclNumTypes;
}

//! NCCL can combine values of type T with Op. It rounds 16-bit floats after each addition.
template <class Op, class T>
concept nccl_reduction = nccl_type<T>()
!= ncclNumTypes &&
    (std::same_as<Op, std::plus<>> || std::same_as<Op, std::plus<T>> || std::same_as<Op, maximum>);

template <class Op>
constexpr ncclRedOp_t nccl_operator() noexcept {
  return std::same_as<Op, maximum> ? ncclMax : ncclSum;
}

//! Makes a device the current one for a while.
class device_scope {
 public:
  explicit device_scope(caller who, int device) {
    check_cuda(cudaGetDevice(&previous_), who, "cudaGetDevice");
    check_cuda(cudaSetDevice(device), who, "cudaSetDevice");
  }
  device_scope(device_scope const&) = delete;
  device_scope& operator=(device_scope const&) = delete;
  ~device_scope() { cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

//! cudaStreamQuery that spoils no capture of another stream and leaves no "not ready" behind for
//! cudaGetLastError.
inline cudaError_t stream_state(cudaStream_t stream) noexcept {
  auto mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  auto const code = cudaStreamQuery(stream);
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (code == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return code;
}

}  // namespace detail
}  // namespace scape
