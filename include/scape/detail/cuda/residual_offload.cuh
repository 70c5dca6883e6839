// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A residual in pinned host memory, passed through two buffers on the device.

#include <algorithm>
#include <cstdint>
#include <span>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/sparse_collectives.cuh>

namespace scape::detail::cuda {

//! While one chunk is worked on, the next one comes in and the last one goes out, each direction on
//! a stream of its own.
class residual_offload {
 public:
  //! Two buffers of equal length in device memory.
  residual_offload(std::span<float> first, std::span<float> second)
      : slots_{chunk_buffer(first), chunk_buffer(second)} {}

  //! Enqueues pass(part) on ctx.stream for the chunks of `part`, whose data is host memory; each
  //! call gets the part of one chunk in device memory.
  template <class Pass>
  void stream(caller who, cuda_context const& ctx, residual_part const& part, Pass const& pass) {
    for (auto begin = part.elements.begin; begin < part.elements.end;) {
      auto& slot = slots_[next_];
      auto const end = std::min(begin + std::ssize(slot.data), part.elements.end);
      auto const bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
      auto* const host = part.data + (begin - part.begin);
      auto* const buffer = slot.data.data();
      if (slot.used) {
        wait(who, in_.get(), slot.free);
      } else {
        slot.ready.order(who, ctx.stream, in_.get());
        slot.used = true;
      }
      check_cuda(cudaMemcpyAsync(buffer, host, bytes, cudaMemcpyHostToDevice, in_.get()), who,
                 "cudaMemcpyAsync");
      slot.ready.order(who, in_.get(), ctx.stream);
      pass(residual_part{{begin, end}, buffer, begin});
      slot.done.order(who, ctx.stream, out_.get());
      check_cuda(cudaMemcpyAsync(host, buffer, bytes, cudaMemcpyDeviceToHost, out_.get()), who,
                 "cudaMemcpyAsync");
      check_cuda(cudaEventRecord(slot.free.get(), out_.get()), who, "cudaEventRecord");
      next_ = 1 - next_;
      begin = end;
    }
  }

  //! Orders ctx.stream behind all copies.
  void end(caller who, cuda_context const& ctx) {
    for (auto& slot : slots_) {
      if (slot.used) wait(who, ctx.stream, slot.free);
      slot.used = false;
    }
  }
  //! After a capture that failed, in which nothing ran.
  void forget() noexcept {
    for (auto& slot : slots_) slot.used = false;
  }

 private:
  struct chunk_buffer {
    explicit chunk_buffer(std::span<float> memory) : data(memory) {}
    std::span<float> data;
    cuda_event ready{"residual_offload"};  //!< its chunk is on the device
    cuda_event done{"residual_offload"};   //!< the pass over it is
    cuda_event free{"residual_offload"};   //!< its chunk is in host memory again
    bool used = false;                     //!< since end()
  };

  static void wait(caller who, cudaStream_t stream, cuda_event const& event) {
    check_cuda(cudaStreamWaitEvent(stream, event.get(), 0), who, "cudaStreamWaitEvent");
  }

  cuda_stream in_, out_;
  chunk_buffer slots_[2];
  int next_ = 0;
};

}  // namespace scape::detail::cuda
