// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One mask word's elements squeezed together or spread out, by the widest instructions the target
//! has. Nothing is read or written but the elements named.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <scape/config.hpp>

namespace scape::detail {

//! `count` elements of `Bytes` bytes in one register, under one bit each; none by default. Words
//! with at most `few` set bits, -1 for none, are done faster bit by bit.
//!
//!     compress(k, v)        v's elements under k, moved to the front
//!     expand(k, v)          v's first elements, moved under k
//!     load, load_first      all, or the first `n`, elements at p
//!     store_first           the first `n` elements to p
//!     store_where           the elements under k to their places from p on
template <std::size_t Bytes>
struct mask_lanes {
  static constexpr int count = 0, few = mask_word_bits;
};

#if defined(__AVX512F__)

template <>
struct mask_lanes<4> {
  static constexpr int count = 16, few = 0;
  using bits = __mmask16;
  static bits first(int n) noexcept { return static_cast<bits>((1U << n) - 1); }
  static __m512i load(void const* p) noexcept { return _mm512_loadu_si512(p); }
  static __m512i load_first(void const* p, int n) noexcept {
    return _mm512_maskz_loadu_epi32(first(n), p);
  }
  static void store_first(void* p, int n, __m512i v) noexcept {
    _mm512_mask_storeu_epi32(p, first(n), v);
  }
  static void store_where(void* p, bits k, __m512i v) noexcept {
    _mm512_mask_storeu_epi32(p, k, v);
  }
  static __m512i compress(bits k, __m512i v) noexcept { return _mm512_maskz_compress_epi32(k, v); }
  static __m512i expand(bits k, __m512i v) noexcept { return _mm512_maskz_expand_epi32(k, v); }
};

#elif defined(__AVX2__)

//! For each mask of 8 lanes one byte per lane: where compress takes the lane from, and, as lane
//! numbers are their own count in a full mask, where expand does.
struct lane_tables {
  std::array<std::array<std::uint8_t, 8>, 256> compress = {}, expand = {};
  constexpr lane_tables() noexcept {
    for (std::size_t mask = 0; mask < 256; ++mask) {
      std::uint8_t kept = 0;
      for (std::uint8_t lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        compress[mask][kept] = lane;
        expand[mask][lane] = kept++;
      }
    }
  }
};
inline constexpr lane_tables lane_table;

template <>
struct mask_lanes<4> {
  static constexpr int count = 8, few = 8;
  using bits = std::uint8_t;
  static __m256i first(int n) noexcept {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256i load(void const* p) noexcept {
    return _mm256_loadu_si256(static_cast<__m256i const*>(p));
  }
  static __m256i load_first(void const* p, int n) noexcept {
    return _mm256_maskload_epi32(static_cast<int const*>(p), first(n));
  }
  static void store_first(void* p, int n, __m256i v) noexcept {
    _mm256_maskstore_epi32(static_cast<int*>(p), first(n), v);
  }
  static void store_where(void* p, bits k, __m256i v) noexcept {
    auto const lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    auto const set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(k), lane), lane);
    _mm256_maskstore_epi32(static_cast<int*>(p), set, v);
  }
  static __m256i compress(bits k, __m256i v) noexcept { return permute(v, lane_table.compress[k]); }
  static __m256i expand(bits k, __m256i v) noexcept { return permute(v, lane_table.expand[k]); }

 private:
  static __m256i permute(__m256i v, std::array<std::uint8_t, 8> const& from) noexcept {
    auto const bytes = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(from.data()));
    return _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(bytes));
  }
};

#endif

#if defined(__AVX512VBMI2__) && defined(__AVX512BW__)

template <>
struct mask_lanes<2> {
  static constexpr int count = 32, few = -1;
  using bits = __mmask32;
  static bits first(int n) noexcept { return static_cast<bits>((std::uint64_t{1} << n) - 1); }
  static __m512i load(void const* p) noexcept { return _mm512_loadu_si512(p); }
  static __m512i load_first(void const* p, int n) noexcept {
    return _mm512_maskz_loadu_epi16(first(n), p);
  }
  static void store_first(void* p, int n, __m512i v) noexcept {
    _mm512_mask_storeu_epi16(p, first(n), v);
  }
  static void store_where(void* p, bits k, __m512i v) noexcept {
    _mm512_mask_storeu_epi16(p, k, v);
  }
  static __m512i compress(bits k, __m512i v) noexcept { return _mm512_maskz_compress_epi16(k, v); }
  static __m512i expand(bits k, __m512i v) noexcept { return _mm512_maskz_expand_epi16(k, v); }
};

#endif

//! Starts to fetch the cache line at p, which need not exist.
SCAPE_ALWAYS_INLINE void prefetch([[maybe_unused]] void const* p) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(p);
#endif
}

//! How many elements ahead of their use words are fetched: the hardware stops at every page.
inline constexpr std::int64_t prefetch_distance = 512;

//! Fetches the 64 elements from p[prefetch_distance] on.
template <class T>
SCAPE_ALWAYS_INLINE void prefetch_ahead(T const* p) noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(p) + prefetch_distance * sizeof(T);
  for (std::size_t byte = 0; byte < mask_word_bits * sizeof(T); byte += 64) {
    prefetch(reinterpret_cast<void const*>(address + byte));
  }
}

//! Appends in[i], for each set bit i, to out, whose end is returned. `whole`: all of in[0..64)
//! may be read.
template <class T>
SCAPE_ALWAYS_INLINE T* compress_word(mask_word word, bool whole, T const* in, T* out) noexcept {
  using lanes = mask_lanes<sizeof(T)>;
  if constexpr (lanes::count != 0) {
    if (whole && std::popcount(word) > lanes::few) {
      for (int lane = 0; lane < mask_word_bits; lane += lanes::count) {
        auto const bits = static_cast<typename lanes::bits>(word >> lane);
        auto const kept = std::popcount(bits);
        lanes::store_first(out, kept, lanes::compress(bits, lanes::load(in + lane)));
        out += kept;
      }
      return out;
    }
  }
  if (word == ~mask_word{0}) {
    std::memcpy(out, in, mask_word_bits * sizeof(T));
    return out + mask_word_bits;
  }
  for (; word != 0; word &= word - 1) *out++ = in[std::countr_zero(word)];
  return out;
}

//! Overwrites out[i], for each set bit i, with the next value of in, whose end is returned.
template <class T>
SCAPE_ALWAYS_INLINE T const* expand_word(mask_word word, T const* in, T* out) noexcept {
  using lanes = mask_lanes<sizeof(T)>;
  if constexpr (lanes::count != 0) {
    if (std::popcount(word) > lanes::few) {
      for (int lane = 0; lane < mask_word_bits; lane += lanes::count) {
        auto const bits = static_cast<typename lanes::bits>(word >> lane);
        auto const kept = std::popcount(bits);
        lanes::store_where(out + lane, bits, lanes::expand(bits, lanes::load_first(in, kept)));
        in += kept;
      }
      return in;
    }
  }
  if (word == ~mask_word{0}) {
    std::memcpy(out, in, mask_word_bits * sizeof(T));
    return in + mask_word_bits;
  }
  for (; word != 0; word &= word - 1) out[std::countr_zero(word)] = *in++;
  return in;
}

}  // namespace scape::detail
