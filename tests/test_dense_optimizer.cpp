// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "cases/dense_optimizer.hpp"
#include "support/counting_communicator.hpp"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_optimizer.hpp"
#include "support/thread_backend.hpp"

namespace {

using namespace scape::testing;
using scape::adam_options;
using scape::adams;
using scape::adamw;
using scape::layout;
using scape::layout_options;
using scape::run_threads;
using scape::span_policy;
using scape::sparse_optimizer_options;
using scape::step_arguments;
using scape::thread_communicator;

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_1, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_2, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_3, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_4, thread_backend);

TEST_CASE("one step by hand") {
  // g = 2, beta1 = 1/2, beta2 = 3/4, all corrections: m = 1, m c1 = 2, v = 1/4 * 4 = 1, v c2 = 4.
  scape::self_communicator self;
  adam_options o;
  o.beta1 = 0.5F;
  o.beta2 = 0.75F;
  o.weight_decay = 0.5F;
  layout const l(1, 1);
  dense_rig<adamw, scape::self_communicator> r(self, l, o);
  r.weights = {4};
  auto const report = r.step(std::vector<float>{2}, {.lr = 0.125F});
  CHECK(r.weights[0] == doctest::Approx(4 - 0.125 * (2.0 / 2.0 + 0.5 * 4)).epsilon(1e-6));
  CHECK(r.optimizer.first_moment()[0] == 1);
  CHECK(report.step == 0);
  CHECK(report.density == 1);
  CHECK(report.gradient_norm == 2);
  CHECK(r.optimizer.steps() == 1);
}

TEST_CASE("the traffic is that of one reduce-scatter and one all-gather") {
  using counting = counting_communicator<thread_communicator>;
  layout const l(1000, 3, layout_options{.boundaries = {0, 100, 100, 1000}});
  run_threads(3, [&](thread_communicator& inner) {
    counting comm(inner);
    dense_rig<adams, counting> r(comm, l, adam_options{});
    for (int t = 0; t < 3; ++t) {
      comm.reset();
      auto const& bytes = r.step(normal_gradient(1, comm.rank(), t, 1000)).bytes;
      auto const others = 4 * (1000 - l.shard_size(comm.rank()));
      CHECK(comm.reduce_scatters == traffic{1, others});
      CHECK(comm.gathers == traffic{1, others});
      CHECK(comm.all_reduces == traffic{1, 2 * 2 * 8 / 3});
      CHECK(bytes.values == others);
      CHECK(bytes.parameters == others);
      CHECK(bytes.mask == 0);
      CHECK(bytes.control == comm.all_reduces.bytes);
    }
  });
}

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

TEST_CASE("wrong options and arguments are refused and change nothing") {
  using optimizer = scape::dense_optimizer<adamw, scape::self_communicator>;
  scape::self_communicator self;
  layout const l(10, 1);
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  scape::host_buffer const storage(optimizer::storage_bytes(l));
  adam_options bad;
  bad.beta1 = 1;
  CHECK(rejects([&] { optimizer(self, l, bad, storage.bytes()); }, {"dense_optimizer", "beta1"}));
  CHECK(rejects([&] { optimizer(self, layout(10, 2), {}, storage.bytes()); },
                {"is 1", "expected 2"}));
  CHECK(rejects([&] { optimizer(self, l, {}, storage.bytes().first(200)); }, {"200 bytes"}));

  dense_rig<adamw, scape::self_communicator> r(self, l, adam_options{});
  auto const g = normal_gradient(1, 0, 0, 10);
  auto const weights = r.weights;
  auto& opt = r.optimizer;
  using in = std::span<float const>;
  CHECK(rejects([&] { opt.step(r.ctx, std::span(r.weights).first(9), g, {}); },
                {"weights", "9", "10"}));
  CHECK(rejects([&] { opt.step(r.ctx, r.weights, in(g).first(3), {}); }, {"gradient", "3", "10"}));
  CHECK(rejects([&] { opt.step(r.ctx, r.weights, g, {.lr = nan}); }, {"learning rate"}));
  CHECK(rejects([&] { opt.step(r.ctx, r.weights, g, {.gradient_divisor = 0}); }, {"divisor"}));
  auto short_scratch = r.ctx;
  short_scratch.scratch = short_scratch.scratch.first(short_scratch.scratch.size() - 1);
  CHECK(rejects([&] { opt.step(short_scratch, r.weights, g, {}); },
                {std::to_string(r.ctx.scratch.size() - 1), std::to_string(r.ctx.scratch.size())}));
  CHECK(same_bits(weights, r.weights));
  CHECK(opt.steps() == 0);
}
