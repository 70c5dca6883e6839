// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/comm/nccl.hpp>
#include <scape/sparse_all_reduce.cuh>

#include "cases/sparse_all_reduce.hpp"
#include "support/nccl_backend.cuh"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(all_reduce_sums, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_traffic, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_failure, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_lost_peer, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_arguments, nccl_backend);

TEST_CASE("CUDA's own 16-bit floats") {
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({1000, 3}, 0.1);
    check_all_reduced<nccl_backend, __half, __nv_bfloat16>(comm, p, {.exact = true}, 1);
    check_all_reduced<nccl_backend, __nv_bfloat16, __half>(comm, p, {.exact = true}, 1);
  });
}

TEST_CASE("another current device is refused and nothing is changed") {
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({130, 2}, 0.3);
    rank_inputs const inputs{true};
    auto b = buffers_with<nccl_backend, float>(inputs, p, p.plan.total(), comm.rank());
    auto const elsewhere = [&](cuda_context const& ctx, auto& c, auto const&... arguments) {
      CHECK(cudaSetDevice(1 - comm.rank()) == cudaSuccess);
      CHECK(rejects([&] { sparse_all_reduce(ctx, c, arguments...); },
                    {"sparse_all_reduce", "current device"}));
      CHECK(cudaSetDevice(comm.rank()) == cudaSuccess);
    };
    b.run(comm, p, 1, elsewhere);
    CHECK(same_bits(b.residual.span(),
                    make_vector(130, [&](auto j) { return inputs.residual(comm.rank(), j); })));
  });
}

}  // namespace
}  // namespace scape::testing
