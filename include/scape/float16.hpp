// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! 16-bit wire types for the host and the rule by which a value is split into what is sent and
//! what stays behind. Conversions round to nearest even and keep NaN, infinities and denormals.

#include <bit>
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
    auto const u = std::bit_cast<std::uint32_t>(x);
    if ((u & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40U);
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
    }
  }
  SCAPE_HOST_DEVICE explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

//! IEEE binary16: 5 exponent bits, 10 fraction bits.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  SCAPE_HOST_DEVICE explicit float16(float x) noexcept {
    auto const u = std::bit_cast<std::uint32_t>(x);
    auto const sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
    auto const magnitude = u & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U;
    } else if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
      half = 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 leaves a multiple of 2^-24
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
    } else {
      half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    bits = static_cast<std::uint16_t>(half | sign);
  }
  SCAPE_HOST_DEVICE explicit operator float() const noexcept {
    auto const sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    auto const exponent = (bits >> 10) & 0x1fU;
    auto const fraction = static_cast<std::uint32_t>(bits & 0x3ffU);
    if (exponent == 0) {
      auto const tiny = static_cast<float>(fraction) * 0x1p-24F;
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(tiny) | sign);
    }
    auto const high = exponent == 31 ? 0x7f800000U : (exponent + 112U) << 23;
    return std::bit_cast<float>(sign | high | (fraction << 13));
  }
};

namespace detail {

//! u rounded to the wire type, such that u - sent is exact in float for every finite u: a finite
//! value never becomes infinite, and where float's spacing at u is wider than the wire's largest
//! value can follow, a power of two (or nothing) is sent and the rest waits in the residual.
template <class Wire>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE Wire to_wire(float u) noexcept {
  if constexpr (std::is_same_v<Wire, float>) {
    return u;
  } else {
    auto wire = Wire(u);
    auto const magnitude = std::bit_cast<std::uint32_t>(u) & 0x7fffffffU;
    if constexpr (std::is_same_v<Wire, bfloat16>) {
      if ((wire.bits & 0x7fffU) == 0x7f80U && magnitude < 0x7f800000U) wire.bits -= 1;
    } else {
      if ((wire.bits & 0x7fffU) == 0x7c00U && magnitude < 0x7f800000U) {
        auto const sign = static_cast<std::uint16_t>(wire.bits & 0x8000U);
        std::uint16_t largest = 0x7bffU;                  // 65504 = 2047 * 2^5
        if (magnitude >= 0x4e000000U) largest = 0x7800U;  // from 2^29 on: 2^15
        if (magnitude >= 0x53000000U) largest = 0;        // from 2^39 on: nothing
        wire.bits = static_cast<std::uint16_t>(sign | largest);
      }
    }
    return wire;
  }
}

//! What stays behind when `sent` travels: u - sent exactly; +0 once u went out whole or was NaN.
template <class Wire>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float residual_of(float u, Wire sent) noexcept {
  if constexpr (std::is_same_v<Wire, float>) {
    return 0.0F;
  } else {
    auto const back = static_cast<float>(sent);
    return back == u || u != u ? 0.0F : u - back;
  }
}

}  // namespace detail
}  // namespace scape
