// SPDX-License-Identifier: Apache-2.0

//! @file
//! Exact top-k of a vector on a device, against cub::DeviceRadixSort. The bytes are the inputs of
//! the statistic and the mask, once. Rows without `hint` start from a sample.

#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <span>
#include <string>
#include <utility>

#include <benchmark/benchmark.h>

#include <scape/packed_bitmask.cuh>
#include <scape/partitioned_topk_mask.cuh>

#include "support/device_data.cuh"
#include "support/event_timer.cuh"

namespace {

using namespace scape::bench;

enum class pattern { uniform, equal, zero, narrow, ascending, descending, outlier };

//! Element i of n.
struct pattern_value {
  pattern kind;
  std::int64_t n;
  __device__ float operator()(std::int64_t i) const {
    auto const x = uniform{3}(i);
    auto const rising = static_cast<float>(i) / static_cast<float>(n);
    switch (kind) {
      case pattern::equal:
        return 1.5F;
      case pattern::zero:
        return 0;
      case pattern::narrow:
        return 1 + 3e-5F * fabsf(x);
      case pattern::ascending:
        return rising;
      case pattern::descending:
        return 1 - rising;
      case pattern::outlier:
        return i == n - 1 ? 1e30F : 1e-3F * x;
      default:
        return x;
    }
  }
};

struct magnitude {
  float const* x;
  __device__ float operator()(std::int64_t i) const { return x[i]; }
};

//! The default statistic of the sparse optimizer: 10 bytes per element.
struct staleness_aware {
  float const* m;
  float const* e;
  std::uint16_t const* age;
  __device__ float operator()(std::int64_t i) const {
    return (m[i] + e[i]) * (1 + static_cast<float>(age[i]));
  }
};

template <class Statistic>
void select(benchmark::State& state, Statistic const& statistic, double input_bytes, double density,
            bool hinted) {
  auto const n = elements();
  scape::layout const layout(n, 1);
  auto const plan = layout.plan(density);
  scape::device_buffer const scratch(
      scape::partitioned_topk_mask_bytes<scape::cuda_context>(layout));
  auto const ctx = bench_device::get().context(scratch.bytes());
  device_array<scape::mask_word> const mask(layout.words_per_shard());
  device_array<scape::topk_hint> const hint(1);
  scape::topk_options options;
  if (hinted) options.hints = hint.span();
  auto const kernel = [&] {
    scape::partitioned_topk_mask(ctx, layout, plan, 0, statistic, mask.span(), options);
  };
  for (int i = 0; hinted && i < 4; ++i) kernel();  // until the hint has settled
  compare(state, static_cast<double>(n) * (input_bytes + 1.0 / 8), kernel);
}

void run_pattern(benchmark::State& state, pattern kind, double density, bool hinted) {
  auto const n = elements();
  device_array<float> const x(n);
  fill(bench_device::get().context(), x, pattern_value{kind, n});
  select(state, magnitude{x.data()}, 4, density, hinted);
}

void run_staleness_aware(benchmark::State& state, double density, bool hinted) {
  auto const n = elements();
  auto const ctx = bench_device::get().context();
  random_array<float> const m(ctx, n, 1), e(ctx, n, 2);
  device_array<std::uint16_t> const age(n);
  select(state, staleness_aware{m.data(), e.data(), age.data()}, 10, density, hinted);
}

struct sort_input {
  float const* x;
  std::uint32_t* keys;
  std::int32_t* indices;
  __device__ void operator()(std::int64_t i) const {
    keys[i] = __float_as_uint(fabsf(x[i]));
    indices[i] = static_cast<std::int32_t>(i);
  }
};

//! The usual way: magnitudes with their indices, sorted as a whole, and bits of the first k.
void run_radix_sort(benchmark::State& state, double density) {
  auto const n = elements();
  auto const ctx = bench_device::get().context();
  random_array<float> const x(ctx, n, 3);
  device_array<std::uint32_t> const keys(n), sorted_keys(n);
  device_array<std::int32_t> const indices(n), sorted(n);
  device_array<scape::mask_word> const mask(scape::mask_words(n));
  auto const k = static_cast<std::size_t>(scape::layout::k_of(density, n));
  auto const sort = [&](std::byte* temporary, std::size_t bytes) {
    check(cub::DeviceRadixSort::SortPairsDescending(temporary, bytes, keys.data(),
                                                    sorted_keys.data(), indices.data(),
                                                    sorted.data(), n, 0, 32, ctx.stream),
          "cub::DeviceRadixSort");
    return bytes;
  };
  device_array<std::byte> const temporary(static_cast<std::int64_t>(sort(nullptr, 0)));
  compare(state, static_cast<double>(n) * (4 + 1.0 / 8), [&] {
    scape::detail::cuda::enqueue_for_each_index("benchmark", ctx, n,
                                                sort_input{x.data(), keys.data(), indices.data()});
    sort(temporary.data(), temporary.span().size());
    scape::packed_bitmask::pack_indices(ctx, sorted.view().first(k),
                                        scape::bitmask_view(mask.span(), n));
  });
}

template <class Body>
void add(std::string const& name, Body const& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime();
}

bool const registered = [] {
  std::pair<char const*, pattern> const patterns[] = {
      {"uniform", pattern::uniform},     {"equal", pattern::equal},
      {"zero", pattern::zero},           {"narrow", pattern::narrow},
      {"ascending", pattern::ascending}, {"descending", pattern::descending},
      {"outlier", pattern::outlier},
  };
  for (auto const percent : {10, 1}) {
    auto const density = percent / 100.0;
    auto const suffix = "/percent:" + std::to_string(percent);
    for (bool const hinted : {false, true}) {
      auto const end = suffix + (hinted ? "/hint" : "");
      for (auto const& [name, kind] : patterns) {
        add("topk/" + std::string(name) + end, [kind = kind, density, hinted](auto& state) {
          run_pattern(state, kind, density, hinted);
        });
      }
      add("topk/staleness_aware" + end,
          [density, hinted](auto& state) { run_staleness_aware(state, density, hinted); });
    }
    add("radix_sort/uniform" + suffix, [density](auto& state) { run_radix_sort(state, density); });
  }
  return true;
}();

}  // namespace
