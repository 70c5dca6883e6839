// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Host traversals of a packed mask. Pointers are to the elements of bit 0; bits at and past n are
//! never looked at, and written as 0.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/mask_lanes.hpp>

namespace scape::detail {

//! Bits of the word that holds element n-1 which belong to elements below n > 0.
constexpr mask_word lanes_below(std::int64_t n) noexcept {
  return ~mask_word{0} >> ((mask_word_bits - n % mask_word_bits) % mask_word_bits);
}

//! Calls visit(w, word, whole) for the words of n elements; `whole` is false if the last word has
//! bits past n, and these are cleared.
template <class Visit>
SCAPE_ALWAYS_INLINE void for_each_word(mask_word const* mask, std::int64_t n, Visit&& visit) {
  auto const whole = n / mask_word_bits;
  for (std::int64_t w = 0; w < whole; ++w) visit(w, mask[w], true);
  if (n % mask_word_bits != 0) visit(whole, mask[whole] & lanes_below(n), false);
}

[[nodiscard]] inline std::int64_t count_bits(mask_word const* mask, std::int64_t n) noexcept {
  std::int64_t count = 0;
  for_each_word(mask, n, [&](std::int64_t, mask_word word, bool) { count += std::popcount(word); });
  return count;
}

//! n elements cut at word boundaries into one part for each thread of a context, or a single one
//! where waking threads would cost more than they save.
class word_parts {
 public:
  static constexpr int most = 128;
  static constexpr std::int64_t smallest_work = std::int64_t{1} << 16;

  word_parts(host_context const& ctx, std::int64_t n) noexcept
      : ctx_(ctx), n_(n), parts_(n < smallest_work ? 1 : std::min(ctx.threads(), most)) {}

  [[nodiscard]] int parts() const noexcept { return parts_; }

  //! Calls f(part, begin, end) for the elements [begin, end) of each part; begin is a multiple of
  //! the word. f must not throw.
  template <class F>
  void for_each(F&& f) const {
    if (parts_ == 1) return f(0, std::int64_t{0}, n_);
    ctx_.parallel([&](int part, int) {
      if (part >= parts_) return;
      auto const [first, last] = part_of(scape::mask_words(n_), part, parts_);
      f(part, first * mask_word_bits, std::min(last * mask_word_bits, n_));
    });
  }

 private:
  host_context const& ctx_;
  std::int64_t n_;
  int parts_;
};

//! Parts that know how many bits are set before them.
class ranked_parts {
 public:
  ranked_parts(host_context const& ctx, mask_word const* mask, std::int64_t n)
      : words_(ctx, n), mask_(mask), n_(n) {
    if (words_.parts() == 1) return;
    words_.for_each([&](int part, std::int64_t begin, std::int64_t end) {
      ranks_[static_cast<std::size_t>(part) + 1] =
          count_bits(mask + begin / mask_word_bits, end - begin);
    });
    for (std::size_t part = 0; part < word_parts::most; ++part) ranks_[part + 1] += ranks_[part];
  }

  [[nodiscard]] std::int64_t count() const noexcept {
    return words_.parts() == 1 ? count_bits(mask_, n_) : ranks_.back();
  }

  //! Calls f(begin, words, length, rank): the part's elements are [begin, begin + length), their
  //! mask starts at `words`, and `rank` bits are set before it. f must not throw.
  template <class F>
  void for_each(F&& f) const {
    words_.for_each([&](int part, std::int64_t begin, std::int64_t end) {
      f(begin, mask_ + begin / mask_word_bits, end - begin, ranks_[static_cast<std::size_t>(part)]);
    });
  }

 private:
  word_parts words_;
  mask_word const* mask_;
  std::int64_t n_;
  std::array<std::int64_t, word_parts::most + 1> ranks_ = {};
};

//! Bit i of the result: bytes[i] is not 0.
SCAPE_ALWAYS_INLINE mask_word nonzero_bits(std::uint8_t const* bytes) noexcept {
#if defined(__AVX512BW__)
  auto const v = _mm512_loadu_si512(bytes);
  return _mm512_test_epi8_mask(v, v);
#elif defined(__AVX2__)
  auto const half = [&](int i) {
    auto const v = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(bytes + i));
    auto const zero = _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_setzero_si256()));
    return static_cast<mask_word>(~static_cast<std::uint32_t>(zero)) << i;
  };
  return half(0) | half(32);
#elif defined(__SSE2__)
  auto const quarter = [&](int i) {
    auto const v = _mm_loadu_si128(reinterpret_cast<__m128i const*>(bytes + i));
    auto const zero = _mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_setzero_si128()));
    return static_cast<mask_word>(static_cast<std::uint16_t>(~zero)) << i;
  };
  return quarter(0) | quarter(16) | quarter(32) | quarter(48);
#else
  mask_word word = 0;
  for (int i = 0; i < mask_word_bits; ++i) word |= static_cast<mask_word>(bytes[i] != 0) << i;
  return word;
#endif
}

//! Bit i of the result: flag(i), for i in [begin, end), end - begin <= 64.
template <class Flag>
SCAPE_ALWAYS_INLINE mask_word flag_bits(std::int64_t begin, std::int64_t end, Flag&& flag) {
  mask_word word = 0;
  for (auto i = begin; i < end; ++i) word |= static_cast<mask_word>(flag(i) ? 1 : 0) << (i - begin);
  return word;
}

//! Packs flag(i) for the elements [begin, end), begin a multiple of the word. `ahead(i)` may start
//! to fetch what flag will look at some time after i.
template <class Flag, class Ahead>
void pack_part(std::int64_t begin, std::int64_t end, mask_word* mask, Flag const& flag,
               Ahead const& ahead) {
  constexpr std::int64_t block = 8 * mask_word_bits;  // evaluated apart, so that it vectorises
  alignas(64) std::uint8_t flags[block];
  auto i = begin;
  for (; i + block <= end; i += block) {
    for (std::int64_t word = 0; word < block; word += mask_word_bits) {
      ahead(i + word);
      for (auto j = word; j < word + mask_word_bits; ++j) flags[j] = flag(i + j) ? 1 : 0;
    }
    for (std::int64_t word = 0; word < block; word += mask_word_bits) {
      mask[(i + word) / mask_word_bits] = nonzero_bits(flags + word);
    }
  }
  for (; i < end; i += mask_word_bits) {
    mask[i / mask_word_bits] = flag_bits(i, std::min(i + mask_word_bits, end), flag);
  }
}

template <class Flag, class Ahead>
void pack(host_context const& ctx, std::int64_t n, mask_word* mask, Flag const& flag,
          Ahead const& ahead) {
  word_parts(ctx, n).for_each(
      [&](int, std::int64_t begin, std::int64_t end) { pack_part(begin, end, mask, flag, ahead); });
}

//! bytes[i] = bit i of word, for i < 64.
SCAPE_ALWAYS_INLINE void unpack_word(mask_word word, std::uint8_t* bytes) noexcept {
#if defined(__AVX512BW__)
  _mm512_storeu_si512(bytes, _mm512_maskz_set1_epi8(word, 1));
#else
  for (int i = 0; i < mask_word_bits; ++i) bytes[i] = static_cast<std::uint8_t>(word >> i & 1);
#endif
}

inline void unpack_bytes(host_context const& ctx, mask_word const* mask, std::int64_t n,
                         std::uint8_t* bytes) {
  word_parts(ctx, n).for_each([=](int, std::int64_t begin, std::int64_t end) {
    for_each_word(mask + begin / mask_word_bits, end - begin,
                  [&](std::int64_t w, mask_word word, bool whole) {
                    auto const first = begin + mask_word_bits * w;
                    if (whole) return unpack_word(word, bytes + first);
                    for (auto i = first; i < end; ++i, word >>= 1) {
                      bytes[i] = static_cast<std::uint8_t>(word & 1);
                    }
                  });
  });
}

//! out = op(a, b) for all words of n elements; they may be the same words.
template <class Op>
void combine(host_context const& ctx, mask_word const* a, mask_word const* b, std::int64_t n,
             mask_word* out, Op const& op) {
  word_parts(ctx, n).for_each([&](int, std::int64_t begin, std::int64_t end) {
    for (auto w = begin / mask_word_bits; w < scape::mask_words(end); ++w) out[w] = op(a[w], b[w]);
  });
  if (n > 0) out[scape::mask_words(n) - 1] &= lanes_below(n);
}

//! Calls f(element, r) for the r-th set bit.
template <class F>
void for_each_set(ranked_parts const& parts, F const& f) {
  parts.for_each([&](std::int64_t begin, mask_word const* mask, std::int64_t n, std::int64_t rank) {
    for_each_word(mask, n, [&](std::int64_t w, mask_word word, bool) {
      for (; word != 0; word &= word - 1) {
        f(begin + mask_word_bits * w + std::countr_zero(word), rank++);
      }
    });
  });
}

//! Position of the r-th set bit, r < popcount(word).
inline int select_bit(mask_word word, std::int64_t r) noexcept {
#if defined(__BMI2__)
  return std::countr_zero(_pdep_u64(mask_word{1} << r, word));
#else
  for (; r > 0; --r) word &= word - 1;
  return std::countr_zero(word);
#endif
}

//! The element of the r-th set bit, or -1.
inline std::int64_t select(mask_word const* mask, std::int64_t n, std::int64_t r) noexcept {
  if (r < 0) return -1;
  for (std::int64_t w = 0; w < scape::mask_words(n); ++w) {
    auto const word = w == n / mask_word_bits ? mask[w] & lanes_below(n) : mask[w];
    auto const bits = std::popcount(word);
    if (r < bits) return mask_word_bits * w + select_bit(word, r);
    r -= bits;
  }
  return -1;
}

//! 0, 1, 2, ...
template <std::size_t N>
constexpr std::array<std::uint16_t, N> counting_numbers() noexcept {
  std::array<std::uint16_t, N> numbers = {};
  for (std::size_t i = 0; i < N; ++i) numbers[i] = static_cast<std::uint16_t>(i);
  return numbers;
}

//! Goes through a mask by blocks. Where few bits are set, calls few(begin, positions) with the
//! offsets of all set bits from `begin`, so that memory between them is not touched; elsewhere
//! calls many(begin, word, whole) for each word.
template <class Few, class Many>
SCAPE_ALWAYS_INLINE void for_each_few_or_many(mask_word const* mask, std::int64_t n, Few&& few,
                                              Many&& many) {
  constexpr std::int64_t block = 64 * mask_word_bits;
  constexpr std::int64_t most_few = block / 16;
  static constexpr auto offsets = counting_numbers<block>();
  std::uint16_t positions[most_few];
  for (std::int64_t begin = 0; begin < n; begin += block) {
    auto const length = std::min(block, n - begin);
    auto const* words = mask + begin / mask_word_bits;
    if (count_bits(words, length) <= std::min(most_few, length / 16)) {
      auto* end = positions;
      for_each_word(words, length, [&](std::int64_t w, mask_word word, bool) {
        end = compress_word(word, true, offsets.data() + mask_word_bits * w, end);
      });
      few(begin, std::span<std::uint16_t const>(positions, end));
    } else {
      for_each_word(words, length, [&](std::int64_t w, mask_word word, bool whole) {
        many(begin + mask_word_bits * w, word, whole);
      });
    }
  }
}

//! out[r] = in[i], with i the r-th set bit.
template <class T>
void gather_part(mask_word const* mask, std::int64_t n, T const* SCAPE_RESTRICT in,
                 T* SCAPE_RESTRICT out) noexcept {
  for_each_few_or_many(
      mask, n,
      [&](std::int64_t begin, std::span<std::uint16_t const> positions) {
        for (auto const position : positions) *out++ = in[begin + position];
      },
      [&](std::int64_t begin, mask_word word, bool whole) {
        prefetch_ahead(in + begin);
        out = compress_word(word, whole, in + begin, out);
      });
}

//! out[i] = in[r], with i the r-th set bit; other elements are not touched.
template <class T>
void scatter_part(mask_word const* mask, std::int64_t n, T const* SCAPE_RESTRICT in,
                  T* SCAPE_RESTRICT out) noexcept {
  for_each_few_or_many(
      mask, n,
      [&](std::int64_t begin, std::span<std::uint16_t const> positions) {
        for (auto const position : positions) prefetch(out + begin + position);
        for (auto const position : positions) out[begin + position] = *in++;
      },
      [&](std::int64_t begin, mask_word word, bool) {
        prefetch_ahead(out + begin);
        in = expand_word(word, in, out + begin);
      });
}

template <class T>
void gather(ranked_parts const& parts, T const* in, T* out) {
  parts.for_each([=](std::int64_t begin, mask_word const* mask, std::int64_t n, std::int64_t rank) {
    gather_part(mask, n, in + begin, out + rank);
  });
}

template <class T>
void scatter(ranked_parts const& parts, T const* in, T* out) {
  parts.for_each([=](std::int64_t begin, mask_word const* mask, std::int64_t n, std::int64_t rank) {
    scatter_part(mask, n, in + rank, out + begin);
  });
}

}  // namespace scape::detail
