// SPDX-License-Identifier: Apache-2.0

//! @file
//! Packing, counting and moving under a mask, 2^25 elements, against plain loops and the memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include <benchmark/benchmark.h>

#include <scape/context/host.hpp>
#include <scape/float16.hpp>
#include <scape/packed_bitmask.hpp>

#include "support/bandwidth.hpp"
#include "support/masked_data.hpp"
#include "support/stream_buffer.hpp"

namespace {

namespace bits = scape::packed_bitmask;
using scape::bitmask_view;
using scape::const_bitmask_view;
using scape::host_context;
using scape::mask_word;
using namespace scape::bench;

constexpr auto n = stream_size;
constexpr auto elements = static_cast<double>(n);

double density_of(benchmark::State const& state) {
  return static_cast<double>(state.range(0)) / 100;
}
int threads_of(benchmark::State const& state) { return static_cast<int>(state.range(1)); }

const_bitmask_view view_of(random_mask const& mask) { return {mask.words.span(), n}; }

//! Pack reads 4 n bytes and writes n / 8.
constexpr auto pack_bytes = elements * (4 + 1.0 / 8);
constexpr auto is_large = [](float x) { return std::abs(x) > 0.9F; };

void pack_if(benchmark::State& state) {
  auto const values = random_values<float>().span();
  stream_buffer<mask_word> mask(scape::mask_words(n));
  compare(state, static_cast<int>(state.range(0)), pack_bytes, roof::read,
          [&](host_context const& ctx) {
            bits::pack_if(ctx, values, is_large, bitmask_view(mask.span(), n));
          });
}

void pack_if_plain(benchmark::State& state) {
  auto const* values = random_values<float>().data();
  stream_buffer<mask_word> mask(scape::mask_words(n));
  auto* words = mask.data();
  compare(state, 1, pack_bytes, roof::read, [&](host_context const&) {
    for (std::int64_t w = 0; w < n / 64; ++w) {
      mask_word word = 0;
      for (int i = 0; i < 64; ++i) word |= mask_word{is_large(values[64 * w + i])} << i;
      words[w] = word;
    }
  });
}

void count(benchmark::State& state) {
  auto const view = view_of(mask_of(0.1));
  compare(state, 1, elements / 8, roof::read,
          [&](host_context const& ctx) { benchmark::DoNotOptimize(bits::count(ctx, view)); });
}

//! Gather reads the mask and the cache lines with a set bit, and writes the values.
template <class T>
double gather_bytes(double density) {
  return elements * (1.0 / 8 + sizeof(T) * (touched_lines<T>(density) + density));
}

template <class T>
void gather(benchmark::State& state) {
  auto const density = density_of(state);
  auto const& mask = mask_of(density);
  auto const values = random_values<T>().span();
  stream_buffer<T> packed(mask.count);
  compare(
      state, threads_of(state), gather_bytes<T>(density), roof::read,
      [&](host_context const& ctx) { bits::gather(ctx, view_of(mask), values, packed.span()); });
}

void gather_plain(benchmark::State& state) {
  auto const density = density_of(state);
  auto const& mask = mask_of(density);
  auto const* words = mask.words.data();
  auto const* values = random_values<float>().data();
  stream_buffer<float> packed(mask.count);
  compare(state, 1, gather_bytes<float>(density), roof::read, [&](host_context const&) {
    auto* out = packed.data();
    for (std::int64_t i = 0; i < n; ++i) {
      if ((words[i / 64] >> (i % 64) & 1) != 0) *out++ = values[i];
    }
  });
}

void gather_copy_if(benchmark::State& state) {
  auto const density = density_of(state);
  auto const& mask = mask_of(density);
  auto const values = random_values<float>().span();
  stream_buffer<float> packed(mask.count);
  compare(state, 1, gather_bytes<float>(density), roof::read, [&](host_context const&) {
    std::copy_if(values.begin(), values.end(), packed.data(),
                 [words = mask.words.data(), i = std::int64_t{0}](float) mutable {
                   auto const at = i++;
                   return (words[at / 64] >> (at % 64) & 1) != 0;
                 });
  });
}

//! Scatter reads the mask and the values, and reads and writes the cache lines with a set bit.
void scatter(benchmark::State& state) {
  auto const density = density_of(state);
  auto const& mask = mask_of(density);
  stream_buffer<float> packed(mask.count), target(n);
  auto const bytes = elements * (1.0 / 8 + 4 * density + 8 * touched_lines<float>(density));
  compare(state, threads_of(state), bytes, roof::copy, [&](host_context const& ctx) {
    bits::scatter(ctx, view_of(mask), packed.span(), target.span());
  });
}

}  // namespace

BENCHMARK(pack_if)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime();
BENCHMARK(pack_if_plain)->UseManualTime();
BENCHMARK(count)->UseManualTime();
BENCHMARK_TEMPLATE(gather, float)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10, 50}, {1, 2}})
    ->UseManualTime();
BENCHMARK_TEMPLATE(gather, scape::bfloat16)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10}, {1}})
    ->UseManualTime();
BENCHMARK(gather_plain)->ArgName("percent")->Arg(1)->Arg(10)->UseManualTime();
BENCHMARK(gather_copy_if)->ArgName("percent")->Arg(10)->UseManualTime();
BENCHMARK(scatter)
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{1, 10, 50}, {1, 2}})
    ->UseManualTime();
