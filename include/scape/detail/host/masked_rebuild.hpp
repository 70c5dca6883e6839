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

//! No bit of `mask` may lie in a frozen range.

template <class Rule, class Wire>
void masked_rebuild(host_context const& ctx, rebuild_scalars const& c, bool decay_unmasked,
                    std::span<layout::scale_range const> scales, std::int64_t n,
                    std::span<mask_word const> mask, Wire const* values, shard_state s) {
  ctx.parallel([&](int part, int parts) {
    auto const [first, last] = part_of(scape::mask_words(n), part, parts);
    auto const begin = first * mask_word_bits;
    auto const end = std::min(last * mask_word_bits, n);
    if (begin >= end) return;
    grow_older(s.age + begin, end - begin);
    auto const* next = values + count_bits(mask.first(static_cast<std::size_t>(first)));
    for (auto const& scale : scales) {
      index_range const range{std::max(scale.range.begin, begin), std::min(scale.range.end, end)};
      if (range.size() <= 0 || scale.frozen) continue;
      auto scaled = c;
      scaled.learning_rate *= scale.lr_scale;
      scaled.weight_decay *= scale.decay_scale;
      next = rebuild_range<Rule>(scaled, decay_unmasked, range, mask.data(), next, s);
    }
  });
}

}  // namespace scape::detail
