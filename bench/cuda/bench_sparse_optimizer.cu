// SPDX-License-Identifier: Apache-2.0

//! @file
//! Whole steps on one device, sparse and dense, with a communicator that copies.

#include <cmath>
#include <cstdint>
#include <span>

#include <benchmark/benchmark.h>

#include <scape/optim/adams.hpp>
#include <scape/optim/dense_optimizer.cuh>
#include <scape/optim/sparse_optimizer.cuh>

#include "support/device_data.cuh"
#include "support/event_timer.cuh"
#include "support/one_rank.cuh"

namespace {

using namespace scape::bench;

//! The guard reads the gradient; the fused pass, the rebuild and the top-k follow. A single rank
//! has nothing to gather.
double sparse_bytes(double density) {
  auto const guard = 4.0;
  auto const accumulate = 12 + 1.0 / 8 + 4 * density;
  auto const rebuild = 1.0 / 8 + 4 * density + 4 + 16 * touched_sectors<float>(density);
  auto const topk = 10 + 1.0 / 8;
  return static_cast<double>(elements()) * (guard + accumulate + rebuild + topk);
}

//! The guard; then gradient, m and weights are read, m and weights written.
double dense_bytes() { return 24.0 * static_cast<double>(elements()); }

template <class Optimizer, class Options>
void step(benchmark::State& state, double bytes, Options const& options) {
  auto const n = elements();
  scape::layout const layout(n, 1);
  scape::device_buffer const scratch(Optimizer::scratch_bytes(layout, options));
  scape::device_buffer const storage(Optimizer::storage_bytes(layout, options));
  auto const ctx = bench_device::get().context(scratch.bytes());
  random_array<float> const weights(ctx, n, 1), gradient(ctx, n, 2);
  one_rank comm;
  Optimizer optimizer(comm, layout, options, storage.bytes());
  auto const one = [&] { optimizer.step(ctx, weights.span(), gradient.view()); };
  optimizer.set_arguments(ctx, {});
  for (int i = 0; i < 16; ++i) one();  // past the dense step, and until the hint follows
  compare(state, bytes, one);
  optimizer.synchronize(ctx);
}

void sparse_step(benchmark::State& state) {
  using optimizer = scape::sparse_optimizer<scape::adams, one_rank>;
  step<optimizer>(state, sparse_bytes(density_of(state)),
                  scape::sparse_optimizer_options::staleness_aware(density_of(state)));
}

void dense_step(benchmark::State& state) {
  using optimizer = scape::dense_optimizer<scape::adams, one_rank>;
  step<optimizer>(state, dense_bytes(), scape::adam_options());
}

}  // namespace

BENCHMARK(sparse_step)->ArgName("percent")->Arg(1)->Arg(10)->UseManualTime();
BENCHMARK(dense_step)->UseManualTime();
