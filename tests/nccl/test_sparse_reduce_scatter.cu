// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <span>
#include <thread>
#include <vector>

#include <scape/comm/nccl.hpp>
#include <scape/sparse_all_gather.cuh>
#include <scape/sparse_reduce_scatter.cuh>

#include "cases/sparse_reduce_scatter.hpp"
#include "nccl/rank_threads.hpp"
#include "support/nccl_backend.cuh"

namespace scape::testing {
namespace {

using namespace std::chrono_literals;

TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_mass, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_sums, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_long, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_by_hand, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_dense, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_traffic, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_failure, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_lost_peer, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_arguments, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_limit, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_plans, nccl_backend);

TEST_CASE("CUDA's own 16-bit floats") {
  nccl_backend::ranks(1, [](auto& comm) {
    check_mass<nccl_backend, __half, __nv_bfloat16>(comm);
    check_mass<nccl_backend, __nv_bfloat16, __half>(comm);
  });
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({1000, 2}, 0.1);
    check_sums<nccl_backend, __half, __nv_bfloat16>(comm, p, {.exact = true}, 1);
    check_sums<nccl_backend, __nv_bfloat16, __half>(comm, p, {.exact = true}, 1);
  });
}

//! Rank 0 of 2 gets no values; rank 1 goes instead of taking part.
template <class Comm>
void check_kept(Comm& comm, std::function<void(cuda_context const&)> const& meet_failure) {
  masked_problem const p({100, 2, layout_options{.boundaries = {0, 0, 100}}}, 1);
  auto b = masked_buffers<nccl_backend, float>(
      p, p.plan.counts[0], [](auto) { return 1; }, [](auto) { return 2; });
  CHECK_THROWS_AS(b.run(comm, p, 1,
                        [&](cuda_context const& ctx, auto& c, auto const&... arguments) {
                          sparse_reduce_scatter(ctx, c, arguments...);
                          meet_failure(ctx);
                        }),
                  error);
  CHECK(std::ranges::count(b.residual.span(), 3.0F) == 100);
}

TEST_CASE("failure: a rank that gets no values keeps what its peer never took") {
  if (!nccl_backend::has_ranks(2)) return;
  for (bool const waits : {true, false}) {
    std::latch started(2);
    nccl_backend::ranks(
        2,
        [&](auto& comm) {
          if (comm.rank() == 1) {
            started.arrive_and_wait();
            comm.abort("as the test wants it");
            return;
          }
          check_kept(comm, [&](cuda_context const& ctx) {
            started.arrive_and_wait();
            if (waits) std::this_thread::sleep_for(100ms);
            comm.synchronize(ctx);
          });
        },
        2s);
  }
}

TEST_CASE("failure: a trainer aborts its communicator under a rank that gets no values") {
  if (!nccl_backend::has_ranks(2)) return;
  for (bool const told : {true, false}) {
    auto const id = nccl_unique_id();
    std::latch started(2);
    on_devices(2, [&](int rank) {
      ncclComm_t native = nullptr;
      CHECK(ncclCommInitRank(&native, 2, id, rank) == ncclSuccess);
      if (rank == 1) {
        started.arrive_and_wait();
      } else {
        nccl_communicator_ref comm(native, {.deadline = 500ms});
        check_kept(comm, [&](cuda_context const& ctx) {
          started.arrive_and_wait();
          if (told) CHECK_THROWS_AS(comm.synchronize(ctx), error);
          CHECK(ncclCommAbort(native) == ncclSuccess);
          native = nullptr;
          CHECK(cudaStreamSynchronize(ctx.stream) == cudaSuccess);
          throw peer_error("test", "gone", 1, 0, 2);
        });
      }
      if (native != nullptr) ncclCommAbort(native);
    });
  }
}

TEST_CASE("another current device is refused and nothing is changed") {
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({130, 2}, 0.3);
    rank_inputs const inputs{true};
    auto b =
        buffers_with<nccl_backend, float>(inputs, p, p.plan.counts[at(comm.rank())], comm.rank());
    auto const elsewhere = [&](cuda_context const& ctx, auto& c, auto const&... arguments) {
      CHECK(cudaSetDevice(1 - comm.rank()) == cudaSuccess);
      CHECK(rejects([&] { sparse_reduce_scatter(ctx, c, arguments...); },
                    {"sparse_reduce_scatter", "current device"}));
      CHECK(cudaSetDevice(comm.rank()) == cudaSuccess);
    };
    b.run(comm, p, 1, elsewhere);
    for (std::int64_t j = 0; j < 130; ++j) {
      CHECK(b.residual.span()[at(j)] == inputs.residual(comm.rank(), j));
    }
  });
}

TEST_CASE("a captured reduce-scatter and all-gather equal eager ones in every replay") {
  if (!nccl_backend::has_ranks(2)) return;
  nccl_backend::ranks(2, [](auto& comm) {
    masked_problem const p({1000, 2}, 0.2);
    rank_inputs const inputs{true};
    auto const rank = comm.rank();
    auto const count = p.plan.counts[at(rank)];
    auto const make = [&] { return buffers_with<nccl_backend, bfloat16>(inputs, p, count, rank); };
    auto eager = make(), replayed = make();
    auto const weights = make_vector(1000, [&](auto j) { return small_integer(8, rank, 0, j, 9); });
    nccl_backend::vector<float> all(weights.begin(), weights.end()), replayed_all(all);
    auto const mask = mask_on<nccl_backend>(p);
    auto const step = [&](cuda_context const& ctx, auto& b, std::span<float> vector) {
      std::span<mask_word const> const bits(mask);
      sparse_reduce_scatter(ctx, comm, p.l, p.plan, bits, std::span<float const>(b.gradient.span()),
                            b.residual.span(), inputs.coefficient(), b.values.span());
      sparse_all_gather(ctx, comm, p.l, p.plan, bits, vector);
    };
    nccl_backend::run(sparse_collective_bytes<float>(p.l, p.plan.total()), [&](auto const& ctx) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t replay = nullptr;
      CHECK(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
      step(ctx, replayed, replayed_all);
      CHECK(cudaStreamEndCapture(ctx.stream, &graph) == cudaSuccess);
      CHECK(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
      for (int round = 0; round < 3; ++round) {
        CAPTURE(round);
        for (std::size_t j = 0; j < 1000; ++j) {
          all[j] = replayed_all[j] = weights[j] + static_cast<float>(round);
        }
        step(ctx, eager, all);
        complete(comm, ctx);
        CHECK(cudaGraphLaunch(replay, ctx.stream) == cudaSuccess);
        complete(comm, ctx);
        CHECK(same_bits(replayed.values.span(), eager.values.span()));
        CHECK(same_bits(replayed.residual.span(), eager.residual.span()));
        CHECK(same_bits(replayed_all, all));
      }
      CHECK(cudaGraphExecDestroy(replay) == cudaSuccess);
      CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    });
  });
}

}  // namespace
}  // namespace scape::testing
