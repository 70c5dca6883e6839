// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Feature macros (all SCAPE_*) and the one multiply-add every backend shares.

#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define SCAPE_HOST_DEVICE __host__ __device__
#else
#define SCAPE_HOST_DEVICE
#endif

#if defined(__GNUC__) || defined(__clang__)
#define SCAPE_RESTRICT __restrict__
#define SCAPE_ALWAYS_INLINE inline __attribute__((always_inline))
#elif defined(_MSC_VER)
#define SCAPE_RESTRICT __restrict
#define SCAPE_ALWAYS_INLINE __forceinline
#else
#define SCAPE_RESTRICT
#define SCAPE_ALWAYS_INLINE inline
#endif

namespace scape {

//! One word of a packed mask: bit i of word w is element 64 w + i.
using mask_word = std::uint64_t;
inline constexpr std::int64_t mask_word_bits = 64;

//! Number of mask words that hold `bits` bits.
SCAPE_HOST_DEVICE constexpr std::int64_t mask_words(std::int64_t bits) noexcept {
  return (bits + mask_word_bits - 1) / mask_word_bits;
}

namespace detail {

//! std::bit_cast that device code may call without a compiler flag.
template <class To, class From>
requires(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<To> &&
         std::is_trivially_copyable_v<From>) SCAPE_HOST_DEVICE constexpr To
    bit_cast(From const& from) noexcept {
  return __builtin_bit_cast(To, from);
}

//! a * b + c, rounded once where the target has a fused multiply-add and twice elsewhere. Every
//! product that feeds a sum goes through here, so the compiler has no contraction left to choose
//! and two loops over the same functor give the same bits.
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float fmadd(float a, float b, float c) noexcept {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace detail
}  // namespace scape
