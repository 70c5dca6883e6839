// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/sparse_all_reduce.hpp>

#include "cases/sparse_all_reduce.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(all_reduce_sums, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_traffic, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_failure, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_lost_peer, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_arguments, thread_backend);

}  // namespace
}  // namespace scape::testing
