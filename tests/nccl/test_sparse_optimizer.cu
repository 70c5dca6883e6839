// SPDX-License-Identifier: Apache-2.0
#include "cases/sparse_optimizer.hpp"
#include "support/cuda_rig.cuh"
#include "support/nccl_backend.cuh"

namespace {
using namespace scape::testing;
}

TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_1, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_2, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_3, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_4, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_5, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_6, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_7, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_8, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_9, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_10, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_11, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_12, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_13, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_14, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_15, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_16, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_17, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_18, nccl_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_19, nccl_backend);
