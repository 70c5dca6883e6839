// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cases/sparse_optimizer.hpp"
#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_1, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_2, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_3, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_4, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_5, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_6, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_7, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_8, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_9, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_10, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_11, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_12, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_13, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_14, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_15, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_16, mpi_backend);

}  // namespace
}  // namespace scape::testing
