// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The inputs of the benchmarks of mask kernels.

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>

#include <scape/config.hpp>

#include "support/bandwidth.hpp"
#include "support/stream_buffer.hpp"

namespace scape::bench {

//! A cheap source of random bits.
class splitmix {
 public:
  explicit splitmix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() noexcept {
    auto x = state_ += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }

 private:
  std::uint64_t state_;
};

//! A mask of stream_size independent bits.
struct random_mask {
  explicit random_mask(double density) : words(mask_words(stream_size)) {
    splitmix random(static_cast<std::uint64_t>(1e6 * density));
    auto const limit = density * 0x1p32;
    for (auto& word : words.span()) {
      for (int i = 0; i < mask_word_bits; i += 2) {
        auto const bits = random();
        word |= mask_word{static_cast<double>(bits >> 32) < limit} << i;
        word |= mask_word{static_cast<double>(bits & 0xffffffffU) < limit} << (i + 1);
      }
      count += std::popcount(word);
    }
  }
  stream_buffer<mask_word> words;
  std::int64_t count = 0;
};

//! Made once per density.
inline random_mask const& mask_of(double density) {
  static std::map<double, random_mask> masks;
  return masks.try_emplace(density, density).first->second;
}

//! stream_size values, uniform in [-1, 1).
template <class T>
stream_buffer<T> const& random_values() {
  static auto const values = [] {
    stream_buffer<T> v(stream_size);
    splitmix random(1);
    for (auto& x : v.span()) {
      x = static_cast<T>(static_cast<float>(static_cast<std::int64_t>(random())) * 0x1p-63F);
    }
    return v;
  }();
  return values;
}

//! Share of the 64-byte cache lines of an array of T that a random mask touches.
template <class T>
double touched_lines(double density) {
  return 1 - std::pow(1 - density, 64 / sizeof(T));
}

}  // namespace scape::bench
