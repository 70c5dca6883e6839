// SPDX-License-Identifier: Apache-2.0

//! @file
//! Packing, counting and moving under a mask on a device, against cub::DeviceSelect::Flagged.

#include <cstdint>

#include <benchmark/benchmark.h>

#include <scape/packed_bitmask.cuh>

#include "support/device_data.cuh"
#include "support/event_timer.cuh"
#include "support/flagged.cuh"

namespace {

namespace bits = scape::packed_bitmask;
using namespace scape::bench;
using scape::mask_word;

struct is_large {
  __device__ bool operator()(float x) const { return fabsf(x) > 0.9F; }
};

//! Pack reads 4 n bytes and writes n / 8.
void pack_if(benchmark::State& state) {
  auto const n = elements();
  auto const ctx = bench_device::get().context();
  random_array<float> const values(ctx, n);
  device_array<mask_word> const mask(scape::mask_words(n));
  compare(state, static_cast<double>(n) * (4 + 1.0 / 8), [&] {
    bits::pack_if(ctx, values.view(), is_large(), scape::bitmask_view(mask.span(), n));
  });
}

void count(benchmark::State& state) {
  auto const n = elements();
  auto const ctx = bench_device::get().context();
  random_mask const mask(ctx, n, 0.1);
  device_array<std::int64_t> const result(1);
  compare(state, static_cast<double>(n) / 8, [&] {
    bits::count(ctx, scape::const_bitmask_view(mask.words.view(), n), result.data());
  });
}

//! Gather reads the mask and the sectors with a set bit and writes the values; scatter the reverse.
double moved_bytes(double density) {
  return static_cast<double>(elements()) *
         (1.0 / 8 + 4 * touched_sectors<float>(density) + 4 * density);
}

//! Calls move(context, mask, vector, packed).
template <class Move>
void compare_move(benchmark::State& state, Move const& move) {
  auto const n = elements();
  scape::device_buffer const scratch(bits::scratch_bytes(n));
  auto const ctx = bench_device::get().context(scratch.bytes());
  random_mask const mask(ctx, n, density_of(state));
  random_array<float> const vector(ctx, n);
  device_array<float> const packed(mask.plan.total());
  scape::const_bitmask_view const view(mask.words.view(), n);
  compare(state, moved_bytes(density_of(state)),
          [&] { move(ctx, view, vector.span(), packed.span()); });
}

void gather(benchmark::State& state) {
  compare_move(state, [](auto const& ctx, auto mask, auto vector, auto packed) {
    bits::gather(ctx, mask, vector, packed);
  });
}

void scatter(benchmark::State& state) {
  compare_move(state, [](auto const& ctx, auto mask, auto vector, auto packed) {
    bits::scatter(ctx, mask, packed, vector);
  });
}

void gather_flagged(benchmark::State& state) {
  auto const ctx = bench_device::get().context();
  random_mask const mask(ctx, elements(), density_of(state));
  random_array<float> const vector(ctx, elements());
  device_array<float> const packed(mask.plan.total());
  flagged_select const select(ctx, vector.view(), mask.words.view(), packed.data());
  compare(state, moved_bytes(density_of(state)), select);
}

}  // namespace

BENCHMARK(pack_if)->UseManualTime();
BENCHMARK(count)->UseManualTime();
BENCHMARK(gather)->ArgName("percent")->Arg(1)->Arg(10)->UseManualTime();
BENCHMARK(gather_flagged)->ArgName("percent")->Arg(1)->Arg(10)->UseManualTime();
BENCHMARK(scatter)->ArgName("percent")->Arg(1)->Arg(10)->UseManualTime();
