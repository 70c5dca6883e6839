// SPDX-License-Identifier: Apache-2.0
#include "cases/point_to_point.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include <scape/comm/mpi.hpp>

#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

static_assert(has_send_recv<mpi_communicator, float>);
static_assert(has_send_recv<mpi_communicator_ref, bfloat16>);
static_assert(!has_send_recv<mpi_communicator, std::string>);

TEST_CASE_TEMPLATE_INVOKE(point_to_point_1, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_2, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_3, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_4, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_5, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_6, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_7, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_8, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_9, mpi_backend);

TEST_CASE("messages come in any number of pieces, with a progress thread and without") {
  for (auto const progress : {mpi_progress::caller, mpi_progress::thread}) {
    for (std::int64_t const limit : {1, 7, 1000}) {
      mpi_communicator comm(MPI_COMM_WORLD, {.count_limit = limit, .progress = progress});
      for (std::int64_t const n : {0, 1, 65, 1003}) {
        if (limit == 1 && n > 100) continue;
        CHECK(exchange_errors<float>(comm, n, 1) == 0);
        CHECK(ring_errors<bfloat16>(comm, n, n % 2 == 0) == 0);
      }
    }
  }
}

TEST_CASE("messages go over an owner's communicator") {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  {
    mpi_communicator_ref ref(comm);
    CHECK(exchange_errors<double>(ref, 1000, 1) == 0);
  }
  MPI_Comm_free(&comm);
}

TEST_CASE("with a progress thread a rank that has started its side and computes delays nobody") {
  if (world_size() != 2) return;
  mpi_communicator comm(MPI_COMM_WORLD, {.progress = mpi_progress::thread});
  letter<float> there(0, 1, 0, 1000000), back(1, 0, 0, 1000000);
  comm.barrier(host_context()).wait(host_context());
  auto const start = std::chrono::steady_clock::now();
  bool const computes = comm.rank() == 1;
  auto first = computes ? there.recv(comm) : there.send(comm);
  auto second = computes ? back.send(comm) : back.recv(comm);
  if (computes) std::this_thread::sleep_for(std::chrono::seconds(4));
  first.wait(host_context());
  second.wait(host_context());
  if (!computes) CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(3500));
  CHECK(there.right());
  CHECK(back.right());
}

}  // namespace
}  // namespace scape::testing
