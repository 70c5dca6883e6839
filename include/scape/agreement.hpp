// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A check, for debugging, that all ranks are about to do the same.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/detail/fnv1a.hpp>
#include <scape/error.hpp>

namespace scape {

//! What one rank is about to do. The texts count with their first 32 and 16 characters. What all
//! ranks leave as it is, such as a hash of 0, is equal.
struct agreement {
  std::string_view operation = {};
  std::string_view element = {};  //!< type of the values on the wire
  std::int64_t n = 0;             //!< parameters
  std::int64_t shards = 0;
  std::int64_t k = 0;  //!< values of all shards
  std::int64_t step = 0;
  std::uint64_t layout = 0;   //!< layout::fingerprint()
  std::uint64_t mask = 0;     //!< hash_of() the global mask
  std::uint64_t weights = 0;  //!< hash_of() the weights, before the first step
};

//! A hash of the bits of some values, for an agreement.
template <class T>
[[nodiscard]] std::uint64_t hash_of(std::span<T const> values) noexcept {
  detail::fnv1a hash;
  hash.add(std::as_bytes(values));
  return hash.value();
}

namespace detail {

//! An agreement as it travels: 64-bit words, equally many whatever it says.
struct agreement_record {
  std::array<char, 32> operation = {};
  std::array<char, 16> element = {};
  std::array<std::uint64_t, 7> numbers = {};

  static constexpr std::size_t words = 13;
  static constexpr std::array<char const*, 7> names = {"n",
                                                       "the number of shards",
                                                       "k",
                                                       "the step",
                                                       "the layout's fingerprint",
                                                       "the mask's hash",
                                                       "the weights' hash"};

  explicit agreement_record(agreement const& a)
      : numbers{static_cast<std::uint64_t>(a.n),
                static_cast<std::uint64_t>(a.shards),
                static_cast<std::uint64_t>(a.k),
                static_cast<std::uint64_t>(a.step),
                a.layout,
                a.mask,
                a.weights} {
    a.operation.copy(operation.data(), operation.size());
    a.element.copy(element.data(), element.size());
  }

  //! The fields as texts "name is value".
  [[nodiscard]] std::array<std::string, 9> fields() const {
    auto const text = [](auto const& chars) {
      return std::string(chars.begin(), std::ranges::find(chars, '\0'));
    };
    std::array<std::string, 9> result = {"the operation is " + text(operation),
                                         "the element type is " + text(element)};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      result[i + 2] = std::string(names[i]) + " is " + std::to_string(numbers[i]);
    }
    return result;
  }
};
static_assert(sizeof(agreement_record) == agreement_record::words * sizeof(std::uint64_t));

}  // namespace detail

//! Collective. Throws on every rank, before anything else is started, a peer_error that names the
//! first thing in which the ranks differ, both values, and a rank that is not with the most. Costs
//! one all-gather of 104 bytes per rank, allocates, and waits: a debug level, not for production.
template <communicator C>
requires has_all_gather<C, std::uint64_t>
void expect_agreement(typename C::context_type const& ctx, C& comm, agreement const& own) {
  using record = detail::agreement_record;
  auto const ranks = static_cast<std::size_t>(comm.size());
  using words = std::array<std::uint64_t, record::words>;
  auto const mine = std::bit_cast<words>(record(own));
  std::vector<std::uint64_t> all(ranks * record::words);
  std::vector<std::int64_t> const counts(ranks, record::words);
  comm.all_gather(ctx, std::span<std::uint64_t const>(mine), std::span(all), counts).wait(ctx);
  if (std::ranges::equal(mine, std::span(all).first(record::words)) &&
      std::equal(all.begin() + record::words, all.end(), all.begin())) {
    return;
  }

  std::vector<std::array<std::string, 9>> fields;
  for (std::size_t r = 0; r < ranks; ++r) {
    words other;
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(r * record::words), record::words,
                other.begin());
    fields.push_back(std::bit_cast<record>(other).fields());
  }
  for (std::size_t f = 0; f < 9; ++f) {
    auto const votes = [&](std::size_t r) {
      return std::ranges::count(fields, fields[r][f], [f](auto const& x) { return x[f]; });
    };
    std::size_t most = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (votes(r) > votes(most)) most = r;
    }
    auto least = most;
    for (std::size_t r = 0; r < ranks; ++r) {
      bool const differs = fields[r][f] != fields[most][f];
      if (differs && (least == most || votes(r) <= votes(least))) least = r;
    }
    if (least == most) continue;
    auto const value = fields[most][f].substr(fields[most][f].find(" is ") + 4);
    throw peer_error(std::string(own.operation),
                     "the ranks disagree: " + fields[least][f] + " on rank " +
                         std::to_string(least) + " and " + value + " on rank " +
                         std::to_string(most) + "; give all ranks the same",
                     static_cast<int>(least), comm.rank(), comm.size());
  }
}

}  // namespace scape
