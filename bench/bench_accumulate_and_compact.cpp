// SPDX-License-Identifier: Apache-2.0

//! @file
//! The fused pass over gradient and residual, 2^25 elements, against two plain passes and a copy.

#include <cstdint>

#include <benchmark/benchmark.h>

#include <scape/context/host.hpp>
#include <scape/detail/accumulate_and_split.hpp>
#include <scape/detail/host/accumulate_and_compact.hpp>
#include <scape/float16.hpp>

#include "support/bandwidth.hpp"
#include "support/masked_data.hpp"
#include "support/stream_buffer.hpp"

namespace {

using scape::bfloat16;
using scape::float16;
using scape::host_context;
using namespace scape::bench;

constexpr auto n = stream_size;
constexpr float coefficient = 0.1F;

double density_of(benchmark::State const& state) {
  return static_cast<double>(state.range(0)) / 100;
}

//! Reads gradient, residual and mask, writes residual and packed values: 12 n + n / 8 + 4 d n bytes
//! if all are floats.
template <class Wire, class Grad>
double bytes_of(double density) {
  return static_cast<double>(n) * (sizeof(Grad) + 8 + 1.0 / 8 + sizeof(Wire) * density);
}

template <class Wire, class Grad>
void accumulate_and_compact(benchmark::State& state) {
  auto const& mask = scape::bench::mask_of(density_of(state));
  auto const* gradient = random_values<Grad>().data();
  stream_buffer<float> residual(n);
  stream_buffer<Wire> packed(mask.count);
  compare(state, static_cast<int>(state.range(1)), bytes_of<Wire, Grad>(density_of(state)),
          roof::copy, [&](host_context const& ctx) {
            scape::detail::accumulate_and_compact(
                ctx, gradient, residual.data(), n, mask.words.data(), coefficient,
                scape::detail::wire_limit<Wire>(1), packed.data());
          });
}

//! Accumulates, then takes out what is sent, with a test for each bit.
template <class Wire, class Grad>
void two_plain_passes(benchmark::State& state) {
  auto const& mask = scape::bench::mask_of(density_of(state));
  auto const* words = mask.words.data();
  auto const* gradient = random_values<Grad>().data();
  stream_buffer<float> residual(n);
  stream_buffer<Wire> packed(mask.count);
  compare(state, 1, bytes_of<Wire, Grad>(density_of(state)), roof::copy, [&](host_context const&) {
    auto* e = residual.data();
    for (std::int64_t j = 0; j < n; ++j) {
      e[j] = scape::detail::accumulate(coefficient, gradient[j], e[j]);
    }
    auto const limit = scape::detail::wire_limit<Wire>(1);
    auto* out = packed.data();
    for (std::int64_t j = 0; j < n; ++j) {
      if ((words[j / 64] >> (j % 64) & 1) != 0) scape::detail::split(e[j], limit, *out++, e[j]);
    }
  });
}

}  // namespace

BENCHMARK_TEMPLATE(accumulate_and_compact, float, float)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10, 50}, {1, 2}})
    ->UseManualTime();
BENCHMARK_TEMPLATE(accumulate_and_compact, bfloat16, float)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10}, {1, 2}})
    ->UseManualTime();
BENCHMARK_TEMPLATE(accumulate_and_compact, bfloat16, bfloat16)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10}, {1, 2}})
    ->UseManualTime();
BENCHMARK_TEMPLATE(accumulate_and_compact, float16, float16)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10}, {1}})
    ->UseManualTime();
BENCHMARK_TEMPLATE(two_plain_passes, float, float)
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->UseManualTime();
