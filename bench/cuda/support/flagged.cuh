// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The peer of masked copies: cub::DeviceSelect::Flagged with the bits as flags.

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cstdint>
#include <cub/device/device_select.cuh>
#include <span>

#include "support/event_timer.cuh"

namespace scape::bench {

struct mask_bit {
  mask_word const* words;
  __device__ bool operator()(std::int64_t i) const { return (words[i / 64] >> (i % 64) & 1) != 0; }
};

//! out = the elements of `in` whose bit is set.
class flagged_select {
 public:
  flagged_select(cuda_context const& ctx, std::span<float const> in,
                 std::span<mask_word const> mask, float* out)
      : stream_(ctx.stream),
        in_(in),
        flags_(thrust::counting_iterator<std::int64_t>(0), mask_bit{mask.data()}),
        out_(out),
        temporary_(static_cast<std::int64_t>(run(nullptr, 0))) {}
  void operator()() const { run(temporary_.data(), temporary_.span().size()); }

 private:
  std::size_t run(std::byte* temporary, std::size_t bytes) const {
    check(cub::DeviceSelect::Flagged(temporary, bytes, in_.data(), flags_, out_, count_.data(),
                                     std::ssize(in_), stream_),
          "cub::DeviceSelect::Flagged");
    return bytes;
  }

  cudaStream_t stream_;
  std::span<float const> in_;
  thrust::transform_iterator<mask_bit, thrust::counting_iterator<std::int64_t>, bool, bool> flags_;
  float* out_;
  device_array<std::int64_t> count_{1};
  device_array<std::byte> temporary_;
};

}  // namespace scape::bench
