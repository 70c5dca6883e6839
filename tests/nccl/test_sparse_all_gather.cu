// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <span>

#include <scape/comm/nccl.hpp>
#include <scape/sparse_all_gather.cuh>

#include "cases/sparse_all_gather.hpp"
#include "support/nccl_backend.cuh"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(all_gather_values, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_types, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_long, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_any, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_traffic, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_failure, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_lost_peer, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_arguments, nccl_backend);

TEST_CASE("CUDA's own 16-bit floats") {
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({1000, 2}, 0.1);
    check_gathered<nccl_backend, __half>(comm, p, 1);
    check_gathered<nccl_backend, __nv_bfloat16>(comm, p, 1);
  });
}

TEST_CASE("bits past the plan's total are treated as unset") {
  if (!nccl_backend::has_ranks(2)) return;
  for (double const density : {0.0, 0.5}) {
    masked_problem p({256, 2}, density);
    std::ranges::fill(p.mask, ~mask_word{0});
    nccl_backend::ranks(2, [&](auto& comm) {
      auto const before = normal_gradient(1, comm.rank(), 0, 256);
      gathered_vector<nccl_backend, float> vector(before);
      all_gather<nccl_backend, float>(comm, p, vector.span());
      auto const untouched = at(p.plan.total());
      CHECK(same_bits(vector.span().subspan(untouched), std::span(before).subspan(untouched)));
      CHECK(vector.intact());
    });
  }
}

TEST_CASE("another current device is refused and nothing is changed") {
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({130, 2}, 0.3);
    auto const mask = mask_on<nccl_backend>(p);
    auto const before = normal_gradient(1, comm.rank(), 0, 130);
    nccl_backend::vector<float> vector(before.begin(), before.end());
    nccl_backend::run(collective_bytes<nccl_backend, float>(p), [&](cuda_context const& ctx) {
      CHECK(cudaSetDevice(1 - comm.rank()) == cudaSuccess);
      CHECK(rejects(
          [&] {
            sparse_all_gather(ctx, comm, p.l, p.plan, std::span<mask_word const>(mask),
                              std::span(vector));
          },
          {"sparse_all_gather", "current device"}));
      CHECK(cudaSetDevice(comm.rank()) == cudaSuccess);
    });
    CHECK(same_bits(vector, before));
  });
}

}  // namespace
}  // namespace scape::testing
