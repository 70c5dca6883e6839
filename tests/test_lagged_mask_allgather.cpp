// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/lagged_mask_allgather.hpp>

#include "cases/lagged_mask_allgather.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(lagged_ring, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_slots, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_traffic, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_arguments, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_lost_peer, thread_backend);

}  // namespace
}  // namespace scape::testing
