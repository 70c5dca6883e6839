// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The argument checks every communicator makes before it starts an operation.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <scape/concepts.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>

namespace scape::detail {

//! Sums of 16-bit floats are kept in float and rounded once.
template <class T>
using accumulator_t =
    std::conditional_t<std::same_as<T, bfloat16> || std::same_as<T, float16>, float, T>;

template <class T>
concept element = transportable<T> && !std::is_const_v<T>;

//! Op combines accumulators, carries no state and does not throw.
template <class Op, class T>
concept reduction = element<T> && std::default_initializable<T> && std::is_empty_v<Op> &&
    std::default_initializable<Op> &&
    std::is_invocable_r_v<accumulator_t<T>, Op const&, accumulator_t<T>, accumulator_t<T>>;

//! A caller's buffer without its type.
struct collective_buffer {
  std::string_view name;
  void const* data;
  std::int64_t count;

  template <class T>
  collective_buffer(std::string_view buffer_name, std::span<T> elements) noexcept
      : name(buffer_name), data(elements.data()), count(std::ssize(elements)) {}
};

inline void expect_count(caller who, collective_buffer const& buffer, std::int64_t want,
                         std::string_view reason) {
  if (buffer.count == want) return;
  who.fail(std::string(buffer.name) + " has " + std::to_string(buffer.count) +
           " elements, expected " + std::to_string(want) + ", " + std::string(reason));
}

//! Throws unless `part` starts exactly `offset` bytes into `whole` or the two do not touch.
inline void expect_in_place_or_apart(caller who, collective_buffer const& part,
                                     collective_buffer const& whole, std::int64_t offset,
                                     std::size_t element_size) {
  if (part.count == 0 || whole.count == 0) return;
  auto const a = reinterpret_cast<std::uintptr_t>(part.data);
  auto const b = reinterpret_cast<std::uintptr_t>(whole.data);
  auto const a_end = a + static_cast<std::size_t>(part.count) * element_size;
  auto const b_end = b + static_cast<std::size_t>(whole.count) * element_size;
  if (a == b + static_cast<std::size_t>(offset) || a_end <= b || b_end <= a) return;
  who.fail(std::string(part.name) + " overlaps " + std::string(whole.name) +
           " but is not the place of this rank's elements in it; pass exactly that place or "
           "separate memory");
}

//! Checks the two buffers of an all_gather or reduce_scatter: `part` is this rank's block of
//! `whole`, which holds one block of counts[r] elements per rank. Returns the length of `whole`.
inline std::int64_t expect_blocks(caller who, collective_buffer const& part,
                                  collective_buffer const& whole,
                                  std::span<std::int64_t const> counts, std::size_t element_size) {
  if (std::ssize(counts) != who.size) {
    who.fail("counts has " + std::to_string(counts.size()) + " entries, expected " +
             std::to_string(who.size) + ", one per rank");
  }
  std::int64_t total = 0, offset = 0;
  for (int r = 0; r < who.size; ++r) {
    auto const count = counts[static_cast<std::size_t>(r)];
    if (count < 0 || count > std::numeric_limits<std::int64_t>::max() - total) {
      who.fail("counts[" + std::to_string(r) + "] is " + std::to_string(count) +
               (count < 0 ? ", expected 0 or more" : ", which overflows the sum of counts"));
    }
    if (r == who.rank) offset = total;
    total += count;
  }
  expect_count(who, part, counts[static_cast<std::size_t>(who.rank)],
               "counts[" + std::to_string(who.rank) + "]");
  expect_count(who, whole, total, "the sum of counts");
  expect_in_place_or_apart(who, part, whole, offset * static_cast<std::int64_t>(element_size),
                           element_size);
  return total;
}

//! Checks the two buffers of an all_reduce.
inline void expect_alike(caller who, collective_buffer const& send, collective_buffer const& recv,
                         std::size_t element_size) {
  expect_count(who, recv, send.count, "the length of send");
  expect_in_place_or_apart(who, send, recv, 0, element_size);
}

inline void expect_rank(caller who, std::string_view name, int rank) {
  if (rank >= 0 && rank < who.size) return;
  who.fail(std::string(name) + " is " + std::to_string(rank) + ", expected a rank from 0 to " +
           std::to_string(who.size - 1));
}

inline void expect_root(caller who, int root) { expect_rank(who, "root", root); }

//! Checks what goes to, or comes from, rank `peer`.
inline void expect_message(caller who, collective_buffer const& data, std::string_view peer_name,
                           int peer) {
  expect_rank(who, peer_name, peer);
  expect(data.data != nullptr || data.count == 0, who, [&] {
    return std::string(data.name) + " is null, but has " + std::to_string(data.count) + " elements";
  });
}

}  // namespace scape::detail
