// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/sparse_all_gather.hpp>

#include "cases/sparse_all_gather.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(all_gather_values, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_types, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_long, thread_backend, pooled_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(all_gather_any, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_traffic, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_failure, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_lost_peer, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(all_gather_arguments, thread_backend);

}  // namespace
}  // namespace scape::testing
