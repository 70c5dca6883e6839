// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/sparse_all_gather.hpp>

#include "cases/sparse_all_gather.hpp"
#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(all_gather_values, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_types, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_long, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_any, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_traffic, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_failure, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_lost_peer, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_arguments, mpi_backend);

}  // namespace
}  // namespace scape::testing
