// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <span>

#include <scape/comm/nccl.hpp>
#include <scape/sparse_reduce_scatter.cuh>

#include "cases/accumulate_and_compact.hpp"
#include "support/nccl_backend.cuh"

namespace scape::testing {
namespace {

//! One rank's sparse_reduce_scatter: its sums are what it sent.
struct device : nccl_backend {
  template <class Grad, class Wire>
  static void fuse(nccl_communicator& comm, std::span<Grad const> gradient,
                   std::span<float> residual, std::span<mask_word const> mask, float coefficient,
                   std::span<Wire> sent) {
    layout const l(std::ssize(residual), 1);
    auto const k = std::ssize(sent);
    send_plan const plan{.counts = {k}, .offsets = {0, k}, .group_k = {}};
    run(sparse_collective_bytes<Wire>(l, k), [&](cuda_context const& ctx) {
      sparse_reduce_scatter(ctx, comm, l, plan, mask, gradient, residual, coefficient, sent);
      comm.synchronize(ctx);
    });
  }
};

TEST_CASE_TEMPLATE_INVOKE(fused_pass, device);

TEST_CASE("CUDA's own 16-bit floats") {
  device::ranks(1, [](auto& comm) {
    check_fused_sizes<device, __half, __nv_bfloat16>(comm);
    check_fused_sizes<device, __nv_bfloat16, __half>(comm);
  });
}

}  // namespace
}  // namespace scape::testing
