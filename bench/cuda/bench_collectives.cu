// SPDX-License-Identifier: Apache-2.0

//! @file
//! Sparse and dense collectives over all devices, one thread each. Bandwidths are those of
//! nccl-tests: algbw is the size of the operation by the time, busbw that by (P - 1) / P. Calls
//! follow each other on the stream, and the time is their mean. The number of calls is fixed, as
//! ranks that chose it themselves would wait for each other for ever.

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <scape/comm/nccl.hpp>
#include <scape/sparse_all_gather.cuh>
#include <scape/sparse_reduce_scatter.cuh>

#include "support/device_data.cuh"
#include "support/event_timer.cuh"

namespace {

using namespace scape::bench;

int ranks() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  return static_cast<int>(from_environment("SCAPE_BENCH_RANKS", devices));
}
std::int64_t calls() { return from_environment("SCAPE_BENCH_CALLS", 20); }

//! What one rank works with; its device is the current one.
struct rank_data {
  rank_data(scape::nccl_communicator& c, scape::layout l, double density)
      : comm(c),
        layout(std::move(l)),
        plan(layout.plan(density)),
        ctx(stream.get(), {}),
        gradient(ctx, layout.size(), 1),
        weights(ctx, layout.size(), 2),
        residual(layout.size()),
        sums(layout.max_shard_size()),
        mask(layout.mask_words()),
        scratch(std::max(scape::sparse_collective_bytes<float>(layout, plan.total()),
                         scape::partitioned_topk_mask_bytes<scape::cuda_context>(layout))) {
    ctx.scratch = scratch.bytes();
    for (int p = 0; p < layout.shards(); ++p) {
      auto const words = static_cast<std::size_t>(layout.words_per_shard());
      scape::partitioned_topk_mask(ctx, layout, plan, p, uniform{7},
                                   mask.span().subspan(static_cast<std::size_t>(p) * words, words));
      counts.push_back(layout.shard_size(p));
    }
    stream.synchronize();
  }

  template <class T>
  [[nodiscard]] std::span<T> own(std::span<T> all, std::int64_t begin, std::int64_t size) const {
    return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  }
  [[nodiscard]] std::span<float> own_sums(std::vector<std::int64_t> const& sizes) const {
    return own(sums.span(), 0, sizes[static_cast<std::size_t>(comm.rank())]);
  }

  scape::nccl_communicator& comm;
  scape::layout layout;
  scape::send_plan plan;
  scape::cuda_stream stream;
  scape::cuda_context ctx;
  random_array<float> gradient, weights;
  device_array<float> residual, sums;
  device_array<scape::mask_word> mask;
  scape::device_buffer scratch;
  std::vector<std::int64_t> counts;
};

//! Every rank calls call(rank_data) once, and then, after a barrier, calls() times. Each moves
//! `bytes` as nccl-tests count them.
template <class Call>
void run(benchmark::State& state, double density, double bytes, Call const& call) {
  auto const size = ranks();
  auto const repeats = calls();
  auto const id = scape::nccl_unique_id();
  std::barrier everyone(size);
  std::vector<double> seconds(static_cast<std::size_t>(size));
  std::mutex mutex;
  std::string failure;
  auto const body = [&](int r) {
    check(cudaSetDevice(r), "cudaSetDevice");
    scape::nccl_communicator comm(id, r, size);
    rank_data data(comm, scape::layout(elements(), size), density);
    event_timer timer(data.ctx.stream);
    call(data);
    comm.synchronize(data.ctx);
    everyone.arrive_and_wait();
    seconds[static_cast<std::size_t>(r)] = timer.seconds_of([&] {
      for (std::int64_t i = 0; i < repeats; ++i) call(data);
    }) / static_cast<double>(repeats);
    comm.synchronize(data.ctx);
  };
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (std::exception const& e) {
          std::scoped_lock const lock(mutex);
          failure = "rank " + std::to_string(r) + ": " + e.what();
          everyone.arrive_and_drop();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    state.SetIterationTime(*std::ranges::max_element(seconds));
  }
  if (!failure.empty()) return state.SkipWithError(failure.c_str());
  auto const average = std::accumulate(seconds.begin(), seconds.end(), 0.0) / size;
  auto const bandwidth = 1e-9 * bytes / average;
  state.counters["ranks"] = size;
  state.counters["min_us"] = 1e6 * *std::ranges::min_element(seconds);
  state.counters["max_us"] = 1e6 * *std::ranges::max_element(seconds);
  state.counters["avg_us"] = 1e6 * average;
  state.counters["bytes"] = bytes;
  state.counters["algbw_GB/s"] = bandwidth;
  state.counters["busbw_GB/s"] = bandwidth * (size - 1) / size;
}

double value_bytes(double density) { return 4 * density * static_cast<double>(elements()); }

//! Accumulation, compaction and scatter included: what a step does between two rebuilds.
void sparse_reduce_scatter_all_gather(benchmark::State& state) {
  auto const density = density_of(state);
  run(state, density, 2 * value_bytes(density), [](rank_data& r) {
    scape::sparse_reduce_scatter(r.ctx, r.comm, r.layout, r.plan, r.mask.view(), r.gradient.view(),
                                 r.residual.span(), 0.1F, r.own_sums(r.plan.counts));
    scape::sparse_all_gather(r.ctx, r.comm, r.layout, r.plan, r.mask.view(), r.weights.span());
  });
}

void sparse_reduce_scatter(benchmark::State& state) {
  auto const density = density_of(state);
  run(state, density, value_bytes(density), [](rank_data& r) {
    scape::sparse_reduce_scatter(r.ctx, r.comm, r.layout, r.plan, r.mask.view(), r.gradient.view(),
                                 r.residual.span(), 0.1F, r.own_sums(r.plan.counts));
  });
}

void sparse_all_gather(benchmark::State& state) {
  auto const density = density_of(state);
  run(state, density, value_bytes(density), [](rank_data& r) {
    scape::sparse_all_gather(r.ctx, r.comm, r.layout, r.plan, r.mask.view(), r.weights.span());
  });
}

//! ncclReduceScatter and ncclAllGather of all n elements.
void dense_reduce_scatter_all_gather(benchmark::State& state) {
  run(state, 0, 2 * value_bytes(1), [](rank_data& r) {
    r.comm.reduce_scatter(r.ctx, r.gradient.view(), r.own_sums(r.counts), r.counts, std::plus<>())
        .wait(r.ctx);
    auto const rank = r.comm.rank();
    std::span<float const> const own =
        r.own(r.weights.span(), r.layout.begin(rank), r.layout.shard_size(rank));
    r.comm.all_gather(r.ctx, own, r.weights.span(), r.counts).wait(r.ctx);
  });
}

void mask_all_gather(benchmark::State& state) {
  run(state, 0.1, static_cast<double>(elements()) / 8, [](rank_data& r) {
    auto const words = r.layout.words_per_shard();
    std::span<scape::mask_word const> const own =
        r.own(r.mask.span(), r.comm.rank() * words, words);
    r.comm.all_gather(r.ctx, own, r.mask.span(), r.layout.mask_counts()).wait(r.ctx);
  });
}

}  // namespace

BENCHMARK(sparse_reduce_scatter_all_gather)
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->Iterations(1)
    ->UseManualTime();
BENCHMARK(sparse_reduce_scatter)
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->Iterations(1)
    ->UseManualTime();
BENCHMARK(sparse_all_gather)->ArgName("percent")->Arg(1)->Arg(10)->Iterations(1)->UseManualTime();
BENCHMARK(dense_reduce_scatter_all_gather)->Iterations(1)->UseManualTime();
BENCHMARK(mask_all_gather)->Iterations(1)->UseManualTime();
