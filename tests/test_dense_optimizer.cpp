// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <scape/comm/self.hpp>
#include <scape/context/host.hpp>
#include <scape/layout.hpp>
#include <scape/optim/dense_optimizer.hpp>

#include "cases/dense_optimizer.hpp"
#include "support/optimizer_rig.hpp"
#include "support/rank_data.hpp"
#include "support/thread_backend.hpp"

namespace {

using namespace scape::testing;
using scape::adam_options;
using scape::adams;
using scape::layout;

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_1, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_2, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_3, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_4, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_5, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_6, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_7, thread_backend);

TEST_CASE("pools of any size give the same bits") {
  layout const l(40000, 1, dense_model(40000));
  adam_options o;
  o.clip_norm = 1;
  scape::self_communicator self;
  scape::host_pool two(2), three(3);
  using rig_type = dense_rig<adams, scape::self_communicator>;
  rig_type one(self, l, o), a(self, l, o, &two), b(self, l, o, &three);
  for (int t = 0; t < 5; ++t) {
    auto const gradient = normal_gradient(1, 0, t, 40000);
    one.step(gradient);
    a.step(gradient);
    b.step(gradient);
    CHECK(same_bits(a.weights, one.weights));
    CHECK(same_bits(b.weights, one.weights));
  }
}
