// SPDX-License-Identifier: Apache-2.0

//! @file
//! The rebuild of one shard on a device.

#include <cmath>
#include <cstdint>

#include <benchmark/benchmark.h>

#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/single_buffer_moment_rebuild.cuh>

#include "support/device_data.cuh"
#include "support/event_timer.cuh"

namespace {

using namespace scape::bench;

//! Reads the mask and the values, reads and writes all ages, and m, w and, if there is one, v in
//! the sectors with a set bit; with decay all of m.
template <class Rule>
double bytes_of(double density, bool decay) {
  auto const touched = 8 * touched_sectors<float>(density);
  auto const arrays = Rule::keeps_second_moment ? 2 : 1;
  return static_cast<double>(elements()) *
         (1.0 / 8 + 4 * density + 4 + touched * arrays + (decay ? 8 : touched));
}

template <class Rule>
void rebuild(benchmark::State& state) {
  auto const n = elements();
  auto const density = density_of(state);
  bool const decay = state.range(1) != 0;
  auto const plain = bench_device::get().context();
  random_mask const mask(plain, n, density);
  random_array<float> const values(plain, mask.plan.total()), m(plain, n, 2), weights(plain, n, 3);
  device_array<float> const v(Rule::keeps_second_moment ? n : 0);
  device_array<std::uint16_t> const age(n);
  scape::device_buffer const scratch(scape::single_buffer_moment_rebuild_bytes(mask.layout));
  auto const ctx = bench_device::get().context(scratch.bytes());
  compare(state, bytes_of<Rule>(density, decay), [&] {
    scape::single_buffer_moment_rebuild<Rule>(
        ctx, mask.layout, 0, mask.words.view(), values.view(), scape::rebuild_scalars(),
        decay ? scape::unmasked_moment::decay : scape::unmasked_moment::hold,
        scape::moment_state{m.span(), v.span(), age.span()}, weights.span());
  });
}

}  // namespace

BENCHMARK_TEMPLATE(rebuild, scape::adams)
    ->ArgNames({"percent", "decay"})
    ->ArgsProduct({{1, 10}, {0, 1}})
    ->UseManualTime();
BENCHMARK_TEMPLATE(rebuild, scape::adamw)
    ->ArgNames({"percent", "decay"})
    ->ArgsProduct({{1, 10}, {0}})
    ->UseManualTime();
