// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The kernels of one shard's block, applied to the blocks of a global mask.

#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include <scape/context/host.hpp>
#include <scape/detail/host/accumulate_and_compact.hpp>
#include <scape/detail/host/packed_bitmask.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/plan_arguments.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>
#include <scape/layout.hpp>

namespace scape::detail {

inline std::span<mask_word const> block_of(layout const& layout, int shard,
                                           std::span<mask_word const> mask) noexcept {
  auto const words = static_cast<std::size_t>(layout.words_per_shard());
  return mask.subspan(static_cast<std::size_t>(shard) * words, words);
}

//! Checks the plan and, block by block, that the mask has its bits: with that, no kernel can write
//! past the plan's counts.
inline void expect_masked_blocks(caller who, layout const& layout, send_plan const& plan,
                                 std::span<mask_word const> mask) {
  expect_plan(who, layout, plan, mask);
  for (int p = 0; p < layout.shards(); ++p) {
    auto const block = block_of(layout, p, mask);
    auto const bits = count_bits(block);
    auto const beyond = bits - count_bits(block, {0, layout.shard_size(p)});
    auto const count = plan.counts[static_cast<std::size_t>(p)];
    expect(bits == count && beyond == 0, who, [&] {
      return "shard " + std::to_string(p) + "'s block of the mask has " + std::to_string(bits) +
             " bits, " + std::to_string(beyond) +
             " of them beyond the shard; the plan has a count of " + std::to_string(count);
    });
  }
}

//! Calls f(shard, block, first element, first value) for every shard.
template <class F>
void for_each_block(layout const& layout, send_plan const& plan, std::span<mask_word const> mask,
                    F&& f) {
  for (int p = 0; p < layout.shards(); ++p) {
    f(p, block_of(layout, p, mask).data(), layout.begin(p),
      plan.offsets[static_cast<std::size_t>(p)]);
  }
}

//! accumulate_and_compact of all shards: gradient and residual have n elements, packed has the
//! plan's total; `ranks` take part in the sum.
template <class Wire, class Gradient>
void accumulate_and_compact_blocks(host_context const& ctx, int ranks, layout const& layout,
                                   send_plan const& plan, std::span<mask_word const> mask,
                                   Gradient const* gradient, float* residual, float coefficient,
                                   Wire* packed) {
  auto const limit = wire_limit<Wire>(ranks);
  for_each_block(layout, plan, mask, [&](int p, auto* block, auto begin, auto offset) {
    accumulate_and_compact(ctx, gradient + begin, residual + begin, layout.shard_size(p), block,
                           coefficient, limit, packed + offset);
  });
}

//! Undoes the taking: residual[j] becomes sent + residual again.
template <class Wire>
void return_blocks(layout const& layout, send_plan const& plan, std::span<mask_word const> mask,
                   Wire const* packed, float* residual) {
  for_each_block(layout, plan, mask, [&](int p, auto* block, auto begin, auto offset) {
    auto const* next = packed + offset;
    for_each_word(block, layout.shard_size(p), [&](std::int64_t w, mask_word word, bool) {
      for (; word != 0; word &= word - 1) {
        residual[begin + mask_word_bits * w + std::countr_zero(word)] +=
            static_cast<float>(*next++);
      }
    });
  });
}

template <class T>
void gather_block(host_context const& ctx, layout const& layout, int shard,
                  std::span<mask_word const> mask, T const* vector, T* packed) {
  gather(ranked_parts(ctx, block_of(layout, shard, mask).data(), layout.shard_size(shard)),
         vector + layout.begin(shard), packed);
}

template <class T>
void gather_blocks(host_context const& ctx, layout const& layout, send_plan const& plan,
                   std::span<mask_word const> mask, T const* vector, T* packed) {
  for (int p = 0; p < layout.shards(); ++p) {
    gather_block(ctx, layout, p, mask, vector, packed + plan.offsets[static_cast<std::size_t>(p)]);
  }
}

template <class T>
void scatter_block(host_context const& ctx, layout const& layout, int shard,
                   std::span<mask_word const> mask, T const* packed, T* vector) {
  scatter(ranked_parts(ctx, block_of(layout, shard, mask).data(), layout.shard_size(shard)), packed,
          vector + layout.begin(shard));
}

}  // namespace scape::detail
