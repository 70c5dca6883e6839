// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Counter-based random numbers and a hash: the same on every machine, with no state to save.

#include <cstddef>
#include <cstdint>
#include <span>

namespace train_gpt {

//! The finaliser of splitmix64: a bijection that scatters its input over all 64 bits.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

//! In [0, 1), a pure function of seed and counter.
[[nodiscard]] constexpr double uniform(std::uint64_t seed, std::uint64_t counter) noexcept {
  return static_cast<double>(mix(mix(seed) ^ counter) >> 11) * 0x1p-53;
}

//! 64-bit FNV-1a; pass a previous result as `hash` to continue it.
[[nodiscard]] inline std::uint64_t fnv1a(std::span<std::byte const> bytes,
                                         std::uint64_t hash = 0xcbf29ce484222325U) noexcept {
  for (std::byte const b : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace train_gpt
