// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Masks of one bit per element: packing, counting, rank and select, set algebra, and moving
//! elements under a mask. Bit i of word w is element 64 w + i. Bits past the last element are
//! written as 0 and ignored on input.
//!
//! Every function takes a context first, checks its arguments before it writes anything
//! (argument_error), needs no scratch memory and returns when done. With a pool in the context,
//! large masks are cut at word boundaries into one part per thread; results do not depend on the
//! number of threads. Functions of the caller may then be called from several threads at once,
//! each for elements of its own, and must not throw.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/packed_bitmask.hpp>
#include <scape/error.hpp>

namespace scape {

namespace detail {

template <class Word>
struct basic_bitmask_view {
  std::span<Word> words;  //!< exactly mask_words(size) of them
  std::int64_t size;      //!< number of elements

  //! `memory` may be longer than needed. Throws argument_error if it is too short.
  basic_bitmask_view(std::span<Word> memory, std::int64_t elements) : size(elements) {
    auto const needed = mask_words(elements);
    if (elements < 0 || std::ssize(memory) < needed) {
      throw argument_error("bitmask_view", "there are " + std::to_string(memory.size()) +
                                               " words of memory, " + std::to_string(needed) +
                                               " are needed for " + std::to_string(elements) +
                                               " elements");
    }
    words = memory.first(static_cast<std::size_t>(needed));
  }
};

}  // namespace detail

//! `size` bits in words of the caller, on the side the context of a call works on.
struct bitmask_view : detail::basic_bitmask_view<mask_word> {
  using basic_bitmask_view::basic_bitmask_view;
};

struct const_bitmask_view : detail::basic_bitmask_view<mask_word const> {
  using basic_bitmask_view::basic_bitmask_view;
  const_bitmask_view(bitmask_view mask) : basic_bitmask_view(mask.words, mask.size) {}  // NOLINT
};

namespace detail {

inline void expect_rank_element(const_bitmask_view mask, std::int64_t i) {
  if (i >= 0 && i <= mask.size) return;
  throw argument_error("packed_bitmask::rank", "element " + std::to_string(i) + " is outside [0, " +
                                                   std::to_string(mask.size) + "]");
}

[[noreturn]] inline void no_such_bit(const_bitmask_view mask, std::int64_t r) {
  throw argument_error("packed_bitmask::select", "there is no set bit number " + std::to_string(r) +
                                                     " in a mask of " + std::to_string(mask.size) +
                                                     " elements");
}

template <std::integral Index>
void expect_index_type(const_bitmask_view mask) {
  expect(std::cmp_less_equal(mask.size, std::numeric_limits<Index>::max()),
         "packed_bitmask::unpack_indices", "the index type is too small for the mask");
}

inline void expect_combinable(const_bitmask_view a, const_bitmask_view b, const_bitmask_view out) {
  expect_equal("packed_bitmask::combine", "the size of the second mask", b.size, a.size);
  expect_equal("packed_bitmask::combine", "the size of the output", out.size, a.size);
}

}  // namespace detail

namespace packed_bitmask {

//! Sets bit i to predicate(i), for i < n. `mask` has n elements.
template <std::predicate<std::int64_t> Predicate>
void pack_if(host_context const& ctx, std::int64_t n, Predicate const& predicate,
             bitmask_view mask) {
  detail::expect_equal("packed_bitmask::pack_if", "the size of the mask", mask.size, n);
  detail::pack(ctx, n, mask.words.data(), predicate, [](std::int64_t) {});
}

//! Sets bit i to predicate(values[i]). One read of the values.
template <std::ranges::contiguous_range Values,
          std::predicate<std::ranges::range_value_t<Values> const&> Predicate>
void pack_if(host_context const& ctx, Values const& values, Predicate const& predicate,
             bitmask_view mask) {
  std::span const v(values);
  detail::expect_equal("packed_bitmask::pack_if", "the size of the mask", mask.size, std::ssize(v));
  auto const* first = v.data();
  detail::pack(
      ctx, mask.size, mask.words.data(), [&, first](auto i) { return predicate(first[i]); },
      [first](auto i) { detail::prefetch_ahead(first + i); });
}

//! Sets bit i where bytes[i] is not 0.
inline void pack_bytes(host_context const& ctx, std::span<std::uint8_t const> bytes,
                       bitmask_view mask) {
  pack_if(
      ctx, bytes, [](std::uint8_t byte) { return byte != 0; }, mask);
}

//! Sets the bits at `indices`, which may come in any order and more than once, and clears all
//! others. Runs on the calling thread.
template <std::ranges::contiguous_range Indices>
requires std::integral<std::ranges::range_value_t<Indices>>
void pack_indices(host_context const&, Indices const& indices, bitmask_view mask) {
  for (auto const index : indices) {
    if (std::cmp_less(index, 0) || std::cmp_greater_equal(index, mask.size)) {
      throw argument_error(
          "packed_bitmask::pack_indices",
          "index " + std::to_string(index) + " is outside [0, " + std::to_string(mask.size) + ")");
    }
  }
  std::ranges::fill(mask.words, mask_word{0});
  for (auto const index : indices) {
    auto const i = static_cast<std::size_t>(index);
    mask.words[i / mask_word_bits] |= mask_word{1} << (i % mask_word_bits);
  }
}

//! Number of set bits.
[[nodiscard]] inline std::int64_t count(host_context const& ctx, const_bitmask_view mask) {
  return detail::ranked_parts(ctx, mask.words.data(), mask.size).count();
}

//! Number of set bits below element i, 0 <= i <= mask.size.
[[nodiscard]] inline std::int64_t rank(host_context const& ctx, const_bitmask_view mask,
                                       std::int64_t i) {
  detail::expect_rank_element(mask, i);
  return detail::ranked_parts(ctx, mask.words.data(), i).count();
}

//! The element whose bit is the r-th set one, counted from 0. Reads the mask up to there.
[[nodiscard]] inline std::int64_t select(host_context const&, const_bitmask_view mask,
                                         std::int64_t r) {
  auto const element = detail::select(mask.words.data(), mask.size, r);
  if (element < 0) detail::no_such_bit(mask, r);
  return element;
}

//! Calls f(element, r) for the r-th set bit, for all r; in order on each thread.
template <std::invocable<std::int64_t, std::int64_t> F>
void for_each_set(host_context const& ctx, const_bitmask_view mask, F const& f) {
  detail::for_each_set(detail::ranked_parts(ctx, mask.words.data(), mask.size), f);
}

//! Writes 1 or 0 to bytes[i] for each element. `bytes` has as many elements as the mask.
inline void unpack_bytes(host_context const& ctx, const_bitmask_view mask,
                         std::span<std::uint8_t> bytes) {
  detail::expect_equal("packed_bitmask::unpack_bytes", "the number of bytes", std::ssize(bytes),
                       mask.size);
  detail::unpack_bytes(ctx, mask.words.data(), mask.size, bytes.data());
}

//! Writes the indices of the set bits in rising order; there must be as many as `indices` has.
template <std::integral Index>
void unpack_indices(host_context const& ctx, const_bitmask_view mask, std::span<Index> indices) {
  constexpr auto op = "packed_bitmask::unpack_indices";
  detail::expect_index_type<Index>(mask);
  detail::ranked_parts const parts(ctx, mask.words.data(), mask.size);
  detail::expect_equal(op, "the number of indices", std::ssize(indices), parts.count());
  detail::for_each_set(parts, [out = indices.data()](std::int64_t element, std::int64_t r) {
    out[r] = static_cast<Index>(element);
  });
}

//! out[r] = in[i], with i the r-th set bit. `in` has one value per element, `out` one per set bit;
//! they do not overlap. Only memory near set bits is read.
template <class T>
requires std::is_trivially_copyable_v<T>
void gather(host_context const& ctx, const_bitmask_view mask,
            std::span<std::type_identity_t<T> const> in, std::span<T> out) {
  constexpr auto op = "packed_bitmask::gather";
  detail::expect_equal(op, "the length of the input", std::ssize(in), mask.size);
  detail::ranked_parts const parts(ctx, mask.words.data(), mask.size);
  detail::expect_equal(op, "the length of the output", std::ssize(out), parts.count(),
                       "it takes one value per set bit");
  detail::gather(parts, in.data(), out.data());
}

//! out[i] = in[r], with i the r-th set bit; other elements of `out` are not touched. `in` has one
//! value per set bit, `out` one per element; they do not overlap.
template <class T>
requires std::is_trivially_copyable_v<T>
void scatter(host_context const& ctx, const_bitmask_view mask,
             std::span<std::type_identity_t<T> const> in, std::span<T> out) {
  constexpr auto op = "packed_bitmask::scatter";
  detail::expect_equal(op, "the length of the output", std::ssize(out), mask.size);
  detail::ranked_parts const parts(ctx, mask.words.data(), mask.size);
  detail::expect_equal(op, "the length of the input", std::ssize(in), parts.count(),
                       "it gives one value per set bit");
  detail::scatter(parts, in.data(), out.data());
}

//! out = op(a, b), word by word; `out` may be `a` or `b`.
template <class Op>
void combine(host_context const& ctx, const_bitmask_view a, const_bitmask_view b, bitmask_view out,
             Op const& op) {
  detail::expect_combinable(a, b, out);
  detail::combine(ctx, a.words.data(), b.words.data(), a.size, out.words.data(), op);
}

inline void bit_and(host_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                    bitmask_view out) {
  combine(ctx, a, b, out, [](mask_word x, mask_word y) { return x & y; });
}

inline void bit_or(host_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                   bitmask_view out) {
  combine(ctx, a, b, out, [](mask_word x, mask_word y) { return x | y; });
}

inline void bit_xor(host_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                    bitmask_view out) {
  combine(ctx, a, b, out, [](mask_word x, mask_word y) { return x ^ y; });
}

//! a without b.
inline void and_not(host_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                    bitmask_view out) {
  combine(ctx, a, b, out, [](mask_word x, mask_word y) { return x & ~y; });
}

//! Sets all bits.
inline void fill(host_context const& ctx, bitmask_view mask) {
  combine(ctx, mask, mask, mask, [](mask_word, mask_word) { return ~mask_word{0}; });
}

//! Clears all bits.
inline void clear(host_context const& ctx, bitmask_view mask) {
  combine(ctx, mask, mask, mask, [](mask_word, mask_word) { return mask_word{0}; });
}

}  // namespace packed_bitmask
}  // namespace scape
