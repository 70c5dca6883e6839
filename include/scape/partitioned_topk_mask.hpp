// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The mask of a shard: exactly k bits per selection group, where a statistic is largest.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <scape/concepts.hpp>
#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/topk.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/topk_key.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>
#include <scape/workspace.hpp>

namespace scape {

//! Where a NaN ranks: before infinity, so that it is sent and seen, or after zero.
enum class nan_policy : std::uint8_t { first, last };

struct topk_options {
  //! Words of the shard; these elements are taken only if a group has fewer than k others, and
  //! then in index order.
  std::span<mask_word const> exclude = {};
  std::span<topk_hint> hints = {};  //!< one per selection group of the shard, or none
  nan_policy nan = nan_policy::first;
};

namespace detail {

//! The arguments of a selection, but for its scratch memory.
inline void expect_selection(caller who, layout const& layout, send_plan const& plan, int shard,
                             std::span<mask_word const> mask, topk_options const& options) {
  expect(shard >= 0 && shard < layout.shards(), who, [&] {
    return "shard " + std::to_string(shard) + " is not one of the layout's " +
           std::to_string(layout.shards());
  });
  auto const groups = layout.groups(shard);
  expect_equal(who, "the number of words of the mask", std::ssize(mask), layout.words_per_shard());
  if (!options.exclude.empty()) {
    expect_equal(who, "the number of words to exclude", std::ssize(options.exclude),
                 layout.words_per_shard());
  }
  if (!options.hints.empty()) {
    expect_equal(who, "the number of hints", std::ssize(options.hints), std::ssize(groups),
                 "give one per selection group of the shard");
  }
  auto const first = layout.first_group(shard);
  expect(plan.group_k.size() >= first + groups.size(), who, [&] {
    return "the plan has " + std::to_string(plan.group_k.size()) + " groups, at least " +
           std::to_string(first + groups.size()) + " are needed; use layout.plan()";
  });
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto const k = plan.group_k[first + g];
    expect(k >= 0 && k <= groups[g].length, who, [&] {
      return "k of group " + std::to_string(g) + " is " + std::to_string(k) + ", the group has " +
             std::to_string(groups[g].length) + " elements";
    });
  }
}

inline topk::key nan_key_of(nan_policy nan) noexcept {
  return nan == nan_policy::first ? topk::largest_key : topk::smallest_key;
}

}  // namespace detail

//! Asks for the cache lines of p[0] ... p[63]. A statistic with a member `prefetch(i)` that does so
//! for its arrays at i is read faster when they are larger than the caches; i + 63 is in range.
template <class T>
SCAPE_ALWAYS_INLINE void prefetch_word(T const* p) noexcept {
#if defined(__GNUC__) || defined(__clang__)
  auto const* const bytes = reinterpret_cast<char const*>(p);
  for (std::size_t i = 0; i < 64 * sizeof(T); i += 64) __builtin_prefetch(bytes + i);
#else
  static_cast<void>(p);
#endif
}

//! Scratch bytes for any shard of the layout and any number of threads: a quarter of a byte per
//! element of the longest shard and about 200 kB, or less if that has fewer than 2^14 elements.
//! The .cuh has the one for a cuda_context.
template <execution_context Context = host_context>
std::size_t partitioned_topk_mask_bytes(layout const& layout) {
  static_assert(std::same_as<Context, host_context>, "include <scape/partitioned_topk_mask.cuh>");
  return detail::topk::scratch_bytes(layout.max_shard_size());
}

//! Fills `mask`, the words of one shard: every bit of spans with policy `always`, none of `frozen`
//! ones, and plan.group_k bits of every other selection group. Those are where |statistic(i)| is
//! largest; of equal magnitudes (+0 and -0, or two NaNs) the lower index goes first. The result
//! is the same for every number of threads, instruction set and hint.
//!
//! @param statistic  float of a shard-relative index, the same each time it is asked and on every
//!                   thread: once or twice per element as a rule. Must not throw. Never asked for
//!                   elements of other than sparse spans
//! @param mask       layout.words_per_shard() words
//! @param ctx        scratch: partitioned_topk_mask_bytes(layout); blocks until done
//! Throws argument_error before anything is changed.
template <statistic F>
void partitioned_topk_mask(host_context const& ctx, layout const& layout, send_plan const& plan,
                           int shard, F const& statistic, std::span<mask_word> mask,
                           topk_options const& options = {}) {
  constexpr auto op = "partitioned_topk_mask";
  detail::expect_selection(op, layout, plan, shard, mask, options);
  detail::expect_scratch(op, ctx.scratch.size(), partitioned_topk_mask_bytes(layout));

  auto const groups = layout.groups(shard);
  auto const first = layout.first_group(shard);
  std::ranges::fill(mask, mask_word{0});
  detail::topk::key_source const keys(statistic, detail::nan_key_of(options.nan));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto const& group = groups[g];
    if (group.policy == span_policy::always) {
      for (auto const& range : group.ranges) detail::set_range(mask, range);
      continue;
    }
    auto* const hint = options.hints.empty() ? nullptr : &options.hints[g];
    auto const found = detail::topk::select(
        ctx, {group.ranges, options.exclude.data(), group.length}, plan.group_k[first + g], keys,
        hint ? detail::topk::bracket_of(*hint) : detail::topk::bracket{1, 0}, mask.data());
    if (hint) detail::topk::learn(*hint, found, group.length);
  }
}

}  // namespace scape
