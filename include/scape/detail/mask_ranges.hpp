// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Whole ranges of a mask, and how much two masks share.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include <scape/config.hpp>
#include <scape/layout.hpp>

namespace scape::detail {

//! Bits of word `w` that belong to elements [begin, end).
SCAPE_HOST_DEVICE constexpr mask_word lanes_of(std::int64_t w, std::int64_t begin,
                                               std::int64_t end) noexcept {
  auto const first = begin > mask_word_bits * w ? begin - mask_word_bits * w : 0;
  auto const last = end < mask_word_bits * (w + 1) ? end - mask_word_bits * w : mask_word_bits;
  if (first >= last) return 0;
  auto const ones = ~mask_word{0};
  return (ones << first) & (ones >> (mask_word_bits - last));
}

//! Sets the bits of elements [range.begin, range.end).
inline void set_range(std::span<mask_word> mask, index_range range) noexcept {
  for (auto w = range.begin / mask_word_bits; w < scape::mask_words(range.end); ++w) {
    mask[static_cast<std::size_t>(w)] |= lanes_of(w, range.begin, range.end);
  }
}

//! Makes a shard's block the dense mask: every element that is not frozen.
inline void set_unfrozen(layout const& layout, int shard, std::span<mask_word> block) noexcept {
  std::ranges::fill(block, mask_word{0});
  for (auto const& group : layout.groups(shard)) {
    for (auto const& range : group.ranges) set_range(block, range);
  }
}

inline std::int64_t count_bits(std::span<mask_word const> mask) noexcept {
  std::int64_t count = 0;
  for (auto const word : mask) count += std::popcount(word);
  return count;
}

//! Set bits among the elements of a range.
inline std::int64_t count_bits(std::span<mask_word const> mask, index_range range) noexcept {
  std::int64_t count = 0;
  for (auto w = range.begin / mask_word_bits; w < scape::mask_words(range.end); ++w) {
    count += std::popcount(mask[static_cast<std::size_t>(w)] & lanes_of(w, range.begin, range.end));
  }
  return count;
}

//! Share of the bits of `mask` that are set in `other` too; 0 for an empty mask.
inline double overlap(std::span<mask_word const> mask, std::span<mask_word const> other) noexcept {
  std::int64_t both = 0;
  for (std::size_t w = 0; w < mask.size(); ++w) both += std::popcount(mask[w] & other[w]);
  auto const all = count_bits(mask);
  return all == 0 ? 0 : static_cast<double>(both) / static_cast<double>(all);
}

}  // namespace scape::detail
