// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "cases/checkpoint.hpp"
#include "cases/dense_optimizer.hpp"
#include "cases/sparse_optimizer.hpp"
#include "support/hierarchical_backend.hpp"

namespace {

using two = scape::testing::hierarchical_backend<2>;
using four = scape::testing::hierarchical_backend<4>;
using namespace scape::testing;

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_1, two, four);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_2, two, four);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_3, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_4, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_5, two, four);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_6, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_7, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_8, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_9, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_10, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_11, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_12, two, four);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_13, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_14, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_15, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_16, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_17, two, four);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_18, two);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_19, two);

TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_1, two);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_2, two);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_3, two, four);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_4, two);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_6, two);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_7, two);

TEST_CASE_TEMPLATE_INVOKE(checkpoint_1, two, four);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_3, two);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_5, two);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_7, two);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_8, two);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_9, two);
