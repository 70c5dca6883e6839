// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The argument checks of the masked collectives that need no look at the mask itself.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <scape/config.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>

namespace scape::detail {

inline void expect_one_shard_per_rank(caller who, layout const& layout) {
  expect_equal(who, "the layout's number of shards", layout.shards(), who.size,
               "a layout has one shard per rank");
}

//! Checks that the plan has a count for every shard, none above its elements, with the offsets
//! that follow, and that the mask has the layout's words.
inline void expect_plan(caller who, layout const& layout, send_plan const& plan,
                        std::span<mask_word const> mask) {
  constexpr auto advice = "make the plan with layout::plan";
  expect_equal(who, "the plan's number of counts", std::ssize(plan.counts), layout.shards(),
               advice);
  expect_equal(who, "the plan's number of offsets", std::ssize(plan.offsets), layout.shards() + 1,
               advice);
  expect_equal(who, "the plan's first offset", plan.offsets.front(), 0, advice);
  expect_equal(who, "the mask's number of words", std::ssize(mask), layout.mask_words(),
               "see layout::mask_words");
  for (int p = 0; p < layout.shards(); ++p) {
    auto const shard = static_cast<std::size_t>(p);
    auto const count = plan.counts[shard];
    expect(count >= 0 && count <= layout.shard_size(p) &&
               plan.offsets[shard + 1] - plan.offsets[shard] == count,
           who, [&] {
             return "shard " + std::to_string(p) + " has " + std::to_string(layout.shard_size(p)) +
                    " elements; the plan has a count of " + std::to_string(count) +
                    " and offsets from " + std::to_string(plan.offsets[shard]) + " to " +
                    std::to_string(plan.offsets[shard + 1]);
           });
  }
}

//! The buffers of a masked collective that accumulates.
inline void expect_accumulated(caller who, layout const& layout, std::int64_t gradient,
                               std::int64_t residual, std::int64_t values, std::int64_t count) {
  expect_equal(who, "the length of gradient", gradient, layout.size());
  expect_equal(who, "the length of residual", residual, layout.size());
  expect_equal(who, "the number of values", values, count, "as the plan says");
}

}  // namespace scape::detail
