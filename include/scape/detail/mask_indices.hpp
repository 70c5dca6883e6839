// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A shard's mask as a list of 16-bit words: for every block of 65536 elements the number of its
//! set bits in two words, the low one first; then, block after block, the places of these bits
//! within their block in ascending order. Shorter than the bits themselves where fewer than 1 in 16
//! is set.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include <scape/config.hpp>

namespace scape::detail {

inline constexpr std::int64_t index_block = 65536;
inline constexpr std::size_t index_block_words = index_block / mask_word_bits;

//! 16-bit words of a list with `bits` bits of `elements`.
constexpr std::int64_t index_words(std::int64_t bits, std::int64_t elements) noexcept {
  return bits + 2 * ((elements + index_block - 1) / index_block);
}

//! `list` has index_words() words for exactly the bits that are set.
inline void mask_to_indices(std::span<mask_word const> mask, std::int64_t elements,
                            std::span<std::uint16_t> list) noexcept {
  auto header = list.begin();
  auto next = header + index_words(0, elements);
  for (std::size_t block = 0; static_cast<std::int64_t>(block) * index_block < elements; ++block) {
    auto const first = next;
    auto const begin = block * index_block_words;
    auto const end = std::min(begin + index_block_words, mask.size());
    for (auto w = begin; w < end; ++w) {
      auto const place = (w - begin) * mask_word_bits;
      for (auto bits = mask[w]; bits != 0; bits &= bits - 1) {
        *next++ = static_cast<std::uint16_t>(place + static_cast<unsigned>(std::countr_zero(bits)));
      }
    }
    auto const count = static_cast<std::uint32_t>(next - first);
    *header++ = static_cast<std::uint16_t>(count);
    *header++ = static_cast<std::uint16_t>(count >> 16U);
  }
}

//! The other way round. Returns false, with `mask` undefined, if the list is not one that
//! mask_to_indices could have made.
[[nodiscard]] inline bool indices_to_mask(std::span<std::uint16_t const> list,
                                          std::int64_t elements,
                                          std::span<mask_word> mask) noexcept {
  std::ranges::fill(mask, mask_word{0});
  auto header = list.begin();
  auto next = header + index_words(0, elements);
  for (std::size_t block = 0; static_cast<std::int64_t>(block) * index_block < elements; ++block) {
    auto const count = static_cast<std::int64_t>(header[0]) | std::int64_t{header[1]} << 16U;
    header += 2;
    if (count > list.end() - next) return false;
    auto const left =
        std::min(elements - static_cast<std::int64_t>(block) * index_block, index_block);
    auto* const words = mask.data() + block * index_block_words;
    std::int64_t previous = -1;
    for (auto const last = next + count; next != last; ++next) {
      if (*next <= previous || *next >= left) return false;
      previous = *next;
      words[previous / mask_word_bits] |= mask_word{1} << (previous % mask_word_bits);
    }
  }
  return next == list.end();
}

}  // namespace scape::detail
