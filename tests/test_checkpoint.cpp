// SPDX-License-Identifier: Apache-2.0
#include "cases/checkpoint.hpp"
#include "support/thread_backend.hpp"

namespace {
using namespace scape::testing;
}

TEST_CASE_TEMPLATE_INVOKE(checkpoint_1, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_2, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_3, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_4, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_5, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_6, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_7, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_8, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_9, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_10, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_11, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_12, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(checkpoint_13, thread_backend);
