// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "cases/sparse_optimizer.hpp"
#include "support/allocation_counter.hpp"
#include "support/counting_communicator.hpp"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_optimizer.hpp"
#include "support/thread_backend.hpp"

namespace {

using namespace std::chrono_literals;
using namespace scape::testing;
using scape::adams;
using scape::adamw;
using scape::age_scaling;
using scape::first_mask;
using scape::layout;
using scape::layout_options;
using scape::mask_word;
using scape::parameter_span;
using scape::run_threads;
using scape::span_policy;
using scape::sparse_optimizer_options;
using scape::statistic_kind;
using scape::step_arguments;
using scape::thread_communicator;
using scape::topk_scope;
using scape::unmasked_moment;

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_1, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_2, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_3, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_4, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_5, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_6, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_7, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_8, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_9, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_10, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_11, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_12, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_13, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_14, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_15, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_16, thread_backend);

TEST_CASE("pools of any size give the same bits") {
  layout const l(
      5000, 2,
      {{.name = "a", .offset = 0, .length = 3000},
       {.name = "b", .offset = 3000, .length = 77, .policy = span_policy::always, .lr_scale = 3},
       {.name = "c", .offset = 3077, .length = 1923, .decay_scale = 0}});
  for (int const lag : {0, 1, 2}) {
    auto o = sparse_optimizer_options::staleness_aware(0.1);
    o.lag = lag;
    o.clip_norm = 1;
    o.weight_decay = 0.1F;
    o.unmasked = lag == 2 ? unmasked_moment::decay : unmasked_moment::hold;
    run_threads(2, [&](thread_communicator& comm) {
      scape::host_pool two(2), three(3);
      sparse_rig<adamw, scape::bfloat16> one(comm, l, o), a(comm, l, o, &two),
          b(comm, l, o, &three);
      for (int t = 0; t < 8; ++t) {
        auto const gradient = normal_gradient(1, comm.rank(), t, 5000);
        one.step(gradient);
        a.step(gradient);
        b.step(gradient);
        CHECK(a.state() == one.state());
        CHECK(b.state() == one.state());
      }
    });
  }
}

TEST_CASE("a long vector is cut among the threads of a pool without a trace") {
  constexpr std::int64_t n = 150000;
  layout const l(n, 1,
                 {{.name = "a", .offset = 0, .length = 100001},
                  {.name = "b",
                   .offset = 100001,
                   .length = 1000,
                   .policy = span_policy::always,
                   .lr_scale = 3},
                  {.name = "c", .offset = 101001, .length = n - 101001, .decay_scale = 0}});
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.lag = 2;
  o.clip_norm = 1;
  o.weight_decay = 0.1F;
  scape::self_communicator self;
  scape::host_pool three(3);
  using rig_type = sparse_rig<adams, scape::bfloat16, scape::self_communicator>;
  rig_type one(self, l, o), many(self, l, o, &three);
  for (int t = 0; t < 5; ++t) {
    auto const gradient = normal_gradient(1, 0, t, n);
    one.step(gradient);
    many.step(gradient);
    CHECK(many.state() == one.state());
  }
}

TEST_CASE("one rank: the communicator to itself and a group of one give the same bits") {
  layout const l(300, 1, model());
  auto const o = exact_options(0.1);
  scape::self_communicator self;
  sparse_rig<adams, float, scape::self_communicator> alone(self, l, o);
  run_threads(1, [&](thread_communicator& comm) {
    sparse_rig<adams> r(comm, l, o);
    for (int t = 0; t < 6; ++t) {
      auto const gradient = normal_gradient(1, 0, t, 300);
      r.step(gradient);
      CHECK(alone.step(gradient).bytes.total() == 0);
      CHECK(r.state() == alone.state());
    }
  });
}

namespace {

using counting = scape::testing::counting_communicator<thread_communicator>;

template <class Wire>
void check_traffic(layout const& l, sparse_optimizer_options const& o) {
  auto const ranks = l.shards();
  constexpr int steps = 8;
  std::vector<gradients_of_step> gradients(steps);
  for (int t = 0; t < steps; ++t) {
    for (int i = 0; i < ranks; ++i) gradients[at(t)].push_back(normal_gradient(2, i, t, l.size()));
  }
  std::barrier barrier(ranks);
  std::int64_t allocations = 0;
  run_threads(ranks, [&](thread_communicator& inner) {
    counting comm(inner);
    sparse_rig<adamw, Wire, counting> r(comm, l, o);
    std::vector<std::vector<traffic>> counted(steps);
    std::vector<scape::step_report> reports(steps);
    for (auto& c : counted) c.reserve(3);
    auto const run = [&](int t) {
      comm.reset();
      reports[at(t)] = r.step(gradients[at(t)][at(comm.rank())]);
      counted[at(t)].assign({comm.reduce_scatters, comm.gathers, comm.all_reduces});
    };
    run(0);
    barrier.arrive_and_wait();
    if (comm.rank() == 0) allocations = allocation_count.load();
    barrier.arrive_and_wait();
    for (int t = 1; t < steps; ++t) run(t);
    barrier.arrive_and_wait();
    if (comm.rank() == 0) CHECK(allocation_count.load() == allocations);
    barrier.arrive_and_wait();

    for (int t = 0; t < steps; ++t) {
      CAPTURE(t);
      auto const& bytes = reports[at(t)].bytes;
      bool const dense = o.first == first_mask::dense && t < std::max(o.lag, 1);
      auto const plan = dense ? l.plan(1, 0) : l.plan(o.density, o.ramp(t));
      auto const gathered = (o.lag > 0 || !dense ? 1 : 0) + (!dense && t < o.lag ? 1 : 0);
      auto const& [scatter, gather, reduce] =
          std::tie(counted[at(t)][0], counted[at(t)][1], counted[at(t)][2]);
      CHECK(scatter.calls == 1);
      CHECK(gather.calls == 1 + gathered);
      CHECK(reduce.calls == 1);
      CHECK(scatter.bytes == bytes.values);
      CHECK(gather.bytes == bytes.parameters + bytes.mask);
      CHECK(reduce.bytes == bytes.control);
      CHECK(bytes.values == l.value_wire_bytes(plan, comm.rank(), sizeof(Wire)));
      CHECK(bytes.parameters == l.value_wire_bytes(plan, comm.rank(), sizeof(float)));
      CHECK(bytes.mask == gathered * l.mask_wire_bytes());
      CHECK(bytes.control == 2 * (ranks - 1) * 8 / ranks);
      CHECK(bytes.total() == scatter.bytes + gather.bytes + reduce.bytes);
    }
    CHECK(comm.broadcasts.calls == 0);
    CHECK(comm.barriers.calls == 0);
  });
}

}  // namespace

TEST_CASE(
    "a step is three collectives and an agreement, of the predicted bytes, and no allocation") {
  for (int const lag : {0, 1, 2}) {
    for (auto const first : {first_mask::dense, first_mask::statistic}) {
      auto o = sparse_optimizer_options::staleness_aware(0.1);
      o.lag = lag;
      o.first = first;
      o.statistics = true;
      o.density_ramp_steps = lag == 1 ? 5 : 0;
      check_traffic<float>({1000, 4}, o);
      check_traffic<scape::bfloat16>({1000, 3, layout_options{.boundaries = {0, 100, 100, 1000}}},
                                     o);
      check_traffic<scape::float16>({300, 2, model(), layout_options{.alignment = 1}}, o);
    }
  }
}

TEST_CASE("wrong options and arguments are refused and change nothing") {
  layout const l(100, 2);
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  run_threads(2, [&](thread_communicator& comm) {
    using optimizer = scape::sparse_optimizer<adams, thread_communicator>;
    auto const good = sparse_optimizer_options::staleness_aware(0.1);
    auto const refuses = [&](auto change, std::string_view text) {
      auto o = good;
      change(o);
      scape::host_buffer const storage(1 << 16);
      return rejects([&] { optimizer(comm, l, o, storage.bytes()); }, {"sparse_optimizer", text});
    };
    CHECK(refuses([](auto& o) { o.density = -0.1; }, "density"));
    CHECK(refuses([](auto& o) { o.density = 1.1; }, "density"));
    CHECK(refuses([&](auto& o) { o.density = double{nan}; }, "density"));
    CHECK(refuses([](auto& o) { o.lag = -1; }, "lag"));
    CHECK(refuses([](auto& o) { o.beta1 = 1; }, "beta1"));
    CHECK(refuses([](auto& o) { o.beta1 = -0.1F; }, "beta1"));
    CHECK(refuses([&](auto& o) { o.beta1 = nan; }, "beta1"));
    CHECK(refuses([](auto& o) { o.beta2 = 1; }, "beta2"));
    CHECK(refuses([&](auto& o) { o.beta2 = nan; }, "beta2"));
    CHECK(refuses([](auto& o) { o.epsilon = 0; }, "epsilon"));
    CHECK(refuses([&](auto& o) { o.epsilon = nan; }, "epsilon"));
    CHECK(refuses([](auto& o) { o.clip_norm = -1; }, "clip_norm"));
    CHECK(refuses([&](auto& o) { o.clip_norm = nan; }, "clip_norm"));
    CHECK(refuses([&](auto& o) { o.weight_decay = nan; }, "weight_decay"));
    CHECK(refuses([](auto& o) { o.tau_max = 0.5F; }, "tau_max"));
    CHECK(refuses([&](auto& o) { o.tau_max = nan; }, "tau_max"));
    CHECK(refuses([](auto& o) { o.density_ramp_steps = -1; }, "density_ramp_steps"));
    CHECK(refuses(
        [](auto& o) {
          o.density = 0;
          o.density_ramp_steps = 5;
        },
        "ramp"));

    scape::host_buffer const storage(optimizer::storage_bytes(l, good));
    CHECK(rejects([&] { optimizer(comm, layout(100, 3), good, storage.bytes()); },
                  {"sparse_optimizer", "size is 2", "expected 3"}));
    auto const short_storage = storage.bytes().first(storage.bytes().size() / 2);
    CHECK(rejects([&] { optimizer(comm, l, good, short_storage); },
                  {"sparse_optimizer", std::to_string(short_storage.size()) + " bytes"}));

    sparse_rig<adams> r(comm, l, good);
    auto gradient = normal_gradient(1, comm.rank(), 0, 100);
    r.step(gradient);
    auto const before = r.state();
    auto const step_refuses = [&](auto change, std::initializer_list<std::string_view> texts) {
      auto ctx = r.ctx;
      auto weights = std::span(r.weights);
      auto g = std::span<float const>(gradient);
      step_arguments a;
      change(ctx, weights, g, a);
      return rejects([&] { r.optimizer.step(ctx, weights, g, a); }, texts) && r.state() == before;
    };
    using context = scape::host_context;
    using out = std::span<float>;
    using in = std::span<float const>;
    auto const scratch = r.scratch.bytes().size();
    auto const short_text = std::to_string(scratch - 1) + " bytes";
    auto const need_text = std::to_string(scratch) + " are needed";
    CHECK(step_refuses([](context& ctx, out&, in&,
                          auto&) { ctx.scratch = ctx.scratch.first(ctx.scratch.size() - 1); },
                       {"sparse_optimizer::step", short_text, need_text}));
    CHECK(step_refuses([](context&, out& w, in&, auto&) { w = w.first(99); },
                       {"weights", "99", "100"}));
    CHECK(step_refuses([](context&, out&, in& g, auto&) { g = g.first(99); },
                       {"gradient", "99", "100"}));
    CHECK(step_refuses([](context&, out&, in& g, auto&) { g = {}; }, {"gradient", "0", "100"}));
    CHECK(step_refuses([&](context&, out&, in&, auto& a) { a.lr = nan; }, {"learning rate"}));
    CHECK(step_refuses(
        [](context&, out&, in&, auto& a) { a.lr = std::numeric_limits<float>::infinity(); },
        {"learning rate"}));
    for (float const divisor : {0.0F, -1.0F, nan, std::numeric_limits<float>::infinity()}) {
      CHECK(step_refuses([&](context&, out&, in&, auto& a) { a.gradient_divisor = divisor; },
                         {"gradient_divisor"}));
    }
    r.step(gradient);  // no collective was left half started
    CHECK(r.optimizer.steps() == 2);
  });
}

TEST_CASE("memory at any misalignment is enough") {
  layout const l(130, 2, layout_options{.alignment = 1});
  auto const o = sparse_optimizer_options::staleness_aware(0.1);
  run_threads(2, [&](thread_communicator& comm) {
    using optimizer = scape::sparse_optimizer<adamw, thread_communicator>;
    sparse_rig<adamw> aligned(comm, l, o);
    auto const storage_size = optimizer::storage_bytes(l, o);
    auto const scratch_size = optimizer::scratch_bytes(l, o);
    for (std::size_t const shift : {1U, 4U, 100U, 255U}) {
      scape::host_buffer const storage(storage_size + shift), scratch(scratch_size + shift);
      scape::host_context const ctx{scratch.bytes().subspan(shift)};
      optimizer opt(comm, l, o, storage.bytes().subspan(shift));
      sparse_rig<adamw> fresh(comm, l, o);
      auto weights = initial_weights(130);
      for (int t = 0; t < 3; ++t) {
        auto const gradient = normal_gradient(1, comm.rank(), t, 130);
        opt.step(ctx, weights, gradient, {});
        fresh.step(gradient);
        CHECK(same_bits(weights, fresh.weights));
      }
    }
  });
}

namespace {

//! What a rank saw of the group's end.
struct ending {
  int peer = -1;
  double seconds = 0;
  std::string message;
};

//! Steps until `stop` or the group's end.
template <class BeforeStep>
ending train(thread_communicator& comm, int lag, BeforeStep const& before_step) {
  layout const l(500, comm.size());
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.lag = lag;
  auto start = std::chrono::steady_clock::now();
  try {
    sparse_rig<adams> r(comm, l, o);
    for (int t = 0; t < 50; ++t) {
      start = std::chrono::steady_clock::now();
      if (!before_step(t)) return {};
      r.step(normal_gradient(1, comm.rank(), t, 500));
    }
  } catch (scape::peer_error const& e) {
    std::chrono::duration<double> const passed = std::chrono::steady_clock::now() - start;
    return {e.peer(), passed.count(), e.what()};
  }
  return {};
}

}  // namespace

TEST_CASE("a rank that throws in the middle of the training ends it for all") {
  for (int const lag : {0, 1, 2}) {
    for (int const culprit : {0, 2}) {
      scape::thread_group group(3, {.deadline = 20s});
      std::vector<ending> endings(3);
      auto const text = message_of<std::runtime_error>([&] {
        run_threads(group, [&](thread_communicator& comm) {
          endings[at(comm.rank())] = train(comm, lag, [&](int t) {
            if (comm.rank() == culprit && t == 4) throw std::runtime_error("the data is corrupt");
            return true;
          });
        });
      });
      CHECK(text == "the data is corrupt");
      for (int i = 0; i < 3; ++i) {
        if (i == culprit) continue;
        CHECK(endings[at(i)].peer == culprit);
        CHECK(endings[at(i)].seconds < 10);
        CHECK(endings[at(i)].message.find("rank " + std::to_string(culprit)) != std::string::npos);
      }
    }
  }
}

TEST_CASE("a rank that leaves early ends the training for all") {
  for (int const lag : {0, 1}) {
    scape::thread_group group(3, {.deadline = 20s});
    std::vector<ending> endings(3);
    auto const text = message_of<scape::peer_error>([&] {
      run_threads(group, [&](thread_communicator& comm) {
        endings[at(comm.rank())] =
            train(comm, lag, [&](int t) { return comm.rank() != 1 || t < 3; });
      });
    });
    CHECK(text.find("rank 1") != std::string::npos);
    for (int const i : {0, 2}) {
      CHECK(endings[at(i)].peer == 1);
      CHECK(endings[at(i)].seconds < 10);
      CHECK(endings[at(i)].message.find("left") != std::string::npos);
    }
  }
}

TEST_CASE("a rank that never arrives is named when the deadline is over") {
  scape::thread_group group(3, {.deadline = 200ms});
  std::vector<ending> endings(3);
  std::latch others(2);
  CHECK_THROWS_AS(run_threads(group,
                              [&](thread_communicator& comm) {
                                endings[at(comm.rank())] = train(comm, 1, [&](int t) {
                                  if (comm.rank() == 2 && t == 3) others.wait();
                                  return true;
                                });
                                if (comm.rank() != 2) others.count_down();
                              }),
                  scape::peer_error);
  for (int const i : {0, 1}) {
    CHECK(endings[at(i)].peer == 2);
    CHECK(endings[at(i)].seconds < 10);
    CHECK(endings[at(i)].message.find("rank 2") != std::string::npos);
  }
}

TEST_CASE("ranks that disagree about the step are told") {
  layout const l(100, 2);
  std::vector<ending> endings(2);
  scape::thread_group group(2, {.deadline = 20s});
  CHECK_THROWS_AS(run_threads(group,
                              [&](thread_communicator& comm) {
                                auto o = sparse_optimizer_options::staleness_aware(
                                    comm.rank() == 0 ? 0.1 : 0.2);
                                o.first = first_mask::statistic;
                                sparse_rig<adams> r(comm, l, o);
                                try {
                                  for (int t = 0; t < 3; ++t) {
                                    r.step(normal_gradient(1, comm.rank(), t, 100));
                                  }
                                } catch (scape::error const& e) {
                                  endings[at(comm.rank())].message = e.what();
                                  throw;
                                }
                              }),
                  scape::error);
  for (auto const& e : endings) CHECK(e.message != "");
}
