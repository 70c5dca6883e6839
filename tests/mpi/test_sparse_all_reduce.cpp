// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/sparse_all_reduce.hpp>

#include "cases/sparse_all_reduce.hpp"
#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(all_reduce_sums, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_traffic, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_failure, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_lost_peer, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_arguments, mpi_backend);

}  // namespace
}  // namespace scape::testing
