// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <scape/comm/hierarchical.hpp>
#include <scape/comm/nccl.hpp>
#include <scape/lagged_mask_allgather.hpp>
#include <scape/sparse_all_gather.cuh>
#include <scape/sparse_all_reduce.cuh>
#include <scape/sparse_reduce_scatter.cuh>

#include "cases/lagged_mask_allgather.hpp"
#include "cases/sparse_all_gather.hpp"
#include "cases/sparse_all_reduce.hpp"
#include "cases/sparse_reduce_scatter.hpp"
#include "support/nccl_backend.cuh"

namespace scape::testing {
namespace {

//! Two devices in each node, or one where the number of ranks is odd.
struct nccl_nodes_backend : nccl_backend {
  using communicator = hierarchical_communicator<nccl_communicator, nccl_communicator>;

  template <class F>
  static void ranks(int size, F const& f,
                    std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    if (!has_ranks(size)) return;
    int const locals = size % 2 == 0 ? 2 : 1, nodes = size / locals;
    std::vector<ncclUniqueId> intra_ids, inter_ids;
    for (int a = 0; a < nodes; ++a) intra_ids.push_back(nccl_unique_id());
    for (int b = 0; b < locals; ++b) inter_ids.push_back(nccl_unique_id());
    std::exception_ptr first;
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, b = r / nodes, a = r % nodes, r] {
        try {
          detail::check_cuda(cudaSetDevice(r), "nccl_nodes_backend", "cudaSetDevice");
          nccl_communicator intra(intra_ids[at(a)], b, locals, {.deadline = deadline});
          nccl_communicator inter(inter_ids[at(b)], a, nodes, {.deadline = deadline});
          device_buffer const workspace(hierarchical_workspace_bytes<float>(1 << 14));
          communicator comm(intra, inter, workspace.bytes());
          f(comm);
        } catch (...) {
          std::lock_guard const lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }
};

TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_sums, nccl_nodes_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_dense, nccl_nodes_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_values, nccl_nodes_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_sums, nccl_nodes_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_ring, nccl_nodes_backend);

TEST_CASE("failure: a peer that never comes to an operation ends both parts in time") {
  if (!nccl_nodes_backend::has_ranks(4)) return;
  auto const body = [](auto& comm) {
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    nccl_nodes_backend::run(0, [&](cuda_context const& ctx) {
      nccl_nodes_backend::vector<float> data(8);
      CHECK(raises<error>(
          [&] {
            comm.all_reduce(ctx, data, std::span<float>(data)).wait(ctx);
            comm.synchronize(ctx);
          },
          {" of 4]"}));
      CHECK_THROWS_AS(comm.broadcast(ctx, std::span<float>(data), 0).wait(ctx), error);
    });
  };
  nccl_nodes_backend::ranks(4, body, std::chrono::milliseconds(300));
}

}  // namespace
}  // namespace scape::testing
