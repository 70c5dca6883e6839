// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Host traversal of one shard for the rebuild: masked coordinates are updated, all others age.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/packed_bitmask.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/moment_rebuild.hpp>
#include <scape/layout.hpp>

namespace scape::detail {

//! The arrays of one shard. `v` is null for rules that keep no second moment.
struct shard_state {
  float* m;
  float* v;
  std::uint16_t* age;
  float* w;
};

//! Adds one to ages[0..n), stopping at the largest value.
inline void grow_older(std::uint16_t* SCAPE_RESTRICT ages, std::int64_t n) noexcept {
  for (std::int64_t j = 0; j < n; ++j) {
    ages[j] = static_cast<std::uint16_t>(ages[j] + (ages[j] != 0xffffU ? 1 : 0));
  }
}

//! Runs the elements of a range; `values` starts at its first masked one. Returns where the next
//! range's values start.
template <class Rule, class Wire>
Wire const* rebuild_range(rebuild_scalars const& c, bool decay_unmasked, index_range range,
                          mask_word const* mask, Wire const* values, shard_state s) noexcept {
  float no_second_moment = 0;
  for (auto word = range.begin / mask_word_bits; word < scape::mask_words(range.end); ++word) {
    auto const lanes = lanes_of(word, range.begin, range.end);
    auto const bits = mask[word] & lanes;
    if (decay_unmasked) {
      for (auto rest = lanes & ~bits; rest != 0; rest &= rest - 1) {
        s.m[mask_word_bits * word + std::countr_zero(rest)] *= c.beta1;
      }
    }
    for (auto rest = bits; rest != 0; rest &= rest - 1) {
      auto const j = mask_word_bits * word + std::countr_zero(rest);
      auto& v = Rule::keeps_second_moment ? s.v[j] : no_second_moment;
      // Ages were advanced beforehand, so this is tau; it saturates with the age.
      rebuild_element<Rule>(c, static_cast<float>(*values++), static_cast<float>(s.age[j]), s.m[j],
                            v, s.w[j]);
      s.age[j] = 0;
    }
  }
  return values;
}

//! Ages all n elements of a shard and rebuilds those in the mask, of which none may be frozen.
template <class Rule, class Wire>
void masked_rebuild(host_context const& ctx, rebuild_scalars const& c, bool decay_unmasked,
                    std::span<layout::scale_range const> scales, std::int64_t n,
                    mask_word const* mask, Wire const* values, shard_state s) {
  ranked_parts const parts(ctx, mask, n);
  parts.for_each([&](std::int64_t begin, mask_word const*, std::int64_t length, std::int64_t rank) {
    grow_older(s.age + begin, length);
    auto const* next = values + rank;
    for (auto const& scale : scales) {
      index_range const range{std::max(scale.range.begin, begin),
                              std::min(scale.range.end, begin + length)};
      if (range.size() <= 0 || scale.frozen) continue;
      auto scaled = c;
      scaled.learning_rate *= scale.lr_scale;
      scaled.weight_decay *= scale.decay_scale;
      next = rebuild_range<Rule>(scaled, decay_unmasked, range, mask, next, s);
    }
  });
}

}  // namespace scape::detail
