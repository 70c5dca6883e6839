// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Masks as one bool per element, and arrays that show when something next to them was written.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <scape/config.hpp>
#include <scape/packed_bitmask.hpp>

#include "support/rank_data.hpp"

namespace scape::testing {

//! The names of the patterns `make_mask` knows: densities, and special shapes.
inline constexpr std::string_view mask_patterns[] = {
    "0.01", "0.1", "0.5", "none", "all", "alternating", "first", "last", "few and many"};

inline std::vector<bool> make_mask(std::string_view pattern, std::int64_t n) {
  std::vector<bool> mask(at(n));
  auto const density = [&](std::int64_t i) -> double {
    if (pattern == "none") return 0;
    if (pattern == "all") return 1;
    if (pattern == "alternating") return static_cast<double>(i % 2);
    if (pattern == "first") return i == 0 ? 1 : 0;
    if (pattern == "last") return i == n - 1 ? 1 : 0;
    if (pattern == "few and many") return i / 5000 % 2 == 0 ? 0.02 : 0.7;
    return std::stod(std::string(pattern));
  };
  for (std::int64_t i = 0; i < n; ++i) mask[at(i)] = uniform(17, 0, 0, i) < density(i);
  return mask;
}

inline std::vector<mask_word> packed(std::vector<bool> const& mask) {
  std::vector<mask_word> words(at(mask_words(std::ssize(mask))));
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) words[i / 64] |= mask_word{1} << (i % 64);
  }
  return words;
}

inline std::vector<std::int64_t> set_elements(std::vector<bool> const& mask) {
  std::vector<std::int64_t> elements;
  for (std::int64_t i = 0; i < std::ssize(mask); ++i) {
    if (mask[at(i)]) elements.push_back(i);
  }
  return elements;
}

//! `size` elements of T, `offset` elements past an address aligned to the cache line, inside an
//! allocation that ends where they do or, with guards, after a region that must not change.
template <class T, class Memory = std::vector<std::byte>>
class guarded {
 public:
  explicit guarded(std::int64_t size, std::int64_t offset = 0, std::int64_t guard = 80)
      : memory_(at((size + offset + 2 * guard + 64) * static_cast<std::int64_t>(sizeof(T))),
                std::byte{0xa5}),
        size_(at(size)) {
    if (size < 0) throw std::length_error("guarded");  // GCC 12 takes it into account otherwise
    auto const address = reinterpret_cast<std::uintptr_t>(memory_.data()) + at(guard) * sizeof(T);
    begin_ = at(guard) * sizeof(T) + (64 - address % 64) % 64 + at(offset) * sizeof(T);
    for (auto& x : span()) x = T{};
  }
  guarded(std::vector<T> const& values, std::int64_t offset = 0)
      : guarded(std::ssize(values), offset) {
    std::ranges::copy(values, span().begin());
  }

  [[nodiscard]] std::span<T> span() noexcept {
    return {reinterpret_cast<T*>(memory_.data() + begin_), size_};
  }
  [[nodiscard]] T* data() noexcept { return span().data(); }

  //! Nothing around the elements was written.
  [[nodiscard]] bool intact() const noexcept {
    auto const clean = [](std::byte b) { return b == std::byte{0xa5}; };
    auto const* first = memory_.data();
    return std::all_of(first, first + begin_, clean) &&
           std::all_of(first + begin_ + size_ * sizeof(T), first + memory_.size(), clean);
  }

 private:
  Memory memory_;
  std::size_t size_;
  std::size_t begin_ = 0;
};

}  // namespace scape::testing
