// SPDX-License-Identifier: Apache-2.0
#include "cases/agreement.hpp"
#include "support/thread_backend.hpp"

namespace {
using namespace scape::testing;
}

TEST_CASE_TEMPLATE_INVOKE(agreement_1, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(agreement_2, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(agreement_3, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(agreement_4, thread_backend);
