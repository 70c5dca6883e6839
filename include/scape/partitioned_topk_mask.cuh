// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! partitioned_topk_mask on a stream.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/detail/cuda/range_table.cuh>
#include <scape/detail/cuda/topk.cuh>
#include <scape/partitioned_topk_mask.hpp>

namespace scape {
namespace detail::cuda {

//! Index bits of a composite, and room for 1/32 of as many elements.
inline int topk_index_bits(layout const& layout) noexcept {
  auto const last = std::max<std::int64_t>(layout.max_shard_size() - 1, 1);
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(last)));
}
inline std::int64_t topk_capacity(layout const& layout) noexcept {
  return (std::int64_t{1} << topk_index_bits(layout)) / 32 + topk_tuning::collected_length;
}

inline std::size_t topk_scratch_bytes(layout const& layout) {
  return workspace_size()
      .add<topk_state>(1)
      .add<composite>(1 << topk_tuning::digit_bits)
      .add<composite>(topk_capacity(layout))
      .add<composite>(topk_tuning::rest_capacity)
      .bytes();
}

//! Calls visit(table) with the ranges, as many at a time as a table holds.
template <class Visit>
void for_each_table(std::span<index_range const> ranges, Visit&& visit) {
  for (std::size_t i = 0; i < ranges.size();) {
    range_table table;
    for (; i < ranges.size() && !table.full(); ++i) table.add(ranges[i]);
    visit(table);
  }
}

//! Collects ranges whose bits do not depend on a statistic, and enqueues one kernel for all of
//! those to clear and one for all of those to set.
class mask_fill {
 public:
  mask_fill(caller who, cuda_context const& ctx, mask_word* mask, int const* skip)
      : who_(who), ctx_(ctx), mask_(mask), skip_(skip) {}

  void add(index_range range, bool value) {
    auto& table = tables_[value ? 1 : 0];
    if (table.full()) enqueue(value);
    table.add(range);
  }
  //! What is in no mask: frozen elements, and bits without an element.
  void add_unused(layout const& layout, int shard) {
    for (auto const& part : layout.scales(shard)) {
      if (part.frozen) add(part.range, false);
    }
    add({layout.shard_size(shard), layout.words_per_shard() * mask_word_bits}, false);
  }
  void enqueue() {
    enqueue(false);
    enqueue(true);
  }

 private:
  void enqueue(bool value) {
    auto& table = tables_[value ? 1 : 0];
    constexpr int threads = topk_tuning::threads;
    launch(who_, ctx_, topk_fill<topk_tuning>,
           blocks_for(who_, (table.words + threads - 1) / threads), threads, table, mask_,
           value ? ~mask_word{0} : mask_word{0}, skip_);
    table = {};
  }

  caller who_;
  cuda_context const& ctx_;
  mask_word* mask_;
  int const* skip_;
  range_table tables_[2];
};

//! Enqueues the dense mask of a shard: every element that is not frozen.
inline void fill_mask(caller who, cuda_context const& ctx, layout const& layout, int shard,
                      std::span<mask_word> mask, int const* skip) {
  mask_fill fill(who, ctx, mask.data(), skip);
  fill.add_unused(layout, shard);
  for (auto const& group : layout.groups(shard)) {
    for (auto const& range : group.ranges) fill.add(range, true);
  }
  fill.enqueue();
}

//! Enqueues the kernels of one selection on one stream.
template <class F>
class topk_launcher {
  using tuning = topk_tuning;

 public:
  topk_launcher(caller who, cuda_context const& ctx, F const& statistic, topk_job const& job)
      : who_(who), ctx_(ctx), statistic_(statistic), job_(job) {
    int device = 0;
    check_cuda(cudaGetDevice(&device), who, "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device), who,
               "cudaDeviceGetAttribute");
  }

  //! Sets the bits of the k best elements of the ranges and clears the others, 0 < k < length.
  void select(std::span<index_range const> ranges, std::int64_t length, std::int64_t k,
              topk_hint* hint) const {
    // One pass for a guess, then as many as narrow all composites to what surely fits.
    constexpr int narrowing = (31 + 5 + tuning::digit_bits - 1) / tuning::digit_bits;
    auto job = job_;
    job.length = length;
    job.k = k;
    job.hint = hint;
    job.whole = length <= tuning::collected_length;
    unsigned all_blocks = 0;
    for_each_table(ranges, [&](range_table const& table) {
      if (all_blocks == 0) {
        launch(who_, ctx_, topk_begin<tuning, F>, 1, tuning::sample_threads, statistic_, table,
               job);
      }
      all_blocks += pass_blocks(table);
    });
    for (int pass = 0; pass < (job.whole ? 1 : 1 + narrowing + 1); ++pass) {
      for_each_table(ranges, [&](range_table const& table) {
        launch(who_, ctx_, topk_pass<tuning, F>, pass_blocks(table), tuning::threads, statistic_,
               table, job, all_blocks);
      });
    }
    launch(who_, ctx_, topk_settle<tuning>, blocks(std::min(length, job.capacity), tuning::threads),
           tuning::threads, job);
  }

 private:
  [[nodiscard]] unsigned blocks(std::int64_t items, std::int64_t per_block) const {
    return static_cast<unsigned>(
        std::min((items + per_block - 1) / per_block,
                 std::int64_t{processors_} * tuning::blocks_per_processor));
  }
  [[nodiscard]] unsigned pass_blocks(range_table const& table) const {
    return blocks(table.words, tuning::threads / warp_size * tuning::words);
  }

  caller who_;
  cuda_context const& ctx_;
  F const& statistic_;
  topk_job job_;
  int processors_ = 0;
};

//! The public function under the name of another operation. With `skip`, an integer in device
//! memory that is not 0 when the kernels run, mask and hints stay as they are.
template <statistic F>
void partitioned_topk_mask(caller who, cuda_context const& ctx, layout const& layout,
                           send_plan const& plan, int shard, F const& statistic,
                           std::span<mask_word> mask, topk_options const& options,
                           int const* skip) {
  static_assert(std::is_trivially_copyable_v<F>, "the statistic is passed to kernels by value");
  constexpr auto longest = std::int64_t{1} << 33;
  expect_current_device(who, ctx);
  expect_selection(who, layout, plan, shard, mask, options);
  expect(layout.max_shard_size() <= longest, who, [&] {
    return "the longest shard has " + std::to_string(layout.max_shard_size()) +
           " elements, at most " + std::to_string(longest) + " are possible";
  });
  expect_scratch(who, ctx.scratch.size(), topk_scratch_bytes(layout));

  carver memory(ctx.scratch, who);
  topk_job job = {};
  job.state = memory.take<topk_state>(1).data();
  job.totals = memory.take<composite>(1 << topk_tuning::digit_bits).data();
  job.capacity = topk_capacity(layout);
  job.candidates = memory.take<composite>(job.capacity).data();
  job.rest = memory.take<composite>(topk_tuning::rest_capacity).data();
  job.mask = mask.data();
  job.exclude = options.exclude.empty() ? nullptr : options.exclude.data();
  job.skip = skip;
  job.nan_key = nan_key_of(options.nan);
  job.order = {topk_index_bits(layout)};
  topk_launcher<F> const launcher(who, ctx, statistic, job);

  mask_fill fill(who, ctx, mask.data(), skip);
  fill.add_unused(layout, shard);
  auto const groups = layout.groups(shard);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto const& group = groups[g];
    auto const k = group.policy == span_policy::always
                       ? group.length
                       : plan.group_k[layout.first_group(shard) + g];
    if (k == 0 || k == group.length) {
      for (auto const& range : group.ranges) fill.add(range, k != 0);
    } else {
      launcher.select(group.ranges, group.length, k,
                      options.hints.empty() ? nullptr : &options.hints[g]);
    }
  }
  fill.enqueue();
}

}  // namespace detail::cuda

//! Scratch bytes in device memory for any shard of the layout: a quarter to half a byte per
//! element of the longest shard and about 300 kB.
template <>
inline std::size_t partitioned_topk_mask_bytes<cuda_context>(layout const& layout) {
  return detail::cuda::topk_scratch_bytes(layout);
}

//! The same bits as on the host, enqueued on ctx.stream.
//!
//! Kernels per selection group: begin, five passes and settle; a single pass if the group has no
//! more than 2^14 elements. With a hint that holds, or a sample that does in its place, the first
//! pass does everything and the inputs are read once; else it takes two or three of them, at worst
//! all. For more than 128 ranges a pass is several launches. Elements whose bits do not depend on
//! the statistic take one kernel for those in no mask and one for those in every mask.
//!
//! @param statistic  trivially copyable, a __device__ float operator()(std::int64_t) const; once
//!                   per element and pass
//! @param mask, options.exclude, options.hints  in device memory
//! @param ctx  scratch: partitioned_topk_mask_bytes<cuda_context>(layout)
template <statistic F>
void partitioned_topk_mask(cuda_context const& ctx, layout const& layout, send_plan const& plan,
                           int shard, F const& statistic, std::span<mask_word> mask,
                           topk_options const& options = {}) {
  detail::cuda::nvtx_range const range("partitioned_topk_mask");
  detail::cuda::partitioned_topk_mask("partitioned_topk_mask", ctx, layout, plan, shard, statistic,
                                      mask, options, nullptr);
}

}  // namespace scape
