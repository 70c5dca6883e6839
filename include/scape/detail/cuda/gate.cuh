// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What lets kernels that are already enqueued do nothing: a step that is skipped, a communicator
//! that failed, a collective that never wrote its result.

#include <cstdint>
#include <type_traits>

#include <scape/config.hpp>
#include <scape/detail/cuda/float16.cuh>

namespace scape::detail::cuda {

//! Two words in device memory that are 0 while all is well; either may be null.
struct gate {
  int const* skipped = nullptr;
  int const* failed = nullptr;
  [[nodiscard]] __device__ bool skips() const { return skipped != nullptr && *skipped != 0; }
  [[nodiscard]] __device__ bool fails() const { return failed != nullptr && *failed != 0; }
  [[nodiscard]] __device__ bool closed() const { return skips() || fails(); }
};

//! A NaN with a payload that no arithmetic makes. It is put where a collective is to write; if it
//! is still there afterwards, the collective did not happen.
template <class T>
struct undelivered {
  static constexpr bool exists = std::is_same_v<T, float> || is_16_bit_float<T>;

  static __device__ void mark(T* place) {
    if constexpr (std::is_same_v<T, float>) {
      *place = bit_cast<T>(std::uint32_t{0x7fc5ca9e});
    } else if constexpr (exists) {
      *place = bit_cast<T>(std::uint16_t{0x7fd5});
    }
  }
  [[nodiscard]] static __device__ bool at(T const* place) {
    if constexpr (std::is_same_v<T, float>) {
      return bit_cast<std::uint32_t>(*place) == 0x7fc5ca9e;
    } else if constexpr (exists) {
      return bit_cast<std::uint16_t>(*place) == 0x7fd5;
    } else {
      return false;
    }
  }
};

}  // namespace scape::detail::cuda
