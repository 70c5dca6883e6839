// SPDX-License-Identifier: Apache-2.0
#include "cases/checkpoint.hpp"
#include "support/cuda_rig.cuh"
#include "support/nccl_backend.cuh"

namespace {
using namespace scape::testing;
}

TEST_CASE_TEMPLATE_INVOKE(checkpoint_1, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_2, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_3, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_4, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_5, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_6, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_7, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_8, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_9, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_10, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_11, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_12, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_13, nccl_backend);
