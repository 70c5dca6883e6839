// SPDX-License-Identifier: Apache-2.0

//! @file
//! Every kernel for the usual types, for the report on registers and spills. Never run.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <span>

#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/dense_optimizer.cuh>
#include <scape/optim/sparse_optimizer.cuh>
#include <scape/packed_bitmask.cuh>
#include <scape/sparse_all_reduce.cuh>

#include "support/one_rank.cuh"

namespace {

namespace bits = scape::packed_bitmask;
using scape::bench::one_rank;

template <class Rule, class Wire, class Weight, class Gradient>
void sparse_step(scape::cuda_context const& ctx, one_rank& comm, scape::layout const& layout,
                 std::span<std::byte> memory, std::span<Weight> weights,
                 std::span<Gradient const> gradient) {
  scape::sparse_optimizer<Rule, one_rank, Wire> optimizer(comm, layout, {}, memory);
  optimizer.step(ctx, weights, gradient);
}

template <class Rule>
void dense_step(scape::cuda_context const& ctx, one_rank& comm, scape::layout const& layout,
                std::span<std::byte> memory, std::span<float> weights,
                std::span<float const> gradient) {
  scape::dense_optimizer<Rule, one_rank> optimizer(comm, layout, {}, memory);
  optimizer.step(ctx, weights, gradient);
}

struct is_large {
  __device__ bool operator()(float x) const { return x > 0.9F; }
};

}  // namespace

void use_all_kernels(scape::cuda_context const& ctx, scape::layout const& layout,
                     scape::bitmask_view mask, std::span<std::byte> memory, std::span<float> x,
                     std::span<__nv_bfloat16> b, std::span<std::uint8_t> bytes,
                     std::span<std::int32_t> indices, std::int64_t* number) {
  bits::pack_if(ctx, x, is_large(), mask);
  bits::pack_bytes(ctx, bytes, mask);
  bits::pack_indices(ctx, indices, mask);
  bits::unpack_bytes(ctx, mask, bytes);
  bits::unpack_indices(ctx, mask, indices);
  bits::count(ctx, mask, number);
  bits::select(ctx, mask, 0, number);
  bits::gather(ctx, mask, x, x);
  bits::gather(ctx, mask, b, b);
  bits::scatter(ctx, mask, x, x);
  bits::bit_or(ctx, mask, mask, mask);

  one_rank comm;
  std::span<float const> const gradient = x;
  std::span<__nv_bfloat16 const> const gradient16 = b;
  sparse_step<scape::adams, float>(ctx, comm, layout, memory, x, gradient);
  sparse_step<scape::adamw, float>(ctx, comm, layout, memory, x, gradient16);
  sparse_step<scape::adams, __nv_bfloat16>(ctx, comm, layout, memory, b, gradient16);
  dense_step<scape::adams>(ctx, comm, layout, memory, x, gradient);
  dense_step<scape::adamw>(ctx, comm, layout, memory, x, gradient);
}
