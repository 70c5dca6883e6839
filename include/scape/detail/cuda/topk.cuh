// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Exact top-k of a statistic as mask bits, usually in one read of the statistic's inputs.
//!
//! The k-th largest element T is looked for in a range of composites, from a hint or from a sample.
//! A pass over all elements sets the bits above the range, counts what is inside in bins and
//! collects it. If T lay elsewhere or too much was inside, the next pass gets a range that is
//! known to hold T: everything on the right side, or the bin of T. Otherwise the elements of T's
//! bin are settled among themselves and the bits of the collected elements set. All passes that
//! can be needed are enqueued; those behind the end return at once. Composites are unique, so
//! neither the order of the candidates nor the way taken can be seen in the mask.

#include <cstdint>

#include <scape/config.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/cuda/range_table.cuh>
#include <scape/detail/cuda/topk_select.cuh>
#include <scape/detail/cuda/tuning/partitioned_topk_mask.cuh>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/topk_key.hpp>

namespace scape::detail::cuda {

//! What the kernels of one selection tell each other.
struct topk_state {
  composite_range tried;  //!< of the next pass
  composite above;        //!< elements above it, counted by the pass
  composite collected;    //!< candidates inside it; those past the capacity are not kept
  std::int64_t inside;    //!< elements in the first range that was tried
  composite_range rest;   //!< candidates above it are taken, and rest_rank of those inside
  std::int64_t rest_rank, rest_count;
  composite rest_listed;
  topk::key threshold;
  unsigned arrived;  //!< blocks of the running kernel that are through
  bool first, done;
};

//! One selection: k of `length` elements, 0 < k < length.
struct topk_job {
  topk_state* state;
  composite* totals;      //!< elements per bin; 0 when a pass begins
  composite* candidates;  //!< also the memory of the sample
  std::int64_t capacity;
  composite* rest;
  mask_word* mask;
  mask_word const* exclude;  //!< may be null
  topk_hint* hint;           //!< may be null
  int const* skip;           //!< may be null; else nothing is done where it is not 0
  std::int64_t length, k;
  topk::key nan_key;
  composite_order order;
  bool whole;  //!< all elements can be collected

  [[nodiscard]] __device__ bool skips() const { return skip != nullptr && *skip != 0; }
  [[nodiscard]] __device__ bool excludes(std::int64_t i) const {
    return exclude != nullptr && (exclude[i / mask_word_bits] >> (i % mask_word_bits) & 1) != 0;
  }
  __device__ void take(composite c) const {
    auto const i = order.index(c);
    atomicOr(reinterpret_cast<unsigned long long*>(mask + i / mask_word_bits),
             1ULL << (i % mask_word_bits));
  }
};

//! A range that holds T unless the sample, one element of each of many equal stretches, is off by
//! more than four standard deviations.
template <class Tuning, class F>
__device__ composite_range topk_sample(F const& statistic, range_table const& table,
                                       topk_job const& job) {
  using divider = list_divider<Tuning::sample_threads, Tuning::list_digit_bits>;
  __shared__ typename divider::storage memory;
  __shared__ int taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  constexpr composite no_element = ~composite{0};
  auto const stretch =
      static_cast<std::uint64_t>(table.words * mask_word_bits / Tuning::sample_size);
  int mine = 0;
#pragma unroll 4
  for (auto s = threadIdx.x; s < Tuning::sample_size; s += Tuning::sample_threads) {
    auto const random = (std::uint64_t{s + 1} * 0x9e3779b97f4a7c15U) >> 33;
    auto const position = static_cast<std::int64_t>(s * stretch + ((random * stretch) >> 31));
    auto const v = position / mask_word_bits;
    auto const r = table.find(v);
    auto const i = table.word(r, v) * mask_word_bits + position % mask_word_bits;
    bool const exists = table.at[r].begin <= i && i < table.at[r].end;
    auto c = no_element;
    if (exists) {
      c = job.order.of(job.excludes(i) ? 0 : topk::key_of(statistic(i), job.nan_key), i);
      ++mine;
    }
    job.candidates[s] = c;
  }
  atomicAdd(&taken, mine);
  __syncthreads();
  auto const m = static_cast<double>(taken);
  auto const share = static_cast<double>(job.k) / static_cast<double>(job.length);
  auto const margin = 4 * sqrt(m * share * (1 - share)) + 4;
  auto const above = static_cast<std::int64_t>(m * share - margin);
  auto const within = static_cast<std::int64_t>(m * share + margin) + 1;
  auto const all = job.order.everything();
  auto const of_rank = [&](std::int64_t rank) {
    return divider::divide(memory, job.candidates, Tuning::sample_size, all, rank);
  };
  return {within > taken ? all.lo : of_rank(within), above < 1 ? all.hi : of_rank(above)};
}

//! One block: where the first pass is to look.
template <class Tuning, class F>
__global__ void __launch_bounds__(Tuning::sample_threads)
    topk_begin(F const statistic, range_table const __grid_constant__ table, topk_job const job) {
  if (job.skips()) return;
  for (auto b = threadIdx.x; b < 1U << Tuning::digit_bits; b += Tuning::sample_threads) {
    job.totals[b] = 0;
  }
  auto tried = job.order.everything();
  if (!job.whole) {
    auto const known = job.hint != nullptr ? topk::bracket_of(*job.hint) : topk::bracket{1, 0};
    tried = known.empty() ? topk_sample<Tuning>(statistic, table, job)
                          : job.order.of_keys(known.lo, known.hi);
  }
  if (threadIdx.x == 0) {
    *job.state = {};
    job.state->tried = tried;
    job.state->first = true;
  }
}

//! A warp's candidates: kept in shared memory until they are worth an atomic operation, then
//! counted in the block's bins and written out.
template <class Tuning>
class topk_collector {
 public:
  //! Of one warp. A tile always fits behind what is not flushed.
  static constexpr int tile = Tuning::words * static_cast<int>(mask_word_bits);
  static constexpr int size = Tuning::flushed + tile;

  __device__ topk_collector(topk_job const& job, composite_range tried, composite* kept,
                            unsigned* counts, int lane)
      : job_(job), bins_(tried, Tuning::digit_bits), kept_(kept), counts_(counts), lane_(lane) {}

  //! Adds c of the lanes whose bit is set.
  __device__ void add(composite c, unsigned inside) {
    if ((inside >> lane_ & 1U) != 0) kept_[count_ + __popc(inside & ((1U << lane_) - 1U))] = c;
    count_ += __popc(inside);
  }
  __device__ void flush_if_full() {
    if (count_ > Tuning::flushed) flush();
  }
  __device__ void flush() {
    if (count_ == 0) return;
    __syncwarp();
    std::int64_t base = 0;
    if (collecting_) {
      composite reserved = 0;
      if (lane_ == 0) {
        reserved = atomicAdd(&job_.state->collected, static_cast<composite>(count_));
      }
      base = static_cast<std::int64_t>(__shfl_sync(~0U, reserved, 0));
      collecting_ = base + count_ <= job_.capacity;
    }
    for (int first = 0; first < count_; first += warp_size) {
      auto const at = first + lane_;
      bool const mine = at < count_;
      auto const c = kept_[mine ? at : 0];
      count(bins_.of(c), mine);
      if (mine && collecting_) job_.candidates[base + at] = c;
    }
    __syncwarp();
    count_ = 0;
  }

 private:
  //! Lanes that agree with the first one go together: equal neighbours are common.
  __device__ void count(int bin, bool mine) {
    auto const leading = __shfl_sync(~0U, bin, 0);
    auto const same = __popc(__ballot_sync(~0U, mine && bin == leading));
    if (lane_ == 0) {
      atomicAdd(counts_ + bin, static_cast<unsigned>(same));
    } else if (mine && bin != leading) {
      atomicAdd(counts_ + bin, 1U);
    }
  }

  topk_job const& job_;
  composite_bins bins_;
  composite* kept_;
  unsigned* counts_;
  int lane_;
  int count_ = 0;
  bool collecting_ = true;
};

//! The words number v ... v + Tuning::words - 1 by one warp: lane l has elements l and 32 + l of
//! each. Whole: they are adjacent, and the elements of one range. Returns the number of elements
//! above the range, each lane its part.
template <class Tuning, bool Whole, class F>
__device__ int topk_tile(F const& statistic, range_table const& table, topk_job const& job,
                         composite_range tried, int range, std::int64_t v,
                         topk_collector<Tuning>& inside, int lane) {
  constexpr int words = Tuning::words;
  std::int64_t at[words];
  mask_word lanes[words];
  topk::key keys[2 * words];
#pragma unroll
  for (int j = 0; j < words; ++j) {
    if constexpr (Whole) {
      at[j] = table.word(range, v) + j;
      lanes[j] = ~mask_word{0};
    } else {
      auto const r = table.find(v + j);
      at[j] = table.word(r, v + j);
      lanes[j] = v + j < table.words ? lanes_of(at[j], table.at[r].begin, table.at[r].end) : 0;
    }
  }
#pragma unroll
  for (int e = 0; e < 2 * words; ++e) {
    auto const i = at[e / 2] * mask_word_bits + (e % 2 * warp_size + lane);
    keys[e] = -1;
    if (Whole || (lanes[e / 2] >> (e % 2 * warp_size + lane) & 1) != 0) {
      keys[e] = topk::key_of(statistic(i), job.nan_key);
    }
  }
  if (job.exclude != nullptr) {
#pragma unroll
    for (int e = 0; e < 2 * words; ++e) {
      if (!Whole && lanes[e / 2] == 0) continue;
      bool const excluded = (job.exclude[at[e / 2]] >> (e % 2 * warp_size + lane) & 1) != 0;
      if (excluded && keys[e] >= 0) keys[e] = 0;
    }
  }
  auto const lo = job.order.key(tried.lo), hi = job.order.key(tried.hi);
  unsigned above[2 * words];
#pragma unroll
  for (int e = 0; e < 2 * words; ++e) {
    above[e] = __ballot_sync(~0U, keys[e] > hi);
    // Also false for the -1 of no element, as lo is at least 0.
    bool const near = static_cast<unsigned>(keys[e] - lo) <= static_cast<unsigned>(hi - lo);
    if (__ballot_sync(~0U, near) == 0) continue;
    auto const i = at[e / 2] * mask_word_bits + (e % 2 * warp_size + lane);
    auto const c = job.order.of(keys[e], i);
    above[e] |= __ballot_sync(~0U, near && c > tried.hi);
    inside.add(c, __ballot_sync(~0U, near && tried.holds(c)));
  }
  unsigned low = 0, high = 0;
  mask_word own_lanes = 0;
  std::int64_t own_at = at[0] + lane;
#pragma unroll
  for (int j = 0; j < words; ++j) {
    low = lane == j ? above[2 * j] : low;
    high = lane == j ? above[2 * j + 1] : high;
    own_lanes = lane == j ? lanes[j] : own_lanes;
    if constexpr (!Whole) own_at = lane == j ? at[j] : own_at;
  }
  auto const own = low | mask_word{high} << warp_size;
  if (own_lanes != 0) store_lanes(job.mask + own_at, own_lanes, own);
  __syncwarp();  // so that the warp goes on as one
  return __popcll(own);
}

//! What follows from a pass: the end, or the range of the next one. Of the pass's last block.
template <class Tuning>
__device__ void topk_conclude(topk_job const& job, composite_range tried) {
  constexpr int max_bins = 1 << Tuning::digit_bits;
  using finder = bin_finder<Tuning::threads, max_bins>;
  __shared__ typename finder::storage memory;
  auto& state = *job.state;
  auto const above = static_cast<std::int64_t>(state.above);
  composite_bins const bins(tried, Tuning::digit_bits);
  std::int64_t inside = 0;
  auto const found = finder::find(memory, job.totals, bins.count, job.k - above, inside);
  bool const complete = found.bin >= 0 && state.collected <= static_cast<composite>(job.capacity);
  bool const done = above == job.k || complete;
  if (!done) {
    for (auto b = static_cast<int>(threadIdx.x); b < bins.count; b += Tuning::threads) {
      job.totals[b] = 0;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (state.first) state.inside = inside;
  state.first = false;
  state.done = done;
  state.above = 0;
  if (!complete) state.collected = 0;
  if (above == job.k) {
    state.threshold = job.order.key(tried.hi);  // any between T and the next smaller one will do
  } else if (complete) {
    state.rest = bins.bin(found.bin);
    state.rest_rank = found.rank;
    state.rest_count = found.count;
  } else if (above > job.k) {
    state.tried = {tried.hi + 1, job.order.everything().hi};
  } else if (found.bin < 0) {
    state.tried = {0, tried.lo - 1};
  } else {
    state.tried = bins.bin(found.bin);
  }
}

//! A pass over the elements of the table, of a total of `blocks` blocks with all tables.
template <class Tuning, class F>
__global__ void __launch_bounds__(Tuning::threads)
    topk_pass(F const statistic, range_table const __grid_constant__ table, topk_job const job,
              unsigned blocks) {
  if (job.skips() || job.state->done) return;
  using collector = topk_collector<Tuning>;
  constexpr int max_bins = 1 << Tuning::digit_bits;
  constexpr int warps = Tuning::threads / warp_size;
  __shared__ composite kept[warps][collector::size];
  __shared__ unsigned counts[max_bins];
  __shared__ composite all_above;
  auto const lane = static_cast<int>(threadIdx.x) % warp_size;
  auto const warp = static_cast<int>(threadIdx.x) / warp_size;
  if (threadIdx.x == 0) all_above = 0;
  for (auto b = threadIdx.x; b < max_bins; b += Tuning::threads) counts[b] = 0;
  __syncthreads();

  auto const tried = job.state->tried;
  collector inside(job, tried, kept[warp], counts, lane);
  std::int64_t above = 0;
  auto const step = std::int64_t{gridDim.x} * warps * Tuning::words;
  for (auto v = (std::int64_t{blockIdx.x} * warps + warp) * Tuning::words; v < table.words;
       v += step) {
    auto const range = table.find(v);
    auto const begin = table.word(range, v) * mask_word_bits;
    bool const whole = table.at[range].begin <= begin &&
                       begin + Tuning::words * mask_word_bits <= table.at[range].end;
    above += whole ? topk_tile<Tuning, true>(statistic, table, job, tried, range, v, inside, lane)
                   : topk_tile<Tuning, false>(statistic, table, job, tried, range, v, inside, lane);
    inside.flush_if_full();
  }
  inside.flush();
  if (above != 0) atomicAdd(&all_above, static_cast<composite>(above));
  __syncthreads();
  for (auto b = threadIdx.x; b < max_bins; b += Tuning::threads) {
    if (counts[b] != 0) atomicAdd(job.totals + b, composite{counts[b]});
  }
  if (threadIdx.x == 0 && all_above != 0) atomicAdd(&job.state->above, all_above);
  if (is_last_block(&job.state->arrived, blocks)) topk_conclude<Tuning>(job, tried);
}

//! Sets the bits of the candidates that are taken, and learns for the next time.
template <class Tuning>
__global__ void __launch_bounds__(Tuning::threads) topk_settle(topk_job const job) {
  if (job.skips() || !job.state->done) return;
  using divider = list_divider<Tuning::threads, Tuning::list_digit_bits>;
  __shared__ typename divider::storage memory;
  __shared__ composite lowest;
  auto& state = *job.state;
  auto const size = static_cast<std::int64_t>(state.collected);
  auto const rest = state.rest;
  bool const listing = state.rest_count <= Tuning::rest_capacity;
  auto const step = std::int64_t{gridDim.x} * Tuning::threads;
  auto const lane = static_cast<int>(threadIdx.x) % warp_size;
  for (auto first = std::int64_t{blockIdx.x} * Tuning::threads; first < size; first += step) {
    auto const i = first + threadIdx.x;
    auto const c = i < size ? job.candidates[i] : 0;
    if (i < size && c > rest.hi) job.take(c);
    auto const listed = __ballot_sync(~0U, listing && i < size && rest.holds(c));
    if (listed == 0) continue;
    composite base = 0;
    if (lane == 0) base = atomicAdd(&state.rest_listed, static_cast<composite>(__popc(listed)));
    base = __shfl_sync(~0U, base, 0);
    if ((listed >> lane & 1U) != 0) job.rest[base + __popc(listed & ((1U << lane) - 1U))] = c;
  }
  if (!is_last_block(&state.arrived, gridDim.x)) return;

  auto threshold = state.threshold;
  if (size > 0) {
    auto const* const list = listing ? job.rest : job.candidates;
    auto const count = listing ? state.rest_count : size;
    auto const least = divider::divide(memory, list, count, rest, state.rest_rank);
    if (threadIdx.x == 0) lowest = rest.hi;
    __syncthreads();
    auto mine = rest.hi;
    for (auto i = std::int64_t{threadIdx.x}; i < count; i += Tuning::threads) {
      auto const c = list[i];
      if (c < least || c > rest.hi) continue;
      job.take(c);
      mine = topk::lesser(mine, c);
    }
    if (mine != rest.hi) atomicMin(&lowest, mine);
    __syncthreads();
    threshold = job.order.key(lowest);
  }
  if (threadIdx.x == 0 && job.hint != nullptr) {
    topk::learn(*job.hint, {threshold, state.inside, !job.whole}, job.length);
  }
}

}  // namespace scape::detail::cuda
