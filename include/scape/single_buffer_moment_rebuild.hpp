// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! From the one reduced buffer back to moments and weights, on the owner of a shard.

#include <cstdint>
#include <span>
#include <string>

#include <scape/context/host.hpp>
#include <scape/detail/host/masked_rebuild.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/moment_rebuild.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>

namespace scape {

//! What the owner keeps for its shard, shard_size(p) elements each.
struct moment_state {
  std::span<float> m;
  std::span<float> v;            //!< empty for a rule that keeps no second moment
  std::span<std::uint16_t> age;  //!< steps since the coordinate was last sent, saturating
};

//! What happens to the first moment of a coordinate that is not in the mask.
enum class unmasked_moment : std::uint8_t { hold, decay };

namespace detail {

//! The lengths that are known without a look at the mask.
template <class Rule>
void expect_rebuilt(caller op, layout const& layout, int shard, std::span<mask_word const> mask,
                    moment_state const& state, std::size_t weights) {
  expect(shard >= 0 && shard < layout.shards(), op, [&] {
    return "shard " + std::to_string(shard) + " is not one of the layout's " +
           std::to_string(layout.shards());
  });
  auto const n = layout.shard_size(shard);
  expect_equal(op, "the length of mask", std::ssize(mask), layout.words_per_shard());
  expect_equal(op, "the length of m", std::ssize(state.m), n);
  expect_equal(op, "the length of v", std::ssize(state.v), Rule::keeps_second_moment ? n : 0);
  expect_equal(op, "the length of age", std::ssize(state.age), n);
  expect_equal(op, "the length of weights", static_cast<std::int64_t>(weights), n);
}

}  // namespace detail

//! Updates moments, ages and weights of shard `shard` where `mask` is set; the others age by one
//! step and, with unmasked_moment::decay, their m shrinks by beta1.
//!
//! @param mask    the shard's words_per_shard() mask words, without frozen elements
//! @param values  the reduced sums, in index order, as many as the mask has bits
//! @param weights the shard's weights
//! Derived from arXiv 2607.01678; the formula is at detail::rebuild_element.
//! Throws argument_error, before anything is changed, when a size disagrees. Allocates nothing.
template <class Rule, class Wire>
void single_buffer_moment_rebuild(host_context const& ctx, layout const& layout, int shard,
                                  std::span<mask_word const> mask, std::span<Wire const> values,
                                  rebuild_scalars const& scalars, unmasked_moment unmasked,
                                  moment_state state, std::span<float> weights) {
  constexpr auto op = "single_buffer_moment_rebuild";
  detail::expect_rebuilt<Rule>(op, layout, shard, mask, state, weights.size());
  auto const n = layout.shard_size(shard);
  detail::expect_equal(op, "the number of values", std::ssize(values), detail::count_bits(mask),
                       "one value per set bit of the mask");
  detail::expect_equal(op, "the number of bits beyond the shard's elements",
                       std::ssize(values) - detail::count_bits(mask, {0, n}), 0);
  for (auto const& scale : layout.scales(shard)) {
    if (!scale.frozen) continue;
    detail::expect_equal(op, "the number of bits of frozen elements",
                         detail::count_bits(mask, scale.range), 0);
  }
  detail::masked_rebuild<Rule>(ctx, scalars, unmasked == unmasked_moment::decay,
                               layout.scales(shard), n, mask.data(), values.data(),
                               {state.m.data(), state.v.data(), state.age.data(), weights.data()});
}

}  // namespace scape
