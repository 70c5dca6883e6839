// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Kernels over a packed mask. Bits at and past n are never looked at, and written as 0.

#include <cub/block/block_reduce.cuh>

#include <cstdint>
#include <span>
#include <type_traits>

#include <scape/config.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/cuda/masked_pass.cuh>

namespace scape::detail::cuda {

struct packed_bitmask_tuning {
  static constexpr int threads = 256;
  //! Half words a warp packs at a time: one load each, all before the first value is looked at.
  template <class T>
  static constexpr int halves = sizeof(T) < 4 ? 16 : 8;
  static constexpr int byte_group = 16;  //!< bytes a thread packs or unpacks at a time
};

//! Word w of a mask of n elements, without the bits that belong to none.
[[nodiscard]] __device__ inline mask_word without_tail(mask_word word, std::int64_t w,
                                                       std::int64_t n) {
  auto const elements = n - w * mask_word_bits;
  return elements >= mask_word_bits ? word : word & ~(~mask_word{0} << elements);
}

template <class F>
__global__ void __launch_bounds__(packed_bitmask_tuning::threads)
    for_each_index(std::int64_t n, F f) {
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) f(i);
}

//! Enqueues f(i) for i < n, in any order.
template <class F>
void enqueue_for_each_index(caller who, cuda_context const& ctx, std::int64_t n, F const& f) {
  constexpr auto threads = packed_bitmask_tuning::threads;
  launch(who, ctx, for_each_index<F>, blocks_for(who, (n + threads - 1) / threads), threads, n, f);
}

//! What a predicate of indices looks at.
struct index_itself {
  [[nodiscard]] __device__ std::int64_t operator()(std::int64_t i) const { return i; }
};

template <class T>
struct array_element {
  T const* array;
  [[nodiscard]] __device__ T operator()(std::int64_t i) const { return array[i]; }
};

//! What Load returns.
template <class Load>
using loaded = std::remove_cvref_t<std::invoke_result_t<Load const&, std::int64_t>>;

//! A warp makes half words: words are little-endian.
template <class Load, class Predicate>
__global__ void __launch_bounds__(packed_bitmask_tuning::threads)
    pack_halves(std::int64_t n, std::uint32_t* mask, Load load, Predicate predicate) {
  constexpr int halves = packed_bitmask_tuning::halves<loaded<Load>>;
  constexpr std::int64_t tile = halves * warp_size;
  auto const lane = static_cast<int>(threadIdx.x) % warp_size;
  auto const warp = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp_size;
  auto const warps = std::int64_t{gridDim.x} * blockDim.x / warp_size;
  auto const end = 2 * scape::mask_words(n);
  for (auto h = warp * halves; h < end; h += warps * halves) {
    auto const first = h * warp_size + lane;
    auto const left = static_cast<int>(min(n - first, tile));  // elements from this lane's first on
    loaded<Load> values[halves];
#pragma unroll
    for (int i = 0; i < halves; ++i) {
      if (i * warp_size < left) values[i] = load(first + i * warp_size);
    }
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < halves; ++i) {
      auto const bits = __ballot_sync(~0U, i * warp_size < left && predicate(values[i]));
      if (lane == i) own = bits;
    }
    if (lane < halves && h + lane < end) mask[h + lane] = own;
  }
}

//! Enqueues the packing of predicate(load(i)) for i < n.
template <class Load, class Predicate>
void pack(caller who, cuda_context const& ctx, std::int64_t n, mask_word* mask, Load const& load,
          Predicate const& predicate) {
  constexpr std::int64_t tile =
      packed_bitmask_tuning::threads * packed_bitmask_tuning::halves<loaded<Load>>;
  launch(who, ctx, pack_halves<Load, Predicate>, blocks_for(who, (n + tile - 1) / tile),
         packed_bitmask_tuning::threads, n, reinterpret_cast<std::uint32_t*>(mask), load,
         predicate);
}

struct always {
  [[nodiscard]] __device__ bool operator()(std::int64_t) const { return true; }
};

struct is_nonzero {
  [[nodiscard]] __device__ bool operator()(std::uint8_t byte) const { return byte != 0; }
};

//! Bit i of the result: byte i is not 0.
[[nodiscard]] __device__ inline unsigned nonzero_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f;
  auto const nonzero = (((bytes & low) + low) | bytes) & ~low;
  return static_cast<unsigned>((nonzero >> 7) * 0x0102040810204080 >> 56);
}

//! Byte i of the result: bit i, for i < 8.
[[nodiscard]] __device__ inline std::uint64_t spread_bits(unsigned bits) {
  constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f;
  auto const spread = std::uint64_t{bits & 0xffU} * 0x0101010101010101 & 0x8040201008040201;
  return (spread + low) >> 7 & 0x0101010101010101;
}

//! For the g-th 16 bytes, which are aligned, and the g-th 16 bits of a mask.
struct pack_byte_group {
  std::uint8_t const* bytes;
  std::int64_t n;
  std::uint16_t* mask;

  __device__ void operator()(std::int64_t g) const {
    constexpr auto group = packed_bitmask_tuning::byte_group;
    unsigned bits = 0;
    if ((g + 1) * group <= n) {
      auto const value = reinterpret_cast<ulonglong2 const*>(bytes)[g];
      bits = nonzero_bytes(value.x) | nonzero_bytes(value.y) << 8;
    } else {
      for (auto i = g * group; i < n; ++i) bits |= (bytes[i] != 0 ? 1U : 0U) << i % group;
    }
    mask[g] = static_cast<std::uint16_t>(bits);
  }
};

struct unpack_byte_group {
  std::uint16_t const* mask;
  std::int64_t n;
  std::uint8_t* bytes;

  __device__ void operator()(std::int64_t g) const {
    constexpr auto group = packed_bitmask_tuning::byte_group;
    unsigned const bits = mask[g];
    if ((g + 1) * group <= n) {
      reinterpret_cast<ulonglong2*>(bytes)[g] = {spread_bits(bits), spread_bits(bits >> 8)};
    } else {
      for (auto i = g * group; i < n; ++i) {
        bytes[i] = static_cast<std::uint8_t>(bits >> i % group & 1U);
      }
    }
  }
};

struct unpack_byte {
  mask_word const* mask;
  std::uint8_t* bytes;
  __device__ void operator()(std::int64_t i) const {
    bytes[i] = static_cast<std::uint8_t>(mask[i / mask_word_bits] >> i % mask_word_bits & 1);
  }
};

[[nodiscard]] inline bool in_byte_groups(std::uint8_t const* bytes) noexcept {
  return reinterpret_cast<std::uintptr_t>(bytes) % packed_bitmask_tuning::byte_group == 0;
}

inline void pack_bytes(caller who, cuda_context const& ctx, std::span<std::uint8_t const> bytes,
                       std::span<mask_word> mask) {
  auto const n = std::ssize(bytes);
  if (in_byte_groups(bytes.data())) {
    auto* const groups = reinterpret_cast<std::uint16_t*>(mask.data());
    constexpr auto per_word = mask_word_bits / packed_bitmask_tuning::byte_group;
    enqueue_for_each_index(who, ctx, std::ssize(mask) * per_word,
                           pack_byte_group{bytes.data(), n, groups});
  } else {
    pack(who, ctx, n, mask.data(), array_element<std::uint8_t>{bytes.data()}, is_nonzero{});
  }
}

inline void unpack_bytes(caller who, cuda_context const& ctx, std::span<mask_word const> mask,
                         std::span<std::uint8_t> bytes) {
  auto const n = std::ssize(bytes);
  if (in_byte_groups(bytes.data())) {
    constexpr std::int64_t group = packed_bitmask_tuning::byte_group;
    auto const* const groups = reinterpret_cast<std::uint16_t const*>(mask.data());
    enqueue_for_each_index(who, ctx, (n + group - 1) / group,
                           unpack_byte_group{groups, n, bytes.data()});
  } else {
    enqueue_for_each_index(who, ctx, n, unpack_byte{mask.data(), bytes.data()});
  }
}

inline void clear(caller who, cuda_context const& ctx, std::span<mask_word> mask) {
  if (mask.empty()) return;
  check_cuda(cudaMemsetAsync(mask.data(), 0, mask.size_bytes(), ctx.stream), who,
             "cudaMemsetAsync");
}

template <class Index>
struct set_bit {
  Index const* indices;
  mask_word* mask;
  std::int64_t size;

  __device__ void operator()(std::int64_t i) const {
    auto const element = static_cast<std::uint64_t>(indices[i]);  // huge if negative
    if (element >= static_cast<std::uint64_t>(size)) return;
    atomicOr(reinterpret_cast<unsigned long long*>(mask) + element / mask_word_bits,
             1ULL << element % mask_word_bits);
  }
};

template <class Op>
struct combine_words {
  mask_word const* a;
  mask_word const* b;
  mask_word* out;
  std::int64_t n;
  Op op;
  __device__ void operator()(std::int64_t w) const { out[w] = without_tail(op(a[w], b[w]), w, n); }
};

//! a without b.
struct and_not_words {
  [[nodiscard]] __device__ mask_word operator()(mask_word a, mask_word b) const { return a & ~b; }
};

template <class Count>
__global__ void __launch_bounds__(packed_bitmask_tuning::threads)
    add_set_bits(mask_word const* mask, std::int64_t n, Count* count) {
  using reduce = cub::BlockReduce<Count, packed_bitmask_tuning::threads>;
  __shared__ typename reduce::TempStorage memory;
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  Count sum = 0;
  for (auto w = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; w < scape::mask_words(n);
       w += stride) {
    sum += static_cast<Count>(__popcll(without_tail(mask[w], w, n)));
  }
  sum = reduce(memory).Sum(sum);
  if (threadIdx.x == 0) atomicAdd(count, sum);
}

//! Enqueues *count = number of set bits below n.
inline void count(caller who, cuda_context const& ctx, mask_word const* mask, std::int64_t n,
                  std::int64_t* count) {
  constexpr std::int64_t tile = packed_bitmask_tuning::threads * 8;
  check_cuda(cudaMemsetAsync(count, 0, sizeof(*count), ctx.stream), who, "cudaMemsetAsync");
  launch(who, ctx, add_set_bits<unsigned long long>,
         blocks_for(who, (scape::mask_words(n) + tile - 1) / tile), packed_bitmask_tuning::threads,
         mask, n, reinterpret_cast<unsigned long long*>(count));
}

//! *element = the one of the r-th set bit, or -1. Runs as one thread.
template <class Element>
__global__ void select_element(mask_ranks::view ranks, std::int64_t n, std::int64_t r,
                               Element* element) {
  auto const* mask = ranks.chunks.words;
  std::int64_t chunk = 0, end = ranks.chunks.per_shard();
  while (end - chunk > 1) {
    auto const middle = (chunk + end) / 2;
    (ranks.before[middle] <= r ? chunk : end) = middle;
  }
  r -= ranks.before[chunk];
  auto const last = min((chunk + 1) * chunk_words, scape::mask_words(n));
  for (auto w = chunk * chunk_words; w < last; ++w) {
    auto word = without_tail(mask[w], w, n);
    auto const bits = __popcll(word);
    if (r < bits) {
      for (; r > 0; --r) word &= word - 1;
      *element = w * mask_word_bits + __ffsll(static_cast<long long>(word)) - 1;
      return;
    }
    r -= bits;
  }
  *element = -1;
}

//! Calls f(element, r) for the r-th set bit.
template <class F>
struct visit_op {
  static constexpr bool dense = false;
  static constexpr int words = masked_pass_tuning::copy_words;
  using value = char;  // nothing to load

  F f;
  [[nodiscard]] __device__ bool done() const { return false; }
  [[nodiscard]] __device__ char load(masked_element const&) const { return 0; }
  __device__ void store(masked_element const& e, char) const { f(e.index, e.position); }
};

template <class Index>
struct write_index {
  Index* indices;
  std::int64_t capacity;
  __device__ void operator()(std::int64_t element, std::int64_t r) const {
    if (r < capacity) indices[r] = static_cast<Index>(element);
  }
};

//! vector[i] = packed[r], with i the r-th set bit.
template <class T>
struct expand_op {
  static constexpr bool dense = false;
  static constexpr int words = masked_pass_tuning::copy_words;
  using value = T;

  T const* packed;
  std::int64_t capacity;
  T* vector;

  [[nodiscard]] __device__ bool done() const { return false; }
  [[nodiscard]] __device__ T load(masked_element const& e) const {
    return e.position < capacity ? packed[e.position] : T{};
  }
  __device__ void store(masked_element const& e, T x) const {
    if (e.position < capacity) vector[e.index] = x;
  }
};

}  // namespace scape::detail::cuda
