// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The inputs of the benchmarks, made on the device.

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/packed_bitmask.cuh>
#include <scape/layout.hpp>
#include <scape/partitioned_topk_mask.cuh>

namespace scape::bench {

//! A positive number out of the environment.
inline std::int64_t from_environment(char const* name, std::int64_t otherwise) {
  auto const* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  auto const value = std::atoll(text);
  detail::expect(value > 0, "benchmark", std::string(name) + " is not a positive number");
  return value;
}

//! Elements of a vector: SCAPE_BENCH_ELEMENTS, or far more than any cache holds.
inline std::int64_t elements() {
  static auto const n = from_environment("SCAPE_BENCH_ELEMENTS", std::int64_t{1} << 26);
  return n;
}

//! Zeroed elements in device memory.
template <class T>
class device_array {
 public:
  explicit device_array(std::int64_t size) : memory_(static_cast<std::size_t>(size) * sizeof(T)) {}
  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(memory_.bytes().data()); }
  [[nodiscard]] std::span<T> span() const noexcept {
    return {data(), memory_.bytes().size() / sizeof(T)};
  }
  [[nodiscard]] std::span<T const> view() const noexcept { return span(); }

 private:
  device_buffer memory_;
};

//! Element i of a stream of random floats, uniform in [-1, 1).
struct uniform {
  std::uint64_t seed = 1;
  [[nodiscard]] __device__ float operator()(std::int64_t i) const {
    auto x = (static_cast<std::uint64_t>(i) + seed * 0x632be59bd9b4e019U) * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    x ^= x >> 31;
    return static_cast<float>(static_cast<std::int64_t>(x)) * 0x1p-63F;
  }
};

template <class T, class F>
struct write_element {
  T* out;
  F make;
  __device__ void operator()(std::int64_t i) const { out[i] = static_cast<T>(make(i)); }
};

//! out[i] = make(i)
template <class T, class F>
void fill(cuda_context const& ctx, device_array<T> const& out, F const& make) {
  detail::cuda::enqueue_for_each_index("benchmark", ctx, std::ssize(out.span()),
                                       write_element<T, F>{out.data(), make});
}

//! A vector of random values.
template <class T>
struct random_array : device_array<T> {
  random_array(cuda_context const& ctx, std::int64_t n, std::uint64_t seed = 1)
      : device_array<T>(n) {
    fill(ctx, *this, uniform{seed});
  }
};

//! A layout of one shard, and a mask with exactly as many random bits as the plan says.
struct random_mask {
  random_mask(cuda_context const& ctx, std::int64_t n, double density)
      : layout(n, 1), plan(layout.plan(density)), words(layout.mask_words()) {
    device_buffer const scratch(partitioned_topk_mask_bytes<cuda_context>(layout));
    partitioned_topk_mask({ctx.stream, scratch.bytes()}, layout, plan, 0, uniform{7}, words.span());
    detail::check_cuda(cudaStreamSynchronize(ctx.stream), "benchmark", "cudaStreamSynchronize");
  }
  scape::layout layout;
  send_plan plan;
  device_array<mask_word> words;
};

}  // namespace scape::bench
