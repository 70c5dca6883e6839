// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Keys 64 at a time, and the elements that compete.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/topk_key.hpp>
#include <scape/layout.hpp>

namespace scape::detail::topk {

//! Keys of the 64 elements of a mask word.
struct alignas(64) key_block {
  key at[mask_word_bits];
};

//! Bit l is keys[l] > threshold.
SCAPE_ALWAYS_INLINE mask_word bits_above(key_block const& keys, key threshold) noexcept {
  mask_word bits = 0;
#if defined(__AVX512F__) && !defined(__clang__)
  // The keys may have been stored 32 bytes at a time, and a wider load would wait for such stores.
  // Clang would join the two loads again.
  auto const t = _mm512_set1_epi32(threshold);
  auto const half = [&](int l) {
    return _mm256_load_si256(reinterpret_cast<__m256i const*>(keys.at + l));
  };
  for (int l = 0; l < 64; l += 16) {
    auto const low = _mm512_castsi256_si512(half(l));
    auto const k = _mm512_maskz_inserti64x4(0xff, low, half(l + 8), 1);
    bits |= mask_word{_mm512_cmpgt_epi32_mask(k, t)} << l;
  }
#elif defined(__AVX2__)
  auto const t = _mm256_set1_epi32(threshold);
  for (int l = 0; l < 64; l += 8) {
    auto const k = _mm256_load_si256(reinterpret_cast<__m256i const*>(keys.at + l));
    auto const above = _mm256_castsi256_ps(_mm256_cmpgt_epi32(k, t));
    bits |= mask_word{static_cast<unsigned>(_mm256_movemask_ps(above))} << l;
  }
#elif defined(__SSE2__)
  auto const t = _mm_set1_epi32(threshold);
  auto const above = [&](int l) {
    return _mm_cmpgt_epi32(_mm_load_si128(reinterpret_cast<__m128i const*>(keys.at + l)), t);
  };
  for (int l = 0; l < 64; l += 16) {
    auto const low = _mm_packs_epi32(above(l), above(l + 4));
    auto const high = _mm_packs_epi32(above(l + 8), above(l + 12));
    auto const sixteen = static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
    bits |= mask_word{sixteen} << l;
  }
#else
  for (int l = 0; l < 64; ++l) bits |= mask_word{keys.at[l] > threshold} << l;
#endif
  return bits;
}

//! The lowest `count` set bits.
inline mask_word lowest_bits(mask_word bits, std::int64_t count) noexcept {
  auto rest = bits;
  for (; count > 0 && rest != 0; --count) rest &= rest - 1;
  return bits & ~rest;
}

//! The elements that compete: ascending ranges without the excluded elements.
struct domain {
  std::span<index_range const> ranges;
  mask_word const* exclude = nullptr;  //!< may be null
  std::int64_t length = 0;             //!< of all ranges

  [[nodiscard]] mask_word excluded(std::int64_t w) const noexcept {
    return exclude == nullptr ? 0 : exclude[w];
  }

  //! Words [first, second) of a part; parts share no word and together hold all ranges.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> words(int part, int parts) const noexcept {
    auto const cut = [&](int i) {
      if (i == parts) return scape::mask_words(ranges.back().end);
      auto position = part_of(length, i, parts).first;
      auto range = ranges.begin();
      while (position >= range->size()) position -= (range++)->size();
      return (range->begin + position) / mask_word_bits;
    };
    return {cut(part), cut(part + 1)};
  }

  //! Calls visit(w, lanes, range) in ascending order, once for every range with elements in word
  //! w, until it returns false. `lanes` are the elements of that range.
  template <class Visit>
  SCAPE_ALWAYS_INLINE void for_each_word(std::pair<std::int64_t, std::int64_t> words,
                                         Visit&& visit) const {
    for (auto const& range : ranges) {
      auto const last = std::min(words.second, scape::mask_words(range.end));
      for (auto w = std::max(words.first, range.begin / mask_word_bits); w < last; ++w) {
        if (!visit(w, lanes_of(w, range.begin, range.end), range)) return;
      }
    }
  }

  //! Number of elements that are not excluded.
  [[nodiscard]] std::int64_t count() const noexcept {
    if (exclude == nullptr) return length;
    std::int64_t eligible = 0;
    for_each_word(words(0, 1), [&](std::int64_t w, mask_word in_range, index_range) {
      eligible += std::popcount(in_range & ~exclude[w]);
      return true;
    });
    return eligible;
  }

  //! Sets the bits of all elements that are not excluded, and of the first `others` that are.
  void set_all(std::int64_t others, mask_word* out) const noexcept {
    for_each_word(words(0, 1), [&](std::int64_t w, mask_word in_range, index_range) {
      auto const excluded_lanes = in_range & excluded(w);
      auto const taken = lowest_bits(excluded_lanes, others);
      others -= std::popcount(taken);
      out[w] |= (in_range & ~excluded_lanes) | taken;
      return true;
    });
  }
};

}  // namespace scape::detail::topk
