// SPDX-License-Identifier: Apache-2.0
#include <scape/partitioned_topk_mask.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cases/partitioned_topk_mask.hpp"
#include "support/cuda_backend.cuh"

namespace topk_cases {

using scape::testing::cuda_backend;

TEST_CASE_TEMPLATE_INVOKE(topk_equals_reference, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_only_hints, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_follows, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_equal_values, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_excluded_last, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_several_groups, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_many_ranges, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_repeats, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_any_address, cuda_backend);
TEST_CASE_TEMPLATE_INVOKE(topk_wrong_arguments, cuda_backend);

using scores_type = cuda_backend::vector<float>;
using mask_type = cuda_backend::vector<mask_word>;
using counter_type = cuda_backend::vector<unsigned long long>;

struct counted {
  float const* scores;
  unsigned long long* calls;
  __device__ float operator()(std::int64_t i) const {
    atomicAdd(calls, 1ULL);
    return scores[i];
  }
};

//! Runs a selection on memory of its own; the mask begins as it is given.
template <class F>
void select(scape::layout const& layout, scape::send_plan const& plan, F const& statistic,
            mask_type& mask, scape::topk_options const& options, int const* skip = nullptr) {
  cuda_backend::run(scape::partitioned_topk_mask_bytes<scape::cuda_context>(layout),
                    [&](auto const& ctx) {
                      scape::detail::cuda::partitioned_topk_mask(
                          "test", ctx, layout, plan, 0, statistic, std::span(mask), options, skip);
                    });
}

TEST_CASE("the statistic is evaluated once per element where the threshold is known about") {
  std::int64_t const n = 100003;
  constexpr auto sample = scape::detail::cuda::topk_tuning::sample_size;
  scape::layout const layout(n, 1);
  auto const calls_of = [&](scores_type const& scores, std::int64_t k,
                            std::span<scape::topk_hint> hints) {
    auto plan = layout.plan(0);
    plan.group_k[0] = k;
    mask_type mask(static_cast<std::size_t>(layout.words_per_shard()));
    counter_type calls(1);
    select(layout, plan, counted{scores.data(), calls.data()}, mask, {.hints = hints});
    CHECK(std::ranges::equal(mask, expected(layout, {k}, scores)));
    return static_cast<std::int64_t>(calls[0]);
  };
  hint_vector<cuda_backend> hints(1);
  for (auto const& name : {"normal", "equal", "twenty values"}) {
    auto const scores = make<cuda_backend>(patterns.at(name), n);
    for (auto const k : {std::int64_t{1}, n / 100, n / 10}) {
      auto const cold = calls_of(scores, k, {});
      CHECK(cold > n);
      CHECK(cold <= n + sample);
      hints[0] = {};
      calls_of(scores, k, hints);
      if (std::string(name) == "normal") CHECK(calls_of(scores, k, hints) == n);
    }
  }
  SUBCASE("at most five times, where nothing can be guessed") {
    auto const scores = make<cuda_backend>(patterns.at("equal"), n);
    for (auto const key : {scape::detail::topk::largest_key, scape::detail::topk::smallest_key}) {
      hints[0] = {key, 0};
      CHECK(calls_of(scores, n / 2, hints) == 5 * n);
    }
  }
}

TEST_CASE("a skipped selection changes nothing") {
  for (std::int64_t const n : {1000, 40000}) {
    scape::layout const layout(
        n, 1,
        {{.offset = 0, .length = n - 100},
         {.offset = n - 100, .length = 60, .policy = scape::span_policy::always},
         {.offset = n - 40, .length = 40, .policy = scape::span_policy::frozen}});
    auto const scores = make<cuda_backend>(patterns.at("normal"), n);
    auto const plan = layout.plan(0.1);
    hint_vector<cuda_backend> hints(2, scape::topk_hint{7, 9});
    mask_type mask(static_cast<std::size_t>(layout.words_per_shard()), canary);
    auto const untouched = mask;
    cuda_backend::vector<int> skip(1, 1), strayed(1);
    observed const statistic{scores.data(), n, strayed.data()};
    select(layout, plan, statistic, mask, {.hints = hints}, skip.data());
    CHECK(mask == untouched);
    CHECK(hints[0].key == 7);
    CHECK(hints[0].width == 9);
    skip[0] = 0;
    select(layout, plan, statistic, mask, {.hints = hints}, skip.data());
    CHECK(std::ranges::equal(mask, expected(layout, plan.group_k, scores)));
    CHECK(hints[0].key > 7);
    CHECK(strayed[0] == 0);
  }
}

TEST_CASE("a captured selection is replayed") {
  std::int64_t const n = 40000;
  scape::layout const layout(n, 1);
  auto scores = make<cuda_backend>(patterns.at("normal"), n);
  auto const plan = layout.plan(0.1);
  hint_vector<cuda_backend> hints(1);
  mask_type mask(static_cast<std::size_t>(layout.words_per_shard()), canary);
  cuda_backend::vector<int> strayed(1);
  cuda_backend::run(
      scape::partitioned_topk_mask_bytes<scape::cuda_context>(layout), [&](auto const& ctx) {
        using scape::detail::check_cuda;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        check_cuda(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeGlobal), "test",
                   "cudaStreamBeginCapture");
        scape::partitioned_topk_mask(ctx, layout, plan, 0,
                                     observed{scores.data(), n, strayed.data()}, std::span(mask),
                                     {.hints = hints});
        check_cuda(cudaStreamEndCapture(ctx.stream, &graph), "test", "cudaStreamEndCapture");
        check_cuda(cudaGraphInstantiate(&executable, graph, 0), "test", "cudaGraphInstantiate");
        for (int replay = 0; replay < 3; ++replay) {
          for (auto& s : scores) s *= 1.5F;
          std::swap(scores[0], scores[static_cast<std::size_t>(n / 2 + replay)]);
          check_cuda(cudaGraphLaunch(executable, ctx.stream), "test", "cudaGraphLaunch");
          check_cuda(cudaStreamSynchronize(ctx.stream), "test", "cudaStreamSynchronize");
          CHECK(std::ranges::equal(mask, expected(layout, plan.group_k, scores)));
        }
        check_cuda(cudaGraphExecDestroy(executable), "test", "cudaGraphExecDestroy");
        check_cuda(cudaGraphDestroy(graph), "test", "cudaGraphDestroy");
      });
  CHECK(strayed[0] == 0);
}

}  // namespace topk_cases
