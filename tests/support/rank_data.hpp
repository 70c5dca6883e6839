// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Inputs that every rank can make without asking the others.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <ranges>
#include <span>
#include <type_traits>
#include <vector>

namespace scape::testing {

template <class Integer>
constexpr std::size_t at(Integer i) noexcept {
  return static_cast<std::size_t>(i);
}

//! A hash of four numbers; the source of all test data.
constexpr std::uint64_t scramble(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0,
                                 std::uint64_t d = 0) noexcept {
  std::uint64_t x = 0x243f6a8885a308d3U;
  for (auto const part : {a, b, c, d}) {
    x = (x ^ part) * 0x9fb21c651e98df25U;
    x ^= x >> 29;
    x *= 0xd6e8feb86659fd93U;
    x ^= x >> 32;
  }
  return x;
}

//! Uniform in (0, 1).
inline double uniform(std::uint64_t seed, int rank, std::int64_t step, std::int64_t j) noexcept {
  auto const bits = scramble(seed, at(rank), at(step), at(j));
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

//! An integer from -range to range.
inline float small_integer(std::uint64_t seed, int rank, std::int64_t step, std::int64_t j,
                           int range) noexcept {
  auto const bits = scramble(seed, at(rank), at(step), at(j));
  return static_cast<float>(static_cast<int>(bits % at(2 * range + 1)) - range);
}

//! Standard normal.
inline float normal(std::uint64_t seed, int rank, std::int64_t step, std::int64_t j) noexcept {
  auto const radius = std::sqrt(-2 * std::log(uniform(seed, rank, step, 2 * j)));
  return static_cast<float>(radius *
                            std::cos(6.283185307179586 * uniform(seed, rank, step, 2 * j + 1)));
}

//! n values f(0), f(1), ...
template <class F>
auto make_vector(std::int64_t n, F const& f) {
  std::vector<std::decay_t<decltype(f(n))>> result;
  result.reserve(at(n));
  for (std::int64_t j = 0; j < n; ++j) result.push_back(f(j));
  return result;
}

inline std::vector<float> integer_gradient(std::uint64_t seed, int rank, std::int64_t step,
                                           std::int64_t n, int range = 8) {
  return make_vector(n, [&](auto j) { return small_integer(seed, rank, step, j, range); });
}
inline std::vector<float> normal_gradient(std::uint64_t seed, int rank, std::int64_t step,
                                          std::int64_t n) {
  return make_vector(n, [&](auto j) { return normal(seed, rank, step, j); });
}
//! Multiples of 1/64 between -1 and 1, the same on every rank.
inline std::vector<float> initial_weights(std::int64_t n) {
  return make_vector(n, [](auto j) { return small_integer(99, 0, 0, j, 64) / 64; });
}

//! Equal bit patterns, so that NaN equals itself and +0 is not -0.
template <std::ranges::contiguous_range A, std::ranges::contiguous_range B>
bool same_bits(A const& a, B const& b) {
  auto const bytes_of = [](auto const& x) { return std::as_bytes(std::span(x)); };
  auto const x = bytes_of(a);
  auto const y = bytes_of(b);
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
}

}  // namespace scape::testing
