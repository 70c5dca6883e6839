// SPDX-License-Identifier: Apache-2.0

//! @file
//! The fused pass over gradient and residual on a device, against an axpy kernel,
//! cub::DeviceSelect::Flagged and a kernel that clears what was sent.

#include <cuda_bf16.h>

#include <cstdint>
#include <span>

#include <benchmark/benchmark.h>

#include <scape/sparse_reduce_scatter.cuh>

#include "support/device_data.cuh"
#include "support/event_timer.cuh"
#include "support/flagged.cuh"

namespace {

using namespace scape::bench;
namespace kernels = scape::detail::cuda;

constexpr float coefficient = 0.1F;

//! Reads gradient, residual and mask, writes residual and packed values.
template <class Wire, class Gradient>
double bytes_of(double density) {
  return static_cast<double>(elements()) *
         (sizeof(Gradient) + 8 + 1.0 / 8 + sizeof(Wire) * density);
}

//! The ranks of the mask are made each time, as in a step.
template <class Wire, class Gradient>
void accumulate_and_compact(benchmark::State& state) {
  auto const n = elements();
  auto const density = density_of(state);
  auto const plain = bench_device::get().context();
  random_mask const mask(plain, n, density);
  random_array<Gradient> const gradient(plain, n);
  device_array<float> const residual(n);
  device_array<Wire> const packed(mask.plan.total());
  scape::device_buffer const scratch(
      kernels::mask_ranks::scratch_bytes(mask.layout.words_per_shard(), 1));
  auto const ctx = bench_device::get().context(scratch.bytes());
  compare(state, bytes_of<Wire, Gradient>(density), [&] {
    scape::carver memory(ctx.scratch, "benchmark");
    kernels::mask_ranks const ranks("benchmark", ctx, mask.words.view(),
                                    mask.layout.words_per_shard(), memory);
    kernels::accumulate_and_compact("benchmark", ctx, mask.layout, ranks, gradient.data(),
                                    {{0, n}, residual.data()}, {coefficient}, packed.span(), 1);
  });
}

struct axpy {
  float const* gradient;
  float* residual;
  __device__ void operator()(std::int64_t i) const {
    residual[i] = scape::detail::fmadd(coefficient, gradient[i], residual[i]);
  }
};

struct clear_sent {
  mask_bit sent;
  float* residual;
  __device__ void operator()(std::int64_t i) const {
    if (sent(i)) residual[i] = 0;
  }
};

void separate_passes(benchmark::State& state) {
  auto const n = elements();
  auto const density = density_of(state);
  auto const ctx = bench_device::get().context();
  random_mask const mask(ctx, n, density);
  random_array<float> const gradient(ctx, n);
  device_array<float> const residual(n), packed(mask.plan.total());
  flagged_select const select(ctx, residual.view(), mask.words.view(), packed.data());
  compare(state, bytes_of<float, float>(density), [&] {
    kernels::enqueue_for_each_index("benchmark", ctx, n, axpy{gradient.data(), residual.data()});
    select();
    kernels::enqueue_for_each_index("benchmark", ctx, n,
                                    clear_sent{{mask.words.data()}, residual.data()});
  });
}

}  // namespace

BENCHMARK_TEMPLATE(accumulate_and_compact, float, float)
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->UseManualTime();
BENCHMARK_TEMPLATE(accumulate_and_compact, float, __nv_bfloat16)
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->UseManualTime();
BENCHMARK_TEMPLATE(accumulate_and_compact, __nv_bfloat16, __nv_bfloat16)
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->UseManualTime();
BENCHMARK(separate_passes)->ArgName("percent")->Arg(1)->Arg(10)->UseManualTime();
