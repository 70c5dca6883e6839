// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <scape/packed_bitmask.cuh>

#include "cases/packed_bitmask.hpp"
#include "support/cuda_backend.cuh"

namespace scape::testing {
namespace {

struct device : cuda_backend {
  static std::size_t scratch_bytes(std::int64_t elements) { return bits::scratch_bytes(elements); }
};
template <class T>
using managed = device::vector<T>;

TEST_CASE_TEMPLATE_INVOKE(bitmask_packing, device);
TEST_CASE_TEMPLATE_INVOKE(bitmask_values, device);
TEST_CASE_TEMPLATE_INVOKE(bitmask_queries, device);
TEST_CASE_TEMPLATE_INVOKE(bitmask_moves, device);
TEST_CASE_TEMPLATE_INVOKE(bitmask_algebra, device);
TEST_CASE_TEMPLATE_INVOKE(bitmask_arguments, device);

TEST_CASE("on a device, what does not fit the mask's bits is ignored") {
  constexpr std::int64_t n = 1000;
  managed<std::int64_t> const indices = {5, n, -1, std::int64_t{1} << 40, n - 1, 63};
  managed<std::int8_t> const narrow = {64, -128, 5, 127, -1};
  managed<mask_word> words(at(mask_words(n))), others(words.size());
  device::run(0, [&](cuda_context const& ctx) {
    bits::pack_indices(ctx, indices, bitmask_view(words, n));
    bits::pack_indices(ctx, narrow, bitmask_view(others, 127));
  });
  std::vector<bool> expected(n), few(127);
  for (auto const i : {5, 63, 999}) expected[at(i)] = true;
  for (auto const i : {5, 64}) few[at(i)] = true;
  CHECK(std::ranges::equal(words, packed(expected)));
  CHECK(std::ranges::equal(std::span(others).first(2), packed(few)));

  words.back() = ~mask_word{0};  // 40 elements and 24 bits of none
  const_bitmask_view const mask(words, n);
  auto const dense = copy_on<device>(make_vector(n, [](auto i) { return sample_value<float>(i); }));
  for (std::int64_t const length : {0, 1, 2, 41, 42, 43, 60}) {
    CAPTURE(length);
    auto const fits = std::min<std::int64_t>(length, 42);
    guarded_on<device, float> values(length), spread(std::vector<float>(n, -1));
    guarded_on<device, std::int16_t> list(length);
    managed<std::int64_t> selected(1);
    run<device>(n, [&](cuda_context const& ctx) {
      bits::gather(ctx, mask, dense, values.span());
      bits::scatter(ctx, mask, values.span(), spread.span());
      bits::unpack_indices(ctx, mask, list.span());
      bits::select(ctx, mask, length, selected.data());
    });
    auto const element = [](std::int64_t r) { return r == 0 ? 5 : r == 1 ? 63 : 958 + r; };
    for (std::int64_t r = 0; r < length; ++r) {
      CHECK(list.span()[at(r)] == (r < fits ? element(r) : 0));
      CHECK(values.span()[at(r)] == (r < fits ? dense[at(element(r))] : 0));
      if (r < fits) CHECK(spread.span()[at(element(r))] == dense[at(element(r))]);
    }
    CHECK(std::ranges::count(spread.span(), -1.0F) == n - fits);
    CHECK(selected[0] == (length < 42 ? element(length) : -1));
    CHECK(values.intact());
    CHECK(spread.intact());
    CHECK(list.intact());
  }
}

TEST_CASE("too little scratch is refused") {
  constexpr std::int64_t n = 1000;
  managed<mask_word> words(at(mask_words(n)), 1);
  managed<float> dense(at(n)), few(16);
  managed<std::int64_t> number(16);
  const_bitmask_view const mask(words, n);
  device::run(100, [&](cuda_context const& ctx) {
    CHECK(rejects([&] { bits::gather(ctx, mask, dense, std::span(few)); }, {"gather", "100"}));
    CHECK(rejects([&] { bits::scatter(ctx, mask, few, std::span(dense)); }, {"scatter", "100"}));
    CHECK(rejects([&] { bits::unpack_indices(ctx, mask, std::span(number)); }, {"100 bytes"}));
    CHECK(rejects([&] { bits::for_each_set(ctx, mask, store_element{number.data()}); }, {"100"}));
    CHECK(rejects([&] { bits::select(ctx, mask, 3, number.data()); }, {"select", "100 bytes"}));
  });
  CHECK(std::ranges::count(number, 0) == 16);
}

TEST_CASE("all functions are captured and replayed") {
  constexpr std::int64_t n = 3001;
  managed<float> values(at(n)), packed_values(at(n)), spread(at(n));
  managed<std::uint8_t> bytes(at(n));
  managed<std::int32_t> indices(at(n));
  managed<std::int64_t> elements(at(n)), numbers(3);
  managed<mask_word> memory(at(5 * mask_words(n)));
  auto const mask = [&](std::int64_t i) {
    return bitmask_view(std::span(memory).subspan(at(i * mask_words(n))), n);
  };
  run<device>(n, [&](cuda_context const& ctx) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    CHECK(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    bits::pack_if(ctx, values, is_positive{}, mask(0));
    bits::count(ctx, mask(0), &numbers[0]);
    bits::rank(ctx, mask(0), n / 2, &numbers[1]);
    bits::select(ctx, mask(0), 10, &numbers[2]);
    bits::for_each_set(ctx, mask(0), store_element{elements.data()});
    bits::unpack_bytes(ctx, mask(0), bytes);
    bits::pack_bytes(ctx, bytes, mask(1));
    bits::unpack_indices(ctx, mask(1), std::span(indices));
    bits::pack_indices(ctx, indices, mask(2));
    bits::clear(ctx, mask(3));
    bits::bit_or(ctx, mask(2), mask(3), mask(3));
    bits::fill(ctx, mask(4));
    bits::and_not(ctx, mask(4), mask(3), mask(4));
    bits::gather(ctx, mask(3), values, std::span(packed_values));
    bits::scatter(ctx, mask(3), packed_values, std::span(spread));
    CHECK(cudaStreamEndCapture(ctx.stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
    for (int round = 0; round < 3; ++round) {
      CAPTURE(round);
      for (std::int64_t i = 0; i < n; ++i) {
        values[at(i)] = small_integer(5, 0, round, i, 8);
        spread[at(i)] = -1;
        indices[at(i)] = -1;
      }
      CHECK(cudaGraphLaunch(replay, ctx.stream) == cudaSuccess);
      CHECK(cudaStreamSynchronize(ctx.stream) == cudaSuccess);
      auto const set = make_vector(n, [&](auto i) -> bool { return values[at(i)] > 0; });
      auto const expected = set_elements(set);
      for (std::int64_t m = 0; m < 4; ++m) CHECK(same_bits(mask(m).words, packed(set)));
      CHECK(same_bits(mask(4).words,
                      packed(make_vector(n, [&](auto i) -> bool { return !set[at(i)]; }))));
      CHECK(numbers[0] == std::ssize(expected));
      CHECK(numbers[1] == std::ranges::lower_bound(expected, n / 2) - expected.begin());
      CHECK(numbers[2] == expected[10]);
      CHECK(same_bits(std::span(elements).first(expected.size()), expected));
      CHECK(std::ranges::equal(bytes, set));
      for (std::int64_t i = 0; i < n; ++i) {
        CHECK(spread[at(i)] == (set[at(i)] ? values[at(i)] : -1));
      }
    }
    CHECK(cudaGraphExecDestroy(replay) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  });
}

}  // namespace
}  // namespace scape::testing
