// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The fused pass of a sparse step: accumulate the gradient, take out what is sent.

#include <algorithm>
#include <cstdint>

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/accumulate_and_split.hpp>
#include <scape/detail/host/mask_lanes.hpp>
#include <scape/detail/host/packed_bitmask.hpp>

namespace scape::detail {

//! One part, in blocks that stay in the first-level cache from one step to the next.
template <class Wire, class Grad>
void accumulate_and_compact_part(Grad const* SCAPE_RESTRICT grad, float* SCAPE_RESTRICT residual,
                                 std::int64_t n, mask_word const* SCAPE_RESTRICT mask,
                                 float coefficient, float limit,
                                 Wire* SCAPE_RESTRICT packed) noexcept {
  constexpr std::int64_t block = 8 * mask_word_bits;
  alignas(64) float taken[block];
  for (std::int64_t begin = 0; begin < n; begin += block) {
    auto const length = std::min(block, n - begin);
    auto const* words = mask + begin / mask_word_bits;
    for_each_word(words, length, [&](std::int64_t w, mask_word, bool whole) {
      auto const* g = grad + begin + mask_word_bits * w;
      auto* r = residual + begin + mask_word_bits * w;
      if (whole) {
        prefetch_ahead(g);
        prefetch_ahead(r);
        for (int j = 0; j < mask_word_bits; ++j) r[j] = accumulate(coefficient, g[j], r[j]);
      } else {
        for (int j = 0; j < n % mask_word_bits; ++j) r[j] = accumulate(coefficient, g[j], r[j]);
      }
    });
    auto* end = taken;
    for_each_word(words, length, [&](std::int64_t w, mask_word word, bool whole) {
      end = compress_word(word, whole, residual + begin + mask_word_bits * w, end);
    });
    auto const count = end - taken;
    for (std::int64_t r = 0; r < count; ++r) {
      split(taken[r], limit, packed[r], taken[r]);
    }
    packed += count;
    float const* next = taken;
    for_each_word(words, length, [&](std::int64_t w, mask_word word, bool) {
      next = expand_word(word, next, residual + begin + mask_word_bits * w);
    });
  }
}

//! u = coefficient * grad[j] + residual[j] for j < n. Where bit j is set, u rounded to Wire is
//! (at most `limit` of it, see to_wire) appended to `packed`, in index order, and residual[j]
//! becomes what that left out; elsewhere residual[j] becomes u. No pointer needs alignment beyond
//! its type's; nothing past the last packed value is written. Blocks.
template <class Wire, class Grad>
void accumulate_and_compact(host_context const& ctx, Grad const* grad, float* residual,
                            std::int64_t n, mask_word const* mask, float coefficient, float limit,
                            Wire* packed) {
  ranked_parts const parts(ctx, mask, n);
  parts.for_each(
      [=](std::int64_t begin, mask_word const* words, std::int64_t length, std::int64_t rank) {
        accumulate_and_compact_part(grad + begin, residual + begin, length, words, coefficient,
                                    limit, packed + rank);
      });
}

}  // namespace scape::detail
