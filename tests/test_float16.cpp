// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <scape/float16.hpp>

#include "support/rank_data.hpp"

namespace {

using scape::bfloat16;
using scape::float16;
using scape::testing::scramble;

template <class Wire>
struct format;
template <>
struct format<bfloat16> {
  static constexpr int fraction_bits = 7, bias = 127;
};
template <>
struct format<float16> {
  static constexpr int fraction_bits = 10, bias = 15;
};

template <class Wire>
constexpr int infinity_bits = (0x7fff >> format<Wire>::fraction_bits)
                              << format<Wire>::fraction_bits;

//! The value of a bit pattern below infinity, from the definition of the format.
template <class Wire>
double value_of(int magnitude) {
  using f = format<Wire>;
  auto const exponent = magnitude >> f::fraction_bits;
  auto const fraction = magnitude & ((1 << f::fraction_bits) - 1);
  if (exponent == 0) return std::ldexp(fraction, 1 - f::bias - f::fraction_bits);
  return std::ldexp(fraction + (1 << f::fraction_bits), exponent - f::bias - f::fraction_bits);
}

//! Nearest bit pattern to |x|, ties to the even one; past the last value as if one more came.
template <class Wire>
int nearest(double x) {
  static auto const values = [] {
    std::vector<double> v;
    for (int bits = 0; bits < infinity_bits<Wire>; ++bits) v.push_back(value_of<Wire>(bits));
    v.push_back(2 * v.back() - v[v.size() - 2]);
    return v;
  }();
  if (x >= values.back()) return infinity_bits<Wire>;
  auto const above =
      static_cast<int>(std::upper_bound(values.begin(), values.end(), x) - values.begin());
  auto const middle =
      values[static_cast<std::size_t>(above) - 1] / 2 + values[static_cast<std::size_t>(above)] / 2;
  if (x == middle) return above % 2 == 0 ? above : above - 1;
  return x > middle ? above : above - 1;
}

template <class Wire>
Wire from_bits(int bits) {
  Wire wire;
  wire.bits = static_cast<std::uint16_t>(bits);
  return wire;
}

//! Calls f(x) for floats of all binades and both signs, and for those next to a wire value or next
//! to the middle between two.
template <class Wire, class F>
void for_many_floats(F const& f) {
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    f(std::bit_cast<float>(static_cast<std::uint32_t>(scramble(i))));
  }
  for (int bits = 0; bits < infinity_bits<Wire>; ++bits) {
    auto const value = value_of<Wire>(bits);
    auto const next = value_of<Wire>(bits + 1);
    for (auto const x : {value, value / 2 + next / 2}) {
      auto const y = static_cast<float>(x);
      for (auto const z : {y, std::nextafter(y, 0.0F), std::nextafter(y, INFINITY)}) {
        f(z);
        f(-z);
      }
    }
  }
  for (auto const x : {0.0F, 1e-45F, std::numeric_limits<float>::min(), 65504.0F, 65519.996F,
                       65520.0F, 0x1p29F, 0x1p39F, std::numeric_limits<float>::max()}) {
    for (auto const y : {x, std::nextafter(x, 0.0F), std::nextafter(x, INFINITY)}) {
      f(y);
      f(-y);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern becomes its float and comes back", Wire, bfloat16,
                   float16) {
  bool values = true, round_trips = true, nans = true;
  for (int bits = 0; bits < 0x10000; ++bits) {
    auto const wire = from_bits<Wire>(bits);
    auto const x = static_cast<float>(wire);
    auto const magnitude = bits & 0x7fff;
    if (magnitude > infinity_bits<Wire>) {
      nans = nans && std::isnan(x) && std::isnan(static_cast<float>(Wire(x)));
      continue;
    }
    auto const expected = magnitude == infinity_bits<Wire> ? INFINITY : value_of<Wire>(magnitude);
    values = values && std::abs(static_cast<double>(x)) == expected &&
             std::signbit(x) == (bits >= 0x8000);
    round_trips = round_trips && Wire(x).bits == bits;
  }
  CHECK(values);
  CHECK(round_trips);
  CHECK(nans);
}

TEST_CASE_TEMPLATE("floats round to the nearest, ties to even", Wire, bfloat16, float16) {
  int wrong = 0;
  for_many_floats<Wire>([&](float x) {
    auto const wire = Wire(x);
    bool good = std::isnan(static_cast<float>(wire));
    if (!std::isnan(x)) {
      auto const sign = std::signbit(x) ? 0x8000 : 0;
      good = wire.bits == (nearest<Wire>(std::abs(static_cast<double>(x))) | sign);
    }
    if (!good && wrong++ == 0) FAIL_CHECK("first wrong: ", std::bit_cast<std::uint32_t>(x));
  });
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("what is sent and what stays add up exactly", Wire, bfloat16, float16, float) {
  using samples = std::conditional_t<std::is_same_v<Wire, float>, bfloat16, Wire>;
  int wrong = 0;
  for_many_floats<samples>([&](float u) {
    auto const limit = scape::detail::wire_limit<Wire>(3);
    auto const wire = scape::detail::to_wire<Wire>(u, limit);
    auto const sent = static_cast<float>(wire);
    auto const rest = scape::detail::residual_of(u, wire);
    bool good = false;
    if (std::isfinite(u)) {
      good = std::isfinite(sent) && std::isfinite(rest) && sent + rest == u &&
             static_cast<double>(sent) + static_cast<double>(rest) == static_cast<double>(u) &&
             (sent != u || (rest == 0 && !std::signbit(rest))) &&
             std::signbit(sent) == std::signbit(u);
      if constexpr (!std::is_same_v<Wire, float>) {
        good = good && std::abs(sent) <= limit;
        if (std::abs(u) <= limit) good = good && wire.bits == Wire(u).bits;
      }
    } else {
      good = (std::isnan(u) ? std::isnan(sent) : sent == u) && rest == 0;
    }
    if (!good && wrong++ == 0) FAIL_CHECK("first wrong: ", std::bit_cast<std::uint32_t>(u));
  });
  CHECK(wrong == 0);
}

TEST_CASE("what is too large for a float16 waits") {
  using scape::detail::to_wire;
  CHECK(scape::detail::wire_limit<float16>(1) == 32768);
  CHECK(scape::detail::wire_limit<float16>(2) == 16384);
  CHECK(scape::detail::wire_limit<float16>(3) == 16384);
  CHECK(scape::detail::wire_limit<float16>(4) == 8192);
  auto const send = [](float u) { return static_cast<float>(to_wire<float16>(u, 8192)); };
  CHECK(send(8192) == 8192);
  CHECK(send(8193) == 8192);
  CHECK(send(-1e6F) == -8192);
  CHECK(send(0x1.fp36F) == 8192);
  CHECK(send(-0x1p37F) == 0);
  CHECK(static_cast<float>(to_wire<bfloat16>(std::numeric_limits<float>::max(),
                                             scape::detail::wire_limit<bfloat16>(4))) ==
        0x1.fep127F);
}
