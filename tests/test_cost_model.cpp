// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <scape/comm/threads.hpp>
#include <scape/cost_model.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>
#include <scape/workspace.hpp>

#include "support/raises.hpp"
#include "support/rank_data.hpp"

using scape::choose_density;
using scape::cost_model;
using scape::cost_model_options;
using scape::density_target;
using scape::layout;
using scape::span_policy;
using scape::step_bytes;
using scape::step_prediction;
using scape::testing::at;
using scape::testing::rejects;

namespace {

constexpr auto densities = {0.0, 1e-12, 1e-3, 0.01, 0.1, 0.37, 0.5, 1.0};

bool same(step_bytes const& a, step_bytes const& b) {
  return a.values == b.values && a.parameters == b.parameters && a.mask == b.mask &&
         a.control == b.control;
}
bool same(step_prediction const& a, step_prediction const& b) {
  return a.ranks == b.ranks && a.density == b.density && same(a.bytes, b.bytes) &&
         a.compute == b.compute && a.pack == b.pack && a.control == b.control &&
         a.reduce_scatter == b.reduce_scatter && a.rebuild == b.rebuild &&
         a.all_gather == b.all_gather && a.scatter == b.scatter && a.select == b.select &&
         a.mask == b.mask;
}

//! Powers of two, so that sums and products are exact: 2^-10 s a message, 2^-20 s a byte on the
//! network, 2^-30 s a byte in memory.
cost_model_options exact() {
  return {.compute = 0x1p-3, .memory_bandwidth = 0x1p30, .network = {.link = {0x1p-10, 0x1p-20}}};
}

//! A trainer with much to gain: 50 GB/s and 14 us a message, 3.4 TB/s of memory.
cost_model_options starved() {
  return {.compute = 0.055, .memory_bandwidth = 3.4e12, .network = {.link = {14e-6, 2e-11}}};
}

std::vector<scape::parameter_span> some_spans(std::int64_t n) {
  return {{.name = "w", .offset = 0, .length = n / 2},
          {.name = "ln", .offset = n / 2, .length = 7, .policy = span_policy::always},
          {.name = "pos", .offset = n / 2 + 7, .length = 100, .policy = span_policy::frozen},
          {.name = "head", .offset = n / 2 + 107, .length = n - n / 2 - 107, .density = 0.25}};
}

}  // namespace

TEST_CASE("a dense step, by hand") {
  // 1024 floats on 4 ranks: 3 messages of 1024 bytes each way.
  auto const p = cost_model(exact()).dense(1024, 4);
  CHECK(p.ranks == 4);
  CHECK(p.density == 1);
  CHECK(same(p.bytes, {.values = 3072, .parameters = 3072, .mask = 0, .control = 12}));
  CHECK(p.compute == 0x1p-3);
  CHECK(p.pack == 0x1p-30 * (4 + 8) * 1024);
  CHECK(p.control == 2 * (0x1p-10 + 0x1p-17));
  CHECK(p.reduce_scatter == 3 * 0x1p-10 + 3 * 0x1p-10);
  CHECK(p.rebuild == 0x1p-30 * 20 * 256);
  CHECK(p.all_gather == p.reduce_scatter);
  CHECK(p.scatter + p.select + p.mask == 0);
  CHECK(p.total() == p.compute + p.pack + p.control + p.reduce_scatter + p.rebuild + p.all_gather);
  CHECK(p.sync_share() == 1 - p.compute / p.total());

  auto o = exact();
  o.second_moment = true;
  o.guard = false;
  o.gradient_bytes = o.value_bytes = o.parameter_bytes = 2;
  auto const q = cost_model(o).dense(1024, 4);
  CHECK(same(q.bytes, {.values = 1536, .parameters = 1536, .mask = 0, .control = 0}));
  CHECK(q.pack == 0x1p-30 * 4 * 1024);
  CHECK(q.control == 0);
  CHECK(q.rebuild == 0x1p-30 * 26 * 256);
}

TEST_CASE("a sparse step, by hand") {
  // Half of 1024 floats on 4 ranks: 3 messages of 512 bytes, masks of 4 words; 255 of 256 sectors
  // of 8 floats are touched.
  auto o = exact();
  o.compute = 0x1p-9;
  auto const p = cost_model(o).sparse(1024, 4, 0.5);
  constexpr double touched = 255.0 / 256;
  CHECK(p.density == 0.5);
  CHECK(same(p.bytes, {.values = 1536, .parameters = 1536, .mask = 96, .control = 12}));
  CHECK(p.pack == 0x1p-30 * ((4 + 12) * 1024 + 128 + 2048));
  CHECK(p.control == 2 * (0x1p-10 + 0x1p-17));
  CHECK(p.reduce_scatter == 3 * 0x1p-10 + 1.5 * 0x1p-10);
  CHECK(p.rebuild == 0x1p-30 * ((4.125 + 16 * touched) * 256 + 512));
  CHECK(p.all_gather == p.reduce_scatter);
  CHECK(p.scatter == 0x1p-30 * (128 + 4 * touched * 1024 + 2048));
  CHECK(p.select == 0x1p-30 * (2560 + 32));
  CHECK(p.mask == 3 * 0x1p-10 + 96 * 0x1p-20 - 0x1p-9);
  CHECK(p.total() == p.compute + p.pack + p.control + p.reduce_scatter + p.rebuild + p.all_gather +
                         p.scatter + p.select + p.mask);

  o.second_moment = true;
  o.guard = false;
  o.gradient_bytes = o.value_bytes = o.parameter_bytes = 2;
  auto const q = cost_model(o).sparse(1024, 4, 0.5);
  CHECK(same(q.bytes, {.values = 768, .parameters = 768, .mask = 96, .control = 0}));
  CHECK(q.pack == 0x1p-30 * (10 * 1024 + 128 + 1024));
  CHECK(q.rebuild == 0x1p-30 * ((4.125 + 24 * touched) * 256 + 256));
  CHECK(q.scatter == 0x1p-30 * (128 + 2 * touched * 1024 + 1024));
}

TEST_CASE("two levels") {
  auto o = exact();
  o.network.ranks_per_node = 2;
  o.network.inside = {0x1p-15, 0x1p-25};
  // 2 nodes of 2: of 3 blocks of 1024 bytes, 2 come from inside.
  auto const p = cost_model(o).dense(1024, 4);
  CHECK(p.reduce_scatter == (0x1p-15 + 0x1p-14) + (0x1p-10 + 0x1p-10));
  CHECK(p.control == (0x1p-15 + 0x1p-22) + (0x1p-10 + 0x1p-17));
  CHECK(rejects([&] { (void)cost_model(o).dense(1024, 3); }, {"3 ranks", "nodes of 2"}));
}

TEST_CASE("compute hides the mask, except at lag 0") {
  auto o = exact();
  auto const mask = 3 * 0x1p-10 + 96 * 0x1p-20;
  auto const at_lag = [&](int lag, double compute) {
    o.lag = lag;
    o.compute = compute;
    return cost_model(o).sparse(1024, 4, 0.5).mask;
  };
  CHECK(at_lag(0, 0) == mask);
  CHECK(at_lag(0, 1) == mask);
  for (int const lag : {1, 2}) {
    CHECK(at_lag(lag, 0) == mask);
    CHECK(at_lag(lag, mask / 2) == mask / 2);
    CHECK(at_lag(lag, mask) == 0);
    CHECK(at_lag(lag, 1) == 0);
  }
}

TEST_CASE("an offloaded residual bounds the pack from below") {
  auto o = exact();
  o.offload_bandwidth = 0x1p20;
  auto const p = cost_model(o).sparse(1024, 4, 0.5);
  CHECK(p.pack == 8 * 768 * 0x1p-20);  // without the own shard
  CHECK(p.select == cost_model(exact()).sparse(1024, 4, 0.5).select);
  CHECK(same(cost_model(o).dense(1024, 4), cost_model(exact()).dense(1024, 4)));
  o.offload_bandwidth = 0x1p40;
  CHECK(same(cost_model(o).sparse(1024, 4, 0.5), cost_model(exact()).sparse(1024, 4, 0.5)));
  o.offload_bandwidth = 1;
  CHECK(same(cost_model(o).sparse(1024, 1, 0.5), cost_model(exact()).sparse(1024, 1, 0.5)));
}

TEST_CASE("bytes are those of the layout, and the formula gives the same") {
  cost_model const model(starved());
  for (int const ranks : {1, 2, 3, 7, 64, 1000}) {
    for (std::int64_t const n : {0L, 1L, 63L, 64L, 65L, 4095L, 4096L, 64'001L, 1'000'003L}) {
      layout const l(n, ranks);
      CHECK(same(model.dense(l), model.dense(n, ranks)));
      for (double const density : densities) {
        CAPTURE(n);
        CAPTURE(ranks);
        CAPTURE(density);
        auto const p = model.sparse(l, density);
        CHECK(same(p, model.sparse(n, ranks, density)));
        auto const plan = l.plan(density);
        std::int64_t values = 0, mask = 0;
        for (int r = 0; r < ranks; ++r) {
          values = std::max(values, l.value_wire_bytes(plan, r, 4));
          mask = std::max(mask, l.mask_wire_bytes(plan, r));
        }
        CHECK(p.bytes.values == values);
        CHECK(p.bytes.mask == mask);
      }
    }
  }
  constexpr std::int64_t n = 1'800'000'000;
  CHECK(same(model.sparse(layout(n, 10240), 0.01), model.sparse(n, 10240, 0.01)));
  constexpr auto most = std::numeric_limits<std::int64_t>::max() / 2 / 8;
  CHECK(same(model.dense(layout(most, 7)), model.dense(most, 7)));
  // Own densities, tensors that are always sent and frozen ones, shards of unequal length.
  layout const l(4000, 3, some_spans(4000), {.boundaries = {0, 100, 2500, 4000}});
  auto const plan = l.plan(0.01);
  auto const p = model.sparse(l, 0.01);
  CHECK(p.bytes.values == 4 * (plan.total() - *std::ranges::min_element(plan.counts)));
  CHECK(p.density == static_cast<double>(plan.total()) / 4000);
  CHECK(model.dense(l).bytes.values == 4 * 3900);
}

TEST_CASE("bytes are those that the optimizers report") {
  constexpr std::int64_t n = 4000;
  constexpr int ranks = 3;
  layout const l(n, ranks, some_spans(n));
  std::vector<step_bytes> dense(ranks), sparse(ranks);
  scape::run_threads(ranks, [&](scape::thread_communicator& comm) {
    auto const rank = at(comm.rank());
    auto const run = [&](auto optimizer_type, auto const& options) {
      using optimizer = typename decltype(optimizer_type)::type;
      scape::host_buffer const storage(optimizer::storage_bytes(l, options));
      scape::host_buffer const scratch(optimizer::scratch_bytes(l, options));
      optimizer opt(comm, l, options, storage.bytes());
      auto weights = scape::testing::initial_weights(n);
      step_bytes bytes;
      for (int step = 0; step < 3; ++step) {
        auto gradient = scape::testing::normal_gradient(1, comm.rank(), step, n);
        std::fill_n(gradient.begin() + n / 2 + 7, 100, 0.0F);
        bytes = opt.step({scratch.bytes()}, weights, std::span<float const>(gradient), {}).bytes;
      }
      return bytes;
    };
    using scape::adams;
    using comm_t = scape::thread_communicator;
    dense[rank] =
        run(std::type_identity<scape::dense_optimizer<adams, comm_t>>(), scape::adam_options{});
    sparse[rank] = run(std::type_identity<scape::sparse_optimizer<adams, comm_t>>(),
                       scape::sparse_optimizer_options::staleness_aware(0.1));
  });
  auto const busiest = [](std::vector<step_bytes> const& bytes) {
    return *std::ranges::max_element(bytes, {}, &step_bytes::total);
  };
  cost_model const model(starved());
  CHECK(same(model.dense(l).bytes, busiest(dense)));
  CHECK(same(model.sparse(l, 0.1).bytes, busiest(sparse)));
}

TEST_CASE("a lone rank is not delayed by a network that takes for ever") {
  auto o = exact();
  o.network.link = o.network.inside = {0, std::numeric_limits<double>::max()};
  CHECK(cost_model(o).dense(1024, 1).total() == cost_model(exact()).dense(1024, 1).total());
}

TEST_CASE("nothing to send, no elements, no peers") {
  cost_model const model(exact());
  auto const empty = model.sparse(0, 4, 0.5);
  CHECK(empty.density == 0);
  CHECK(empty.bytes.total() == 12);
  CHECK(empty.total() == 0x1p-3 + empty.control + empty.reduce_scatter + empty.all_gather);
  CHECK(empty.reduce_scatter == 3 * 0x1p-10);  // empty messages are messages

  auto const alone = model.sparse(1024, 1, 0.5);
  CHECK(alone.bytes.total() == 0);
  CHECK(alone.control + alone.reduce_scatter + alone.all_gather + alone.mask == 0);
  CHECK(alone.total() == alone.compute + alone.pack + alone.rebuild + alone.scatter + alone.select);

  auto const none = model.sparse(1024, 4, 0);
  CHECK(none.density == 0);
  CHECK(none.bytes.values == 0);
  CHECK(none.bytes.mask == 12);  // 3 empty lists of one block
  auto const all = model.sparse(1024, 4, 1);
  CHECK(all.density == 1);
  CHECK(same(all.bytes, {.values = 3072, .parameters = 3072, .mask = 96, .control = 12}));
  CHECK(cost_model({}).sparse(0, 1, 1).sync_share() == 0);
}

TEST_CASE("a denser step is never faster") {
  auto const check = [](cost_model_options const& o) {
    cost_model const model(o);
    for (int const ranks : {1, 8, 64}) {
      double last = 0;
      for (double density = 0; density <= 1; density += 0x1p-10) {
        auto const total = model.sparse(1'000'000, ranks, density).total();
        CHECK(total >= last);
        last = total;
      }
    }
  };
  check(starved());
  check(exact());
}

TEST_CASE("less latency, more bandwidth or fewer ranks never cost time") {
  auto const total = [](cost_model_options const& o, int ranks = 64) {
    return cost_model(o).sparse(1'800'000'000, ranks, 0.01).total();
  };
  auto const base = total(starved());
  auto o = starved();
  o.network.link.latency /= 2;
  CHECK(total(o) < base);
  o = starved();
  o.network.link.inverse_bandwidth /= 2;
  CHECK(total(o) < base);
  o = starved();
  o.memory_bandwidth *= 2;
  CHECK(total(o) < base);
  o = starved();
  o.network.algorithm = scape::exchange_algorithm::tree;
  CHECK(total(o) < base);
  // The network's part grows with the ranks, up to the shards that are owned and rebuilt.
  for (int ranks = 1; ranks < 1024; ranks *= 2) {
    cost_model const model(starved());
    auto const few = model.dense(1 << 26, ranks), many = model.dense(1 << 26, 2 * ranks);
    CHECK(few.reduce_scatter + few.all_gather < many.reduce_scatter + many.all_gather);
  }
}

TEST_CASE("strong scaling") {
  cost_model const one({.compute = 64});
  CHECK(one.strong_scaled(1, 64).options().compute == 1);
  CHECK(one.strong_scaled(64, 1).options().compute == 64 * 64);
  // Without a network and without passes it is perfect.
  CHECK(scape::scaling_efficiency(one.dense(1000, 1), one.strong_scaled(1, 64).dense(1000, 64)) ==
        1);
  // 3 messages of a second each in two collectives, and 2 in the agreement, beside 8 s of compute.
  cost_model const slow({.compute = 32, .network = {.link = {1, 0}}});
  auto const four = slow.strong_scaled(1, 4).dense(1000, 4);
  CHECK(four.total() == 8 + 3 + 3 + 2);
  CHECK(scape::scaling_efficiency(slow.dense(1000, 1), four) == 32.0 / (16 * 4));
  CHECK(scape::speedup(slow.dense(1000, 1), four) == 2);
  double last = 1;
  cost_model const model(starved());
  for (int ranks = 2; ranks <= 10240; ranks *= 2) {
    auto const efficiency = scape::scaling_efficiency(
        model.dense(1 << 26, 1), model.strong_scaled(1, ranks).dense(1 << 26, ranks));
    CHECK(efficiency < last);
    last = efficiency;
  }
  CHECK(rejects([&] { (void)model.strong_scaled(0, 4); }, {"strong_scaled", "below 1"}));
}

TEST_CASE("the chosen density meets the target, and the next denser does not") {
  cost_model const model(starved());
  constexpr std::int64_t n = 1'800'000'000;
  constexpr int ranks = 64;
  layout const spans(100'000, 4, some_spans(100'000));
  auto const meets = [](density_target const& target, step_prediction const& dense,
                        step_prediction const& sparsest, step_prediction const& p) {
    using kind = density_target::kind;
    if (target.what() == kind::speedup) return scape::speedup(dense, p) >= target.value();
    if (target.what() == kind::sync_share) return p.sync_share() <= target.value();
    return p.total() <= target.value() * sparsest.total();
  };
  for (auto const& target :
       {density_target::speedup(1.5), density_target::speedup(3), density_target::speedup(0.99),
        density_target::sync_share(0.5), density_target::sync_share(0.3),
        density_target::automatic(), density_target::automatic(0.5)}) {
    CAPTURE(static_cast<int>(target.what()));
    CAPTURE(target.value());
    auto const choice = choose_density(model, n, ranks, target);
    auto const dense = model.dense(n, ranks);
    auto const sparsest = model.sparse(n, ranks, 1.0 / n);
    CHECK(choice.density > 0);
    CHECK(choice.density < 1);
    CHECK(same(choice.dense, dense));
    CHECK(same(choice.sparse, model.sparse(n, ranks, choice.density)));
    CHECK(meets(target, dense, sparsest, choice.sparse));
    auto const denser = model.sparse(n, ranks, std::nextafter(choice.density, 1));
    CHECK(denser.bytes.values > choice.sparse.bytes.values);
    CHECK_FALSE(meets(target, dense, sparsest, denser));
    CHECK(choose_density(model, layout(n, ranks), target).density == choice.density);
  }
  // A slower network needs fewer values; so does a higher target.
  auto slow = starved();
  slow.network.link.inverse_bandwidth *= 4;
  auto const at_share = [&](cost_model const& m, double share) {
    return choose_density(m, n, ranks, density_target::sync_share(share)).density;
  };
  CHECK(at_share(cost_model(slow), 0.5) < at_share(model, 0.5));
  CHECK(at_share(model, 0.4) < at_share(model, 0.5));
  // What a layout always sends counts, whatever the density.
  auto const choice = choose_density(model, spans, density_target::automatic(0));
  CHECK(choice.sparse.total() == model.sparse(spans, 1e-5).total());
}

TEST_CASE("where the network costs nothing, all values may be sent") {
  cost_model const model({.compute = 1});
  auto const choice = choose_density(model, 1000, 4);
  CHECK(choice.density == 1);
  CHECK(choice.sparse.density == 1);
  CHECK(choose_density(model, 1000, 4, density_target::speedup(1)).density == 1);
  CHECK(choose_density(model, 1000, 4, density_target::sync_share(0)).density == 1);
  CHECK(choose_density(cost_model({}), 0, 1).density == 1);
  CHECK(choose_density(cost_model({}), 0, 1, density_target::speedup(1)).density == 1);
  CHECK(choose_density(cost_model({}), layout(0, 3)).density == 1);
}

TEST_CASE("a target out of reach is refused with the best there is") {
  cost_model const model(starved());
  constexpr std::int64_t n = 1'800'000'000;
  auto const best_of = [&](density_target const& target, std::string_view word) {
    try {
      (void)choose_density(model, n, 64, target);
    } catch (scape::unreachable_target const& e) {
      CHECK(std::string_view(e.what()).find(word) != std::string_view::npos);
      CHECK(std::string_view(e.what()).find("out of reach; the best is") != std::string_view::npos);
      return e.best();
    }
    return -1.0;
  };
  auto const sparsest = model.sparse(n, 64, 1.0 / n);
  auto const fastest = best_of(density_target::speedup(100), "a speedup of 100");
  CHECK(fastest == scape::speedup(model.dense(n, 64), sparsest));
  CHECK(fastest > 3);
  auto const share = best_of(density_target::sync_share(0.01), "0.01");
  CHECK(share == sparsest.sync_share());
  CHECK(share > 0.01);
  // Exactly the best is within reach.
  CHECK(choose_density(model, n, 64, density_target::speedup(fastest)).density >= 1.0 / n);
  CHECK(choose_density(model, n, 64, density_target::sync_share(share)).density >= 1.0 / n);
  // Without compute all of the step is sync.
  CHECK_THROWS_AS((void)choose_density(cost_model({.network = {.link = {1, 1}}}), n, 64,
                                       density_target::sync_share(0.5)),
                  scape::unreachable_target const&);
}

TEST_CASE("parameters that mean nothing are refused") {
  constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  auto const refused = [](auto const& change, std::initializer_list<std::string_view> parts) {
    auto o = starved();
    change(o);
    return rejects([&] { (void)cost_model(o); }, parts);
  };
  for (double const value : {-1.0, nan, infinity}) {
    CHECK(refused([&](auto& o) { o.compute = value; }, {"scape::cost_model", "compute"}));
    CHECK(refused([&](auto& o) { o.network.link.latency = value; }, {"latency", "seconds"}));
    CHECK(refused([&](auto& o) { o.network.inside.inverse_bandwidth = value; },
                  {"inverse bandwidth", "seconds per byte"}));
  }
  for (double const value : {-1.0, 0.0, nan}) {
    CHECK(refused([&](auto& o) { o.memory_bandwidth = value; }, {"memory_bandwidth"}));
    CHECK(refused([&](auto& o) { o.offload_bandwidth = value; }, {"offload_bandwidth"}));
  }
  CHECK(refused([](auto& o) { o.lag = -1; }, {"lag is negative"}));
  CHECK(refused([](auto& o) { o.gradient_bytes = 3; }, {"3 bytes", "2 or 4"}));
  CHECK(refused([](auto& o) { o.value_bytes = 8; }, {"8 bytes", "2 or 4"}));
  CHECK(refused([](auto& o) { o.parameter_bytes = 0; }, {"0 bytes", "2 or 4"}));
  CHECK(refused([](auto& o) { o.network.ranks_per_node = 0; }, {"ranks_per_node"}));

  cost_model const model(starved());
  CHECK(rejects([&] { (void)model.sparse(10, 0, 0.1); }, {"ranks is 0", "at least 1"}));
  CHECK(rejects([&] { (void)model.sparse(-1, 2, 0.1); }, {"length n is -1"}));
  CHECK(rejects([&] { (void)model.dense(std::numeric_limits<std::int64_t>::max(), 2); },
                {"length n is", "expected 0 to"}));
  for (double const density : {-0.1, 1.1, nan}) {
    CHECK(rejects([&] { (void)model.sparse(10, 2, density); }, {"density is outside [0, 1]"}));
    CHECK(rejects([&] { (void)model.sparse(layout(10, 2), density); }, {"density is outside"}));
  }
  for (double const value : {-0.5, nan, infinity}) {
    CHECK(rejects([&] { (void)density_target::automatic(value); }, {"density_target", "slack"}));
    CHECK(rejects([&] { (void)density_target::speedup(value); }, {"speedup is not"}));
    CHECK(rejects([&] { (void)density_target::sync_share(value); }, {"outside [0, 1)"}));
  }
  CHECK(rejects([] { (void)density_target::speedup(0); }, {"speedup is not"}));
  CHECK(rejects([] { (void)density_target::sync_share(1); }, {"outside [0, 1)"}));
}
