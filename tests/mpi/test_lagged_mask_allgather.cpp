// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/lagged_mask_allgather.hpp>

#include "cases/lagged_mask_allgather.hpp"
#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(lagged_ring, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_slots, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_traffic, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_arguments, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_lost_peer, mpi_backend);

}  // namespace
}  // namespace scape::testing
