// SPDX-License-Identifier: Apache-2.0

// Exact top-k of 2^25 elements on one thread, or two. The bytes are the statistic's inputs and the
// mask, once, so that share_of_read is how close this comes to a single plain read. `cold` is
// without a hint. nth_element is the usual way: copy |x|, then select.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <scape/partitioned_topk_mask.hpp>

#include "support/bandwidth.hpp"
#include "support/masked_data.hpp"
#include "support/stream_buffer.hpp"

namespace {

using scape::bench::stream_buffer;
constexpr auto n = scape::bench::stream_size;

using generator = std::function<float(std::int64_t, std::minstd_rand&)>;

float normal(std::minstd_rand& random) { return std::normal_distribution<float>()(random); }

std::map<std::string, generator> const patterns{
    {"normal", [](auto, auto& r) { return normal(r); }},
    {"equal", [](auto, auto&) { return 1.5F; }},
    {"zero", [](auto, auto&) { return 0.0F; }},
    {"ascending", [](auto i, auto&) { return static_cast<float>(i) * 0x1p-25F; }},
    {"descending", [](auto i, auto&) { return static_cast<float>(n - i) * 0x1p-25F; }},
    {"outlier", [](auto i, auto& r) { return i == n - 1 ? 1e30F : 1e-3F * normal(r); }},
    {"half_denormal",
     [](auto, auto& r) {
       auto const bits = static_cast<std::uint32_t>(r());
       return bits % 2 ? std::bit_cast<float>(bits >> 9) : normal(r);
     }},
    {"narrow", [](auto, auto& r) { return 1 + 3e-5F * static_cast<float>(r() % 10000) / 10000; }},
    {"three_values", [](auto, auto& r) { return static_cast<float>(r() % 3); }},
};

//! The scores of one pattern at a time.
stream_buffer<float> const& scores_of(std::string const& pattern) {
  static std::string current;
  static stream_buffer<float> scores(n);
  if (current != pattern) {
    std::minstd_rand random(1);
    auto const& make = patterns.at(pattern);
    for (std::int64_t i = 0; i < n; ++i) scores.data()[i] = make(i, random);
    current = pattern;
  }
  return scores;
}

struct magnitude {
  float const* x;
  float operator()(std::int64_t i) const { return x[i]; }
  void prefetch(std::int64_t i) const { scape::prefetch_word(x + i); }
};

//! The default statistic of the sparse optimizer: 10 bytes per element.
struct staleness_aware {
  float const* m;
  float const* e;
  std::uint16_t const* age;
  float operator()(std::int64_t i) const {
    return (m[i] + e[i]) * (1 + static_cast<float>(age[i]));
  }
  void prefetch(std::int64_t i) const {
    scape::prefetch_word(m + i);
    scape::prefetch_word(e + i);
    scape::prefetch_word(age + i);
  }
};

//! A selection of elements [0, size) with its memory.
template <class Statistic>
class selection {
 public:
  selection(std::int64_t size, Statistic const& statistic, double density, bool hinted)
      : layout_(size, 1),
        plan_(layout_.plan(density)),
        scratch_(scape::partitioned_topk_mask_bytes(layout_)),
        mask_(static_cast<std::size_t>(layout_.words_per_shard())),
        statistic_(statistic) {
    if (hinted) options_.hints = {&hint_, 1};
    for (int i = 0; i < 4; ++i) operator()({});  // the hint needs a few to settle
  }
  selection(selection const&) = delete;
  void operator()(scape::host_context ctx) {
    ctx.scratch = scratch_.bytes();
    scape::partitioned_topk_mask(ctx, layout_, plan_, 0, statistic_, std::span(mask_), options_);
  }

 private:
  scape::layout layout_;
  scape::send_plan plan_;
  scape::host_buffer scratch_;
  std::vector<scape::mask_word> mask_;
  Statistic statistic_;
  scape::topk_hint hint_;
  scape::topk_options options_;
};

template <class Statistic>
void run(benchmark::State& state, Statistic const& statistic, double input_bytes, double density,
         bool hinted, int threads) {
  selection select(n, statistic, density, hinted);
  scape::bench::compare(state, threads, (input_bytes + 1.0 / 8) * static_cast<double>(n),
                        scape::bench::roof::read,
                        [&](scape::host_context const& ctx) { select(ctx); });
}

//! In the cache, where there is no roof to compare with.
void run_small(benchmark::State& state, std::int64_t size, bool hinted) {
  selection select(size, magnitude{scores_of("normal").data()}, 0.1, hinted);
  for (auto _ : state) {
    state.SetIterationTime(scape::bench::seconds_of(1, [&] { select({}); }));
  }
  state.SetItemsProcessed(size * state.iterations());
}

void run_composite(benchmark::State& state, double density, bool hinted, int threads) {
  static auto const& m = scape::bench::random_values<float>();
  static auto const e = [] {
    stream_buffer<float> made(n);
    std::minstd_rand random(2);
    for (auto& x : made.span()) x = normal(random);
    return made;
  }();
  static auto const age = [] {
    stream_buffer<std::uint16_t> made(n);
    std::minstd_rand random(3);
    for (auto& x : made.span()) x = static_cast<std::uint16_t>(random() % 20);
    return made;
  }();
  run(state, staleness_aware{m.data(), e.data(), age.data()}, 10, density, hinted, threads);
}

void run_nth_element(benchmark::State& state, double density) {
  auto const x = scores_of("normal").span();
  stream_buffer<float> const copy(n);
  auto const begin = copy.span().begin();
  auto const k = static_cast<std::ptrdiff_t>(density * static_cast<double>(n));
  for (auto _ : state) {
    state.SetIterationTime(scape::bench::seconds_of(1, [&] {
      std::ranges::transform(x, begin, [](float value) { return std::fabs(value); });
      std::nth_element(begin, begin + k - 1, copy.span().end(), std::greater<>());
    }));
  }
  state.counters["GB/s"] = benchmark::Counter(4e-9 * static_cast<double>(n),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

template <class Body>
void add(std::string const& name, Body const& body) {
  benchmark::RegisterBenchmark(name.c_str(), body)->Unit(benchmark::kMillisecond)->UseManualTime();
}

bool const registered = [] {
  auto const percent = [](double density) { return std::to_string(std::lround(100 * density)); };
  for (auto const& entry : patterns) {
    for (auto const density : {0.1, 0.01}) {
      for (bool const hinted : {false, true}) {
        for (int const threads : {1, 2}) {
          if (threads > 1 && entry.first != "normal") continue;
          add("topk/" + entry.first + "/" + percent(density) + "%/" + (hinted ? "hint" : "cold") +
                  "/threads:" + std::to_string(threads),
              [=, name = entry.first](benchmark::State& state) {
                run(state, magnitude{scores_of(name).data()}, 4, density, hinted, threads);
              });
        }
      }
    }
  }
  for (auto const density : {0.1, 0.01}) {
    add("nth_element/normal/" + percent(density) + "%",
        [=](benchmark::State& state) { run_nth_element(state, density); });
    for (bool const hinted : {false, true}) {
      add("topk/staleness_aware/" + percent(density) + "%/" + (hinted ? "hint" : "cold"),
          [=](benchmark::State& state) { run_composite(state, density, hinted, 1); });
    }
  }
  for (std::int64_t const elements : {1000, 30000, 1000000}) {
    for (bool const hinted : {false, true}) {
      add("topk/small/" + std::to_string(elements) + "/" + (hinted ? "hint" : "cold"),
          [=](benchmark::State& state) { run_small(state, elements, hinted); });
    }
  }
  return true;
}();

}  // namespace
