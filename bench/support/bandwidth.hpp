// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Times a kernel against what the memory of this machine gives at the same moment: every
//! iteration is followed by a plain read or copy on as many threads, so that other load on the
//! machine slows both.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <benchmark/benchmark.h>

#include <scape/context/host.hpp>
#include <scape/detail/host/mask_lanes.hpp>

#include "support/stream_buffer.hpp"

namespace scape::bench {

//! Elements of all streams: far more than the caches of one core hold.
inline constexpr std::int64_t stream_size = std::int64_t{1} << 25;

//! Seconds that f() takes: of this thread's processor time, so that waiting for a core on a shared
//! machine does not count, or of wall-clock time if other threads take part.
template <class F>
double seconds_of(int threads, F&& f) {
  auto const now = [threads]() -> double {
#if defined(__linux__)
    if (threads == 1) {
      timespec t;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    }
#endif
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  auto const start = now();
  f();
  benchmark::ClobberMemory();
  return now() - start;
}

//! Of many runs: the median of processor times, the least of wall-clock times, as only there all
//! threads are sure to have had a core each.
inline double typical(int threads, std::vector<double> times) {
  auto const at = times.begin() + (threads == 1 ? std::ssize(times) / 2 : 0);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

//! What a kernel is compared with.
enum class roof { read, copy };

//! The two plain streams.
class memory_roof {
 public:
  static memory_roof& get() {
    static memory_roof instance;
    return instance;
  }

  [[nodiscard]] static double bytes(roof kind) {
    return (kind == roof::read ? 4.0 : 8.0) * static_cast<double>(stream_size);
  }

  void run(host_context const& ctx, roof kind) {
    ctx.parallel([&](int part, int parts) {
      auto const [begin, end] = detail::part_of(stream_size, part, parts);
      if (kind == roof::copy) {
        copy(to_.data() + begin, from_.data() + begin, end - begin, parts);
      } else {
        benchmark::DoNotOptimize(sum(from_.data() + begin, end - begin));
      }
    });
  }

 private:
  //! Fetches ahead like the kernels do; without that a single core reads a quarter less.
  static float sum(float const* x, std::int64_t n) {
    constexpr std::int64_t lanes = 128;
    float sums[lanes] = {};
    for (std::int64_t i = 0; i + lanes <= n; i += lanes) {
      for (std::int64_t word = 0; word < lanes; word += 64) detail::prefetch_ahead(x + i + word);
      for (std::int64_t lane = 0; lane < lanes; ++lane) sums[lane] += x[i + lane];
    }
    float total = 0;
    for (auto const s : sums) total += s;
    return total;
  }

  //! memcpy writes past the caches only if a single thread copies it all, so several do it by hand.
  static void copy(float* to, float const* from, std::int64_t n, [[maybe_unused]] int parts) {
#if defined(__SSE2__)
    constexpr std::int64_t lanes = 64;
    if (parts > 1 && n % lanes == 0) {
      for (std::int64_t i = 0; i < n; i += lanes) {
        detail::prefetch_ahead(from + i);
        for (std::int64_t lane = 0; lane < lanes; lane += 4) {
          _mm_stream_ps(to + i + lane, _mm_loadu_ps(from + i + lane));
        }
      }
      return _mm_sfence();
    }
#endif
    std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(n));
  }

  stream_buffer<float> from_{stream_size}, to_{stream_size};
};

//! Runs kernel(context) for all iterations of a benchmark (registered with UseManualTime) on
//! `threads` threads, and reports
//!
//!     GB/s                            `bytes` by the typical time
//!     read_GB/s or copy_GB/s          the plain stream, on as many threads
//!     share_of_read or share_of_copy  the ratio of the two
//!     speedup                         with several threads: over one, in the same iterations
template <class Kernel>
void compare(benchmark::State& state, int threads, double bytes, roof kind, Kernel&& kernel) {
  std::optional<host_pool> pool;
  if (threads > 1) pool.emplace(threads);
  host_context const one{};
  host_context const ctx{{}, pool ? &*pool : nullptr};
  auto& memory = memory_roof::get();
  std::vector<double> times, streams, single;
  for (auto _ : state) {
    times.push_back(seconds_of(threads, [&] { kernel(ctx); }));
    state.SetIterationTime(times.back());
    streams.push_back(seconds_of(threads, [&] { memory.run(ctx, kind); }));
    if (threads > 1) single.push_back(seconds_of(threads, [&] { kernel(one); }));
  }
  auto const time = typical(threads, times);
  auto const speed = 1e-9 * bytes / time;
  auto const stream = 1e-9 * memory_roof::bytes(kind) / typical(threads, streams);
  std::string const name = kind == roof::read ? "read" : "copy";
  state.counters["GB/s"] = speed;
  state.counters[name + "_GB/s"] = stream;
  state.counters["share_of_" + name] = speed / stream;
  if (threads > 1) state.counters["speedup"] = typical(threads, single) / time;
}

}  // namespace scape::bench
