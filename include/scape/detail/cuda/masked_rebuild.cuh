// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The rebuild of one shard on a stream: masked coordinates are updated, all others age.

#include <algorithm>
#include <cstdint>
#include <span>

#include <scape/detail/cuda/accumulate_and_compact.cuh>
#include <scape/detail/cuda/gate.cuh>
#include <scape/detail/cuda/masked_pass.cuh>
#include <scape/detail/moment_rebuild.hpp>

namespace scape::detail::cuda {

//! Scale ranges of one launch, by value: range i ends at end[i], shard-relative.
struct scale_table {
  static constexpr int capacity = 96;
  int count = 0;
  std::int64_t end[capacity] = {};
  float lr_scale[capacity] = {};
  float decay_scale[capacity] = {};
  bool frozen[capacity] = {};

  [[nodiscard]] __device__ int find(std::int64_t i) const {
    int low = 0, high = count - 1;
    while (low < high) {
      auto const middle = (low + high) / 2;
      if (i < end[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  [[nodiscard]] __device__ rebuild_scalars apply(int range, rebuild_scalars scalars) const {
    scalars.learning_rate *= lr_scale[range];
    scalars.weight_decay *= decay_scale[range];
    return scalars;
  }
};

//! Calls f(table, elements) for tables that together hold all scale ranges of a shard; `elements`
//! are the shard-relative ones of a table.
template <class F>
void for_each_scale_table(layout const& layout, int shard, F const& f) {
  auto scales = layout.scales(shard);
  while (!scales.empty()) {
    auto const part = scales.first(std::min<std::size_t>(scale_table::capacity, scales.size()));
    scale_table table;
    for (auto const& scale : part) {
      auto const i = table.count++;
      table.end[i] = scale.range.end;
      table.lr_scale[i] = scale.lr_scale;
      table.decay_scale[i] = scale.decay_scale;
      table.frozen[i] = scale.frozen;
    }
    f(table, index_range{part.front().range.begin, part.back().range.end});
    scales = scales.subspan(part.size());
  }
}

//! The arrays of one shard. `v` is null for rules that keep no second moment, `copy` is null
//! unless the model's weights are of another type than the master weights `w`.
template <class Weight>
struct shard_arrays {
  float* m;
  float* v;
  std::uint16_t* age;
  float* w;
  Weight* copy;
};

template <class Rule, class Wire, class Weight>
struct rebuild_op {
  static constexpr bool dense = true;
  static constexpr int words = masked_pass_tuning::rebuild_words;
  struct value {
    float sum, m, v, w;
    std::uint16_t age;
  };

  scalar_source<rebuild_scalars> scalars;
  scale_table scales;
  bool decay_unmasked;
  std::int64_t begin;  //!< of the shard
  Wire const* values;
  std::int64_t count;
  std::int64_t position;  //!< of the first value
  shard_arrays<Weight> shard;
  gate step;

  [[nodiscard]] __device__ bool done() const {
    return step.closed() || undelivered<Wire>::at(values, count);
  }
  [[nodiscard]] __device__ bool rebuilds(masked_element const& e) const {
    return e.set && e.position - position < count;
  }
  [[nodiscard]] __device__ value load(masked_element const& e) const {
    auto const i = e.index - begin;
    value x = {};
    x.age = shard.age[i];
    if (rebuilds(e)) {
      x.sum = static_cast<float>(values[e.position - position]);
      x.w = shard.w[i];
      x.m = shard.m[i];
      if constexpr (Rule::keeps_second_moment) x.v = shard.v[i];
    } else if (decay_unmasked) {
      x.m = shard.m[i];
    }
    return x;
  }
  __device__ void store(masked_element const& e, value x) const {
    auto const i = e.index - begin;
    auto const tau = static_cast<std::uint16_t>(x.age + (x.age != 0xffffU ? 1 : 0));
    auto const scale = scales.count == 1 ? 0 : scales.find(i);
    if (!rebuilds(e) || scales.frozen[scale]) {
      shard.age[i] = tau;
      if (decay_unmasked && !scales.frozen[scale]) {
        shard.m[i] = x.m * scalars.get().beta1;
      }
      return;
    }
    rebuild_element<Rule>(scales.apply(scale, scalars.get()), x.sum, static_cast<float>(tau), x.m,
                          x.v, x.w);
    shard.m[i] = x.m;
    if constexpr (Rule::keeps_second_moment) shard.v[i] = x.v;
    shard.w[i] = x.w;
    if (shard.copy != nullptr) shard.copy[i] = static_cast<Weight>(x.w);
    shard.age[i] = 0;
  }
};

//! Enqueues the rebuild of shard `shard`, whose values begin at `position` of the ranked mask.
template <class Rule, class Wire, class Weight>
void masked_rebuild(caller who, cuda_context const& ctx, layout const& layout, int shard,
                    mask_ranks const& ranks, std::int64_t position, std::span<Wire const> values,
                    scalar_source<rebuild_scalars> const& scalars, bool decay_unmasked,
                    shard_arrays<Weight> const& arrays, gate const& step = {}) {
  for_each_scale_table(layout, shard, [&](scale_table const& scales, index_range elements) {
    auto const begin = layout.begin(shard);
    enqueue_masked_pass(
        who, ctx, layout, shard, shard + 1, {begin + elements.begin, begin + elements.end}, ranks,
        rebuild_op<Rule, Wire, Weight>{scalars, scales, decay_unmasked, begin, values.data(),
                                       std::ssize(values), position, arrays, step});
  });
}

}  // namespace scape::detail::cuda
