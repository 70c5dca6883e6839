// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! packed_bitmask on a stream. All memory is the device's, and predicates, operators and other
//! functions of the caller are objects with a __device__ call operator, which are copied.
//!
//! Functions enqueue their work and return. They check, before that, what the host can see
//! (argument_error); the mask's bits and the indices are not looked at, so what does not fit the
//! other arguments is ignored, and nothing is written past the end of an output.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cuda/std/functional>
#include <ranges>
#include <span>
#include <type_traits>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/masked_copy.cuh>
#include <scape/detail/cuda/masked_pass.cuh>
#include <scape/detail/cuda/packed_bitmask.cuh>
#include <scape/packed_bitmask.hpp>
#include <scape/workspace.hpp>

namespace scape::packed_bitmask {

//! Device scratch of select, for_each_set, unpack_indices, gather and scatter. The others need
//! none.
[[nodiscard]] inline std::size_t scratch_bytes(std::int64_t elements) {
  return detail::cuda::mask_ranks::scratch_bytes(mask_words(elements), 1);
}

//! Sets bit i to predicate(i), for i < n. `mask` has n elements.
template <class Predicate>
void pack_if(cuda_context const& ctx, std::int64_t n, Predicate const& predicate,
             bitmask_view mask) {
  constexpr auto op = "packed_bitmask::pack_if";
  detail::expect_current_device(op, ctx);
  detail::expect_equal(op, "the size of the mask", mask.size, n);
  detail::cuda::pack(op, ctx, n, mask.words.data(), detail::cuda::index_itself{}, predicate);
}

//! Sets bit i to predicate(values[i]). One read of the values.
template <std::ranges::contiguous_range Values, class Predicate>
requires std::default_initializable<std::ranges::range_value_t<Values>>
void pack_if(cuda_context const& ctx, Values const& values, Predicate const& predicate,
             bitmask_view mask) {
  constexpr auto op = "packed_bitmask::pack_if";
  std::span const v(values);
  detail::expect_current_device(op, ctx);
  detail::expect_equal(op, "the size of the mask", mask.size, std::ssize(v));
  using element = detail::cuda::array_element<std::ranges::range_value_t<Values>>;
  detail::cuda::pack(op, ctx, mask.size, mask.words.data(), element{v.data()}, predicate);
}

//! Sets bit i where bytes[i] is not 0.
inline void pack_bytes(cuda_context const& ctx, std::span<std::uint8_t const> bytes,
                       bitmask_view mask) {
  constexpr auto op = "packed_bitmask::pack_bytes";
  detail::expect_current_device(op, ctx);
  detail::expect_equal(op, "the size of the mask", mask.size, std::ssize(bytes));
  detail::cuda::pack_bytes(op, ctx, bytes, mask.words);
}

//! Sets the bits at `indices`, which may come in any order and more than once, and clears all
//! others. Indices outside the mask are ignored.
template <std::ranges::contiguous_range Indices>
requires std::integral<std::ranges::range_value_t<Indices>>
void pack_indices(cuda_context const& ctx, Indices const& indices, bitmask_view mask) {
  constexpr auto op = "packed_bitmask::pack_indices";
  std::span const list(indices);
  detail::expect_current_device(op, ctx);
  detail::cuda::clear(op, ctx, mask.words);
  using set_bit = detail::cuda::set_bit<std::ranges::range_value_t<Indices>>;
  detail::cuda::enqueue_for_each_index(op, ctx, std::ssize(list),
                                       set_bit{list.data(), mask.words.data(), mask.size});
}

//! *out = number of set bits.
inline void count(cuda_context const& ctx, const_bitmask_view mask, std::int64_t* out) {
  constexpr auto op = "packed_bitmask::count";
  detail::expect_current_device(op, ctx);
  detail::cuda::count(op, ctx, mask.words.data(), mask.size, out);
}

//! *out = number of set bits below element i, 0 <= i <= mask.size.
inline void rank(cuda_context const& ctx, const_bitmask_view mask, std::int64_t i,
                 std::int64_t* out) {
  constexpr auto op = "packed_bitmask::rank";
  detail::expect_current_device(op, ctx);
  detail::expect_rank_element(mask, i);
  detail::cuda::count(op, ctx, mask.words.data(), i, out);
}

//! *out = the element whose bit is the r-th set one, counted from 0; -1 if there are fewer.
//! 0 <= r < mask.size.
inline void select(cuda_context const& ctx, const_bitmask_view mask, std::int64_t r,
                   std::int64_t* out) {
  constexpr auto op = "packed_bitmask::select";
  detail::expect_current_device(op, ctx);
  if (r < 0 || r >= mask.size) detail::no_such_bit(mask, r);
  carver scratch(ctx.scratch, op);
  detail::cuda::mask_ranks const ranks(op, ctx, mask.words, std::ssize(mask.words), scratch);
  detail::cuda::launch(op, ctx, detail::cuda::select_element<std::int64_t>, 1, 1, ranks.get(),
                       mask.size, r, out);
}

//! Calls f(element, r) for the r-th set bit, for all r, in any order.
template <class F>
void for_each_set(cuda_context const& ctx, const_bitmask_view mask, F const& f) {
  constexpr auto op = "packed_bitmask::for_each_set";
  detail::expect_current_device(op, ctx);
  detail::cuda::enqueue_masked_pass(op, ctx, mask.words, mask.size, detail::cuda::visit_op<F>{f});
}

//! Writes 1 or 0 to bytes[i] for each element. `bytes` has as many elements as the mask.
inline void unpack_bytes(cuda_context const& ctx, const_bitmask_view mask,
                         std::span<std::uint8_t> bytes) {
  constexpr auto op = "packed_bitmask::unpack_bytes";
  detail::expect_current_device(op, ctx);
  detail::expect_equal(op, "the number of bytes", std::ssize(bytes), mask.size);
  detail::cuda::unpack_bytes(op, ctx, mask.words, bytes);
}

//! Writes the indices of the set bits in rising order, as many as there is room for.
template <std::integral Index>
void unpack_indices(cuda_context const& ctx, const_bitmask_view mask, std::span<Index> indices) {
  constexpr auto op = "packed_bitmask::unpack_indices";
  detail::expect_current_device(op, ctx);
  detail::expect_index_type<Index>(mask);
  using write_index = detail::cuda::write_index<Index>;
  detail::cuda::enqueue_masked_pass(
      op, ctx, mask.words, mask.size,
      detail::cuda::visit_op<write_index>{{indices.data(), std::ssize(indices)}});
}

//! out[r] = in[i], with i the r-th set bit, for as many as there is room for. `in` has one value
//! per element; `in` and `out` do not overlap. Only memory near set bits is read.
template <class T>
requires std::is_trivially_copyable_v<T> && std::default_initializable<T>
void gather(cuda_context const& ctx, const_bitmask_view mask,
            std::span<std::type_identity_t<T> const> in, std::span<T> out) {
  constexpr auto op = "packed_bitmask::gather";
  detail::expect_current_device(op, ctx);
  detail::expect_equal(op, "the length of the input", std::ssize(in), mask.size);
  detail::cuda::enqueue_masked_pass(
      op, ctx, mask.words, mask.size,
      detail::cuda::gather_op<T>{in.data(), out.data(), std::ssize(out)});
}

//! out[i] = in[r], with i the r-th set bit, for as many as `in` has; other elements of `out` are
//! not touched. `out` has one value per element; `in` and `out` do not overlap.
template <class T>
requires std::is_trivially_copyable_v<T> && std::default_initializable<T>
void scatter(cuda_context const& ctx, const_bitmask_view mask,
             std::span<std::type_identity_t<T> const> in, std::span<T> out) {
  constexpr auto op = "packed_bitmask::scatter";
  detail::expect_current_device(op, ctx);
  detail::expect_equal(op, "the length of the output", std::ssize(out), mask.size);
  detail::cuda::enqueue_masked_pass(
      op, ctx, mask.words, mask.size,
      detail::cuda::expand_op<T>{in.data(), std::ssize(in), out.data()});
}

//! out = op(a, b), word by word; `out` may be `a` or `b`.
template <class Op>
void combine(cuda_context const& ctx, const_bitmask_view a, const_bitmask_view b, bitmask_view out,
             Op const& op) {
  constexpr auto who = "packed_bitmask::combine";
  detail::expect_current_device(who, ctx);
  detail::expect_combinable(a, b, out);
  detail::cuda::enqueue_for_each_index(
      who, ctx, std::ssize(out.words),
      detail::cuda::combine_words<Op>{a.words.data(), b.words.data(), out.words.data(), out.size,
                                      op});
}

inline void bit_and(cuda_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                    bitmask_view out) {
  combine(ctx, a, b, out, ::cuda::std::bit_and<mask_word>());
}

inline void bit_or(cuda_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                   bitmask_view out) {
  combine(ctx, a, b, out, ::cuda::std::bit_or<mask_word>());
}

inline void bit_xor(cuda_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                    bitmask_view out) {
  combine(ctx, a, b, out, ::cuda::std::bit_xor<mask_word>());
}

//! a without b.
inline void and_not(cuda_context const& ctx, const_bitmask_view a, const_bitmask_view b,
                    bitmask_view out) {
  combine(ctx, a, b, out, detail::cuda::and_not_words());
}

//! Sets all bits.
inline void fill(cuda_context const& ctx, bitmask_view mask) {
  pack_if(ctx, mask.size, detail::cuda::always(), mask);
}

//! Clears all bits.
inline void clear(cuda_context const& ctx, bitmask_view mask) {
  constexpr auto op = "packed_bitmask::clear";
  detail::expect_current_device(op, ctx);
  detail::cuda::clear(op, ctx, mask.words);
}

}  // namespace scape::packed_bitmask
