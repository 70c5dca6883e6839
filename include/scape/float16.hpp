// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! 16-bit wire types for the host and the rule by which a value is split into what is sent and
//! what stays behind. Conversions round to nearest even and keep NaN (made quiet), infinities and
//! denormals. They choose between values and never branch, so that loops over them vectorise.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <scape/config.hpp>

namespace scape {

//! The upper half of a float: 8 exponent bits, 7 fraction bits.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  SCAPE_HOST_DEVICE explicit bfloat16(float x) noexcept {
    auto const u = detail::bit_cast<std::uint32_t>(x);
    if ((u & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40U);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
    }
  }
  SCAPE_HOST_DEVICE explicit operator float() const noexcept {
    return detail::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

//! IEEE binary16: 5 exponent bits, 10 fraction bits.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  SCAPE_HOST_DEVICE explicit float16(float x) noexcept {
    auto const u = detail::bit_cast<std::uint32_t>(x);
    auto const sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
    auto const magnitude = u & 0x7fffffffU;
    // Below 2^-14, adding 0.5 leaves a multiple of 2^-24.
    auto const tiny = detail::bit_cast<std::uint32_t>(detail::bit_cast<float>(magnitude) + 0.5F);
    auto half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    half = magnitude < 0x38800000U ? tiny - 0x3f000000U : half;
    half = magnitude >= 0x477ff000U ? 0x7c00U : half;  // 65520 and above round to infinity
    half = magnitude > 0x7f800000U ? 0x7e00U : half;
    bits = static_cast<std::uint16_t>(half | sign);
  }
  SCAPE_HOST_DEVICE explicit operator float() const noexcept {
    auto const sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    auto const magnitude = static_cast<std::uint32_t>(bits & 0x7fffU);
    // A denormal gets the exponent of 2^-14 and an implied 1, which is subtracted again.
    auto const smallest = magnitude < 0x400U ? 0x38800000U : 0U;
    auto exponent = magnitude >= 0x7c00U ? 0x70000000U : 0x38000000U;
    exponent = smallest != 0 ? smallest : exponent;
    auto const value =
        detail::bit_cast<float>((magnitude << 13) + exponent) - detail::bit_cast<float>(smallest);
    return detail::bit_cast<float>(detail::bit_cast<std::uint32_t>(value) | sign);
  }
};

namespace detail {

//! Which of the two formats a type has; backends add types of their own.
template <class T>
inline constexpr bool is_binary16 = std::is_same_v<T, float16>;
template <class T>
inline constexpr bool is_bfloat16 = std::is_same_v<T, bfloat16>;
template <class T>
inline constexpr bool is_16_bit_float = is_binary16<T> || is_bfloat16<T>;

//! The largest magnitude one of `ranks` ranks may send so that their sum stays finite: for float16
//! the largest power of two up to 65504 / ranks, for bfloat16 its largest value, as its range is
//! that of float.
template <class Wire>
[[nodiscard]] inline float wire_limit(int ranks) noexcept {
  if constexpr (is_binary16<Wire>) {
    return std::exp2(std::floor(std::log2(65504.0F / static_cast<float>(ranks))));
  } else if constexpr (is_bfloat16<Wire>) {
    return 0x1.fep127F;
  } else {
    return std::numeric_limits<float>::infinity();
  }
}

//! u rounded to the wire type, such that u - sent is exact in float for every finite u. A finite
//! value beyond the limit sends as much as the limit and the rest waits in the residual; one so
//! large that float's spacing there exceeds the limit waits whole.
template <class Wire>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE Wire to_wire(float u, float limit) noexcept {
  if constexpr (std::is_same_v<Wire, float>) {
    return u;
  } else {
    auto const magnitude = std::fabs(u);
    auto const most = magnitude < limit * 0x1p24F ? limit : 0.0F;
    bool const beyond = magnitude > limit && magnitude <= 0x1.fffffep127F;
    return Wire(beyond ? std::copysign(most, u) : u);
  }
}

//! What stays behind when `sent` travels: u - sent exactly; +0 once u went out whole or was not
//! finite.
template <class Wire>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float residual_of(float u, Wire sent) noexcept {
  if constexpr (std::is_same_v<Wire, float>) {
    return 0.0F;
  } else {
    auto const rest = u - static_cast<float>(sent);
    return rest == rest ? rest : 0.0F;  // NaN where u was infinite or NaN
  }
}

}  // namespace detail
}  // namespace scape
