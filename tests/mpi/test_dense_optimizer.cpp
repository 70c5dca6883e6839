// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cases/dense_optimizer.hpp"
#include "support/mpi_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_1, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_2, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_3, mpi_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_4, mpi_backend);

}  // namespace
}  // namespace scape::testing
