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

//! NaNs with payloads that no arithmetic makes, in the first 16 bytes of where a collective is to
//! write. If all of them are still there afterwards, the collective did not happen.
template <class T>
struct undelivered {
  static constexpr bool exists = std::is_same_v<T, float> || is_16_bit_float<T>;
  using bits = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint16_t>;

  static __device__ void mark(T* values, std::int64_t count) {
    if constexpr (exists) {
      for (int i = 0; i < width && i < count; ++i) values[i] = bit_cast<T>(pattern(i));
    }
  }
  [[nodiscard]] static __device__ bool at(T const* values, std::int64_t count) {
    if constexpr (exists) {
      for (int i = 0; i < width && i < count; ++i) {
        if (bit_cast<bits>(values[i]) != pattern(i)) return false;
      }
      return count > 0;
    } else {
      return false;
    }
  }

 private:
  static constexpr int width = static_cast<int>(16 / sizeof(T));
  static __device__ bits pattern(int i) {
    return static_cast<bits>((sizeof(bits) == 4 ? 0x7fc5ca9e : 0x7fd5) + i);
  }
};

//! Tells the kernels behind a collective that is to write `values` whether it failed. They must all
//! act on the same answer, and the communicator can fail at any time.
template <class T>
__global__ void latch_failure(T const* values, std::int64_t count, bool known, gate step,
                              int* failed) {
  *failed = known || step.fails() || undelivered<T>::at(values, count) ? 1 : 0;
}

}  // namespace scape::detail::cuda
