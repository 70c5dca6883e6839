// SPDX-License-Identifier: Apache-2.0
#include "cases/dense_optimizer.hpp"
#include "support/cuda_rig.cuh"
#include "support/nccl_backend.cuh"

namespace {
using namespace scape::testing;
}

TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_1, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_2, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_3, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_4, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_5, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_6, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_7, nccl_backend);
