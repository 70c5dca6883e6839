// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>
#include <scape/sparse_reduce_scatter.hpp>

#include "support/counting_communicator.hpp"
#include "support/failing_communicator.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using scape::bfloat16;
using scape::float16;
using scape::layout;
using scape::layout_options;
using scape::mask_word;
using scape::run_threads;
using scape::self_communicator;
using scape::thread_communicator;

//! One rank's buffers.
template <class Wire, class Gradient = float>
struct buffers {
  std::vector<Gradient> gradient;
  std::vector<float> residual;
  std::vector<Wire> values;
  scape::host_buffer scratch;
  scape::host_context ctx;

  buffers(masked_problem const& p, int rank, scape::host_pool* pool = nullptr)
      : values(at(p.plan.counts[at(rank)])),
        scratch(scape::sparse_collective_bytes<Wire>(p.plan.total())),
        ctx{scratch.bytes(), pool} {}

  template <class F, class G>
  void fill(std::int64_t n, F const& gradient_of, G const& residual_of) {
    gradient = make_vector(n, [&](auto j) { return Gradient(gradient_of(j)); });
    residual = make_vector(n, [&](auto j) { return float(residual_of(j)); });
  }
  template <class Comm>
  void run(Comm& comm, masked_problem const& p, float coefficient) {
    scape::sparse_reduce_scatter(ctx, comm, p.l, p.plan, std::span<mask_word const>(p.mask),
                                 std::span<Gradient const>(gradient), std::span(residual),
                                 coefficient, std::span(values));
  }
  //! What is accumulated before anything is sent.
  [[nodiscard]] std::vector<float> accumulated(float coefficient) const {
    return make_vector(std::ssize(gradient), [&](auto j) {
      return scape::detail::fmadd(coefficient, static_cast<float>(gradient[at(j)]),
                                  residual[at(j)]);
    });
  }
};

bool same_float(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
bool same_value(float a, float b) { return a == b || (a != a && b != b); }

//! For one rank, whose values are what it sent: sent + residual = u.
template <class Wire, class Gradient>
void check_mass(scape::host_pool* pool) {
  self_communicator self;
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    for (float const coefficient : {0.1F, 1.0F}) {
      CAPTURE(seed);
      auto const n = static_cast<std::int64_t>(seed * 37 % 700);
      masked_problem const p({n, 1}, 0.3, seed);
      buffers<Wire, Gradient> b(p, 0, pool);
      b.fill(
          n, [&](auto j) { return any_float(seed, 0, j); },
          [&](auto j) { return j % 7 == 0 ? any_float(seed, 1, j) : normal(seed, 1, 0, j); });
      auto const u = b.accumulated(coefficient);
      b.run(self, p, coefficient);
      bool conserved = true, waits = true, finite_stays_finite = true, special = true;
      std::size_t next = 0;
      for (std::size_t j = 0; j < u.size(); ++j) {
        auto const e = b.residual[j];
        if (p.bits[j] == 0) {
          waits = waits && (same_float(e, u[j]) || (e != e && u[j] != u[j]));
          continue;
        }
        auto const sent = static_cast<float>(b.values[next++]);
        if (std::isfinite(u[j])) {
          finite_stays_finite = finite_stays_finite && std::isfinite(sent);
          conserved = conserved && double{sent} + double{e} == double{u[j]} && sent + e == u[j];
        } else {
          special = special && same_value(sent, u[j]) && same_float(e, 0);
        }
        if constexpr (std::is_same_v<Wire, float>) conserved = conserved && same_float(e, 0);
      }
      CHECK(next == b.values.size());
      CHECK(conserved);
      CHECK(waits);
      CHECK(finite_stays_finite);
      CHECK(special);
    }
  }
}

//! Sums of the ranks' own roundings, in rank order, arrive at the owner.
template <class Wire>
void check_sums(masked_problem const& p) {
  auto const ranks = p.l.shards();
  std::vector<std::vector<float>> sent(at(ranks), std::vector<float>(at(p.l.size())));
  std::vector<std::vector<Wire>> received(at(ranks));
  run_threads(ranks, [&](thread_communicator& comm) {
    buffers<Wire> b(p, comm.rank());
    b.fill(
        p.l.size(), [&](auto j) { return normal(3, comm.rank(), 0, j); },
        [&](auto j) { return normal(4, comm.rank(), 0, j); });
    auto const u = b.accumulated(0.1F);
    b.run(comm, p, 0.1F);
    for (std::size_t j = 0; j < u.size(); ++j) sent[at(comm.rank())][j] = u[j] - b.residual[j];
    received[at(comm.rank())] = b.values;
  });
  for (int r = 0; r < ranks; ++r) {
    std::vector<Wire> expected;
    for (auto const j : p.elements(r)) {
      float sum = sent[0][at(j)];
      for (int i = 1; i < ranks; ++i) sum += sent[at(i)][at(j)];
      expected.push_back(Wire(sum));
    }
    CHECK(same_bits(received[at(r)], expected));
  }
}

}  // namespace

TEST_CASE("what is sent and what stays make up what was accumulated, on every wire") {
  check_mass<float, float>(nullptr);
  check_mass<bfloat16, float>(nullptr);
  check_mass<float16, float>(nullptr);
  check_mass<bfloat16, bfloat16>(nullptr);
  check_mass<float, float16>(nullptr);
  scape::host_pool pool(3);
  check_mass<bfloat16, float>(&pool);
}

TEST_CASE("the sums over the ranks arrive at the owners") {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    for (auto const& l : some_layouts(ranks)) {
      CAPTURE(ranks);
      CAPTURE(l.size());
      check_sums<float>({l, 0.3});
      check_sums<bfloat16>({l, 0.1});
      check_sums<float16>({l, 1});
      check_sums<float>({l, 0});
    }
  }
}

TEST_CASE("residual, own and not averaged, for two ranks by hand") {
  masked_problem p({4, 2, layout_options{.alignment = 2}}, 0.5);
  p.mask = {0b10, 0b01};  // elements 1 and 2
  p.bits = {0, 1, 1, 0};
  run_threads(2, [&](thread_communicator& comm) {
    auto const first = comm.rank() == 0;
    buffers<bfloat16> b(p, comm.rank());
    b.gradient = first ? std::vector<float>{2, 4, 6, 8} : std::vector<float>{10, 514, 20, 30};
    b.residual = first ? std::vector<float>{1, 1, 1, 1} : std::vector<float>{0, 0, 0, 0};
    b.run(comm, p, 0.5F);
    // bfloat16 has 8 bits: 257 is sent as 256, and the sum 259 arrives as 260.
    if (first) {
      CHECK(b.residual == std::vector<float>{2, 0, 0, 5});
      CHECK(float(b.values[0]) == 260);
    } else {
      CHECK(b.residual == std::vector<float>{5, 1, 0, 15});
      CHECK(float(b.values[0]) == 10 + 4);
    }
  });
}

TEST_CASE("a dense vector is summed under the mask and left alone") {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    for (auto const& l : some_layouts(ranks)) {
      masked_problem const p(l, 0.3);
      run_threads(ranks, [&](thread_communicator& comm) {
        auto const dense = integer_gradient(1, comm.rank(), 0, l.size());
        auto const before = dense;
        buffers<float> b(p, comm.rank());
        scape::sparse_reduce_scatter(b.ctx, comm, l, p.plan, std::span<mask_word const>(p.mask),
                                     std::span(dense), std::span(b.values));
        std::vector<float> expected;
        for (auto const j : p.elements(comm.rank())) {
          float sum = 0;
          for (int i = 0; i < ranks; ++i) sum += small_integer(1, i, 0, j, 8);
          expected.push_back(sum);
        }
        CHECK(b.values == expected);
        CHECK(dense == before);
      });
    }
  }
}

TEST_CASE("pools of any size give the same bits") {
  masked_problem const p({200000, 1}, 0.1);
  self_communicator self;
  scape::host_pool two(2), three(3);
  std::vector<buffers<bfloat16>> all;
  for (auto* pool : {static_cast<scape::host_pool*>(nullptr), &two, &three}) {
    buffers<bfloat16> b(p, 0, pool);
    b.fill(
        p.l.size(), [](auto j) { return normal(1, 0, 0, j); },
        [](auto j) { return normal(2, 0, 0, j); });
    b.run(self, p, 0.1F);
    all.push_back(std::move(b));
  }
  for (auto const& b : all) {
    CHECK(same_bits(b.values, all[0].values));
    CHECK(same_bits(b.residual, all[0].residual));
  }
}

TEST_CASE("one reduce-scatter of the predicted bytes") {
  for (auto const& l : some_layouts(3)) {
    masked_problem const p(l, 0.2);
    run_threads(3, [&](thread_communicator& inner) {
      counting_communicator<thread_communicator> comm(inner);
      buffers<bfloat16> b(p, comm.rank());
      b.fill(
          l.size(), [](auto) { return 1; }, [](auto) { return 1; });
      b.run(comm, p, 1);
      CHECK(comm.reduce_scatters == traffic{1, l.value_wire_bytes(p.plan, comm.rank(), 2)});
      CHECK(comm.gathers.calls + comm.all_reduces.calls + comm.broadcasts.calls == 0);
    });
  }
}

namespace {

template <class Wire>
void check_return(failure_point point) {
  failing_communicator failing(point);
  masked_problem const p({500, 1}, 0.3);
  buffers<Wire> b(p, 0);
  b.fill(
      500, [](auto j) { return any_float(5, 0, j); },
      [](auto j) { return j % 5 == 0 ? any_float(5, 1, j) : normal(5, 1, 0, j); });
  auto const u = b.accumulated(0.1F);
  CHECK(raises<scape::peer_error>([&] { b.run(failing, p, 0.1F); }, {"rank 1 is gone"}));
  bool returned = true;
  for (std::size_t j = 0; j < u.size(); ++j) returned = returned && same_value(b.residual[j], u[j]);
  CHECK(returned);
}

}  // namespace

TEST_CASE("nothing is lost when the collective fails") {
  for (auto const point : {failure_point::start, failure_point::wait}) {
    check_return<float>(point);
    check_return<bfloat16>(point);
    check_return<float16>(point);
  }
}

TEST_CASE("nothing is lost on any survivor when a peer fails") {
  masked_problem const p({300, 4}, 0.3);
  for (bool const throws : {true, false}) {
    scape::thread_group group(4, {.deadline = std::chrono::seconds(20)});
    CHECK_THROWS(run_threads(group, [&](thread_communicator& comm) {
      if (comm.rank() == 2) {
        if (throws) throw std::runtime_error("no memory left");
        return;
      }
      buffers<bfloat16> b(p, comm.rank());
      b.fill(
          300, [&](auto j) { return normal(3, comm.rank(), 0, j); },
          [&](auto j) { return normal(4, comm.rank(), 0, j); });
      auto const u = b.accumulated(0.1F);
      try {
        b.run(comm, p, 0.1F);
        CHECK(false);
      } catch (scape::peer_error const& e) {
        CHECK(e.peer() == 2);
      }
      CHECK(b.residual == u);
    }));
  }
}

TEST_CASE("sizes that disagree are refused and nothing is changed") {
  self_communicator self;
  masked_problem const p({130, 1}, 0.3);
  buffers<float> b(p, 0);
  b.fill(
      130, [](auto) { return 1; }, [](auto) { return 2; });
  auto const unchanged = [&] {
    return b.residual == std::vector<float>(130, 2) &&
           b.values == std::vector<float>(b.values.size());
  };
  CHECK(rejects_mismatches(p, "sparse_reduce_scatter",
                           [&](masked_problem const& q) { b.run(self, q, 1); }));
  CHECK(unchanged());
  auto const with = [&](auto change) {
    return [&, change] {
      auto copy = std::span<float const>(b.gradient);
      auto residual = std::span(b.residual);
      auto values = std::span(b.values);
      auto ctx = b.ctx;
      change(copy, residual, values, ctx);
      scape::sparse_reduce_scatter(ctx, self, p.l, p.plan, std::span<mask_word const>(p.mask), copy,
                                   residual, 1.0F, values);
    };
  };
  CHECK(rejects(with([](auto& g, auto&, auto&, auto&) { g = g.first(129); }),
                {"gradient", "129", "130"}));
  CHECK(rejects(with([](auto&, auto& e, auto&, auto&) { e = e.first(0); }),
                {"residual", "0", "130"}));
  CHECK(
      rejects(with([](auto&, auto&, auto& v, auto&) { v = v.first(38); }), {"values", "38", "39"}));
  CHECK(rejects(with([](auto&, auto&, auto&, auto& ctx) { ctx.scratch = ctx.scratch.first(100); }),
                {"sparse_reduce_scatter", "100 bytes", "156"}));
  CHECK(unchanged());

  masked_problem const two({130, 2}, 0.3);
  CHECK(rejects([&] { b.run(self, two, 1); }, {"shards is 2", "expected 1"}));
  CHECK(unchanged());

  auto const dense = std::vector<float>(130);
  auto const mask = std::span<mask_word const>(p.mask);
  CHECK(rejects(
      [&] {
        scape::sparse_reduce_scatter(b.ctx, self, p.l, p.plan, mask,
                                     std::span<float const>(dense).first(7), std::span(b.values));
      },
      {"dense", "7", "130"}));
  CHECK(rejects(
      [&] {
        scape::sparse_reduce_scatter(b.ctx, self, p.l, p.plan, mask, std::span<float const>(dense),
                                     std::span(b.values).first(1));
      },
      {"values", "1", "39"}));
  CHECK(unchanged());
}

TEST_CASE("finite values have a finite sum on a float16 wire, and the rest waits") {
  constexpr int ranks = 4;
  scape::layout const l(64, ranks, scape::layout_options{.alignment = 16});
  auto const plan = l.plan(1);
  scape::run_threads(ranks, [&](scape::thread_communicator& comm) {
    std::vector<scape::mask_word> mask(static_cast<std::size_t>(l.mask_words()), 0xffff);
    std::vector<float> const gradient(64, 3e5F);
    std::vector<float> residual(64);
    std::vector<float16> values(16);
    scape::host_buffer const scratch(scape::sparse_collective_bytes<float16>(plan.total()));
    scape::host_context const ctx{scratch.bytes()};
    scape::sparse_reduce_scatter(ctx, comm, l, plan, std::span<scape::mask_word const>(mask),
                                 std::span<float const>(gradient), std::span<float>(residual), 1.0F,
                                 std::span<float16>(values));
    for (auto const sum : values) CHECK(static_cast<float>(sum) == 4 * 8192);
    for (auto const rest : residual) CHECK(rest == 3e5F - 8192);
  });
}

TEST_CASE("a plan whose offsets do not fit its counts is refused") {
  self_communicator self;
  layout const l(64, 1);
  auto plan = l.plan(1);
  std::vector<mask_word> const mask(1, ~mask_word{0});
  std::vector<float> const dense(64, 1.0F);
  std::vector<float> values(64);
  scape::host_buffer const scratch(scape::sparse_collective_bytes<float>(1000));
  scape::host_context const ctx{scratch.bytes()};
  auto const run = [&] {
    scape::sparse_reduce_scatter(ctx, self, l, plan, std::span<mask_word const>(mask),
                                 std::span<float const>(dense), std::span<float>(values));
  };
  run();
  CHECK(values[63] == 1.0F);
  plan.offsets = {0, 500};
  CHECK(rejects(run, {"64", "500"}));
  plan.offsets = {7, 71};
  CHECK(rejects(run, {"first offset is 7", "expected 0"}));
  plan.offsets.clear();
  CHECK(rejects(run, {"offsets is 0", "expected 2"}));
}
