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
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_17, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_18, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_19, thread_backend);

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

TEST_CASE("a step allocates nothing") {
  layout const l(1000, 3, layout_options{.boundaries = {0, 100, 100, 1000}});
  for (int const lag : {0, 1, 2}) {
    for (auto const first : {first_mask::dense, first_mask::statistic}) {
      auto o = sparse_optimizer_options::staleness_aware(0.1);
      o.lag = lag;
      o.first = first;
      o.statistics = true;
      o.density_ramp_steps = lag == 1 ? 5 : 0;
      std::barrier barrier(3);
      std::int64_t allocations = 0;
      run_threads(3, [&](thread_communicator& comm) {
        sparse_rig<adamw, scape::bfloat16> r(comm, l, o);
        auto const gradient = normal_gradient(2, comm.rank(), 0, 1000);
        r.step(gradient);
        barrier.arrive_and_wait();
        if (comm.rank() == 0) allocations = allocation_count.load();
        barrier.arrive_and_wait();
        for (int t = 1; t < 8; ++t) r.step(gradient);
        barrier.arrive_and_wait();
        if (comm.rank() == 0) CHECK(allocation_count.load() == allocations);
        barrier.arrive_and_wait();
      });
    }
  }
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
