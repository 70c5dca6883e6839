// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/sparse_reduce_scatter.hpp>

#include "cases/sparse_reduce_scatter.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_mass, thread_backend, pooled_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_sums, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_long, thread_backend, pooled_backend<2>,
                          pooled_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_by_hand, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_dense, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_traffic, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_failure, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_lost_peer, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_arguments, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_limit, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_plans, thread_backend);

}  // namespace
}  // namespace scape::testing
