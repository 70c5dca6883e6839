// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Reductions whose bits depend on the ranks' data alone: in rank order, 16-bit floats in float
//! with one rounding at the end.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <scape/config.hpp>
#include <scape/detail/collective_arguments.hpp>

namespace scape::detail {

inline void copy_bytes(std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

//! Combines elements [begin, end) of source(r) -> T const*, ((r0 op r1) op r2) ..., one cache-sized
//! block after the other; `store(i, block, n)` takes the results of elements i ... i+n-1.
template <class T, class Op, class Source, class Store>
void fold(std::size_t ranks, Source const& source, std::int64_t begin, std::int64_t end,
          Store const& store) noexcept {
  using accumulator = accumulator_t<T>;
  constexpr auto block = std::max<std::int64_t>(4096 / sizeof(accumulator), 1);
  accumulator sums[block];
  auto const each = [&](T const* SCAPE_RESTRICT from, std::int64_t n, auto const& f) {
    if (n == block) {  // a constant trip count vectorises best
      for (std::int64_t i = 0; i < block; ++i)
        sums[i] = f(sums[i], static_cast<accumulator>(from[i]));
    } else {
      for (std::int64_t i = 0; i < n; ++i) sums[i] = f(sums[i], static_cast<accumulator>(from[i]));
    }
  };
  for (auto i = begin; i < end; i += block) {
    auto const n = std::min(block, end - i);
    each(source(0) + i, n, [](accumulator const&, accumulator const& x) { return x; });
    for (std::size_t r = 1; r < ranks; ++r) {
      each(source(r) + i, n, [](accumulator const& sum, accumulator const& x) {
        return static_cast<accumulator>(Op{}(sum, x));
      });
    }
    store(i, static_cast<accumulator const*>(sums), n);
  }
}

template <class T, class A>
void store_elements(std::byte* recv, std::int64_t at, A const* SCAPE_RESTRICT from,
                    std::int64_t n) noexcept {
  T* SCAPE_RESTRICT to = reinterpret_cast<T*>(recv) + at;
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
}

}  // namespace scape::detail
