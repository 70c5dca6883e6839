// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/comm/nccl.hpp>
#include <scape/lagged_mask_allgather.hpp>

#include "cases/lagged_mask_allgather.hpp"
#include "support/nccl_backend.cuh"

namespace scape::testing {
namespace {

TEST_CASE_TEMPLATE_INVOKE(lagged_ring, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_slots, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_traffic, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_arguments, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(lagged_lost_peer, nccl_backend);

}  // namespace
}  // namespace scape::testing
