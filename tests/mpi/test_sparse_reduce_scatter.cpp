// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/sparse_reduce_scatter.hpp>

#include "cases/sparse_reduce_scatter.hpp"
#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_mass, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_sums, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_long, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_by_hand, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_dense, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_traffic, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_failure, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_lost_peer, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_arguments, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_limit, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_plans, mpi_backend);

}  // namespace
}  // namespace scape::testing
