// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>
#include <scape/sparse_all_reduce.hpp>

#include "support/counting_communicator.hpp"
#include "support/failing_communicator.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using scape::layout;
using scape::mask_word;
using scape::run_threads;
using scape::self_communicator;
using scape::thread_communicator;

template <class Wire>
struct buffers {
  std::vector<float> gradient, residual;
  std::vector<Wire> values;
  scape::host_buffer scratch;
  scape::host_context ctx;

  buffers(masked_problem const& p, int rank)
      : gradient(normal_gradient(1, rank, 0, p.l.size())),
        residual(normal_gradient(2, rank, 0, p.l.size())),
        values(at(p.plan.total())),
        scratch(scape::sparse_collective_bytes<Wire>(p.plan.total())),
        ctx{scratch.bytes()} {}

  template <class Comm>
  void run(Comm& comm, masked_problem const& p) {
    scape::sparse_all_reduce(ctx, comm, p.l, p.plan, std::span<mask_word const>(p.mask),
                             std::span<float const>(gradient), std::span(residual), 0.1F,
                             std::span(values));
  }
  [[nodiscard]] std::vector<float> accumulated() const {
    return make_vector(std::ssize(gradient), [&](auto j) {
      return scape::detail::fmadd(0.1F, gradient[at(j)], residual[at(j)]);
    });
  }
};

//! `ranks` need not be the layout's number of shards.
template <class Wire>
void check_sums(masked_problem const& p, int ranks) {
  std::vector<std::vector<float>> sent(at(ranks), std::vector<float>(at(p.l.size())));
  std::vector<std::vector<Wire>> received(at(ranks));
  run_threads(ranks, [&](thread_communicator& comm) {
    buffers<Wire> b(p, comm.rank());
    auto const u = b.accumulated();
    b.run(comm, p);
    bool unmasked = true, conserved = true;
    for (std::size_t j = 0; j < u.size(); ++j) {
      sent[at(comm.rank())][j] = u[j] - b.residual[j];
      unmasked = unmasked && (p.bits[j] != 0 || b.residual[j] == u[j]);
      conserved = conserved && sent[at(comm.rank())][j] + b.residual[j] == u[j];
    }
    CHECK(unmasked);
    CHECK(conserved);
    received[at(comm.rank())] = b.values;
  });
  std::vector<Wire> expected;
  for (int r = 0; r < p.l.shards(); ++r) {
    for (auto const j : p.elements(r)) {
      float sum = sent[0][at(j)];
      for (int i = 1; i < ranks; ++i) sum += sent[at(i)][at(j)];
      expected.push_back(Wire(sum));
    }
  }
  for (auto const& values : received) CHECK(same_bits(values, expected));
}

}  // namespace

TEST_CASE("every rank receives all sums, whatever the layout's number of shards") {
  for (int const ranks : {1, 2, 3, 4}) {
    for (int const shards : {1, 3}) {
      for (auto const& l : some_layouts(shards)) {
        CAPTURE(ranks);
        CAPTURE(l.size());
        check_sums<float>({l, 0.3}, ranks);
        check_sums<scape::bfloat16>({l, 0.1}, ranks);
        check_sums<scape::float16>({l, 1}, ranks);
        check_sums<float>({l, 0}, ranks);
      }
    }
  }
}

TEST_CASE("it is one all-reduce") {
  masked_problem const p({1000, 1}, 0.2);
  run_threads(3, [&](thread_communicator& inner) {
    counting_communicator<thread_communicator> comm(inner);
    buffers<scape::bfloat16> b(p, comm.rank());
    b.run(comm, p);
    CHECK(comm.all_reduces == traffic{1, 2 * 2 * 2 * 200 / 3});
    CHECK(comm.reduce_scatters.calls + comm.gathers.calls + comm.broadcasts.calls == 0);
  });
}

TEST_CASE("nothing is lost when the collective fails") {
  for (auto const point : {failure_point::start, failure_point::wait}) {
    failing_communicator failing(point);
    masked_problem const p({500, 1}, 0.3);
    buffers<scape::bfloat16> b(p, 0);
    auto const u = b.accumulated();
    CHECK(raises<scape::peer_error>([&] { b.run(failing, p); }, {"rank 1 is gone"}));
    CHECK(b.residual == u);
  }
}

TEST_CASE("sizes that disagree are refused and nothing is changed") {
  self_communicator self;
  masked_problem const p({130, 2}, 0.3);
  buffers<float> b(p, 0);
  auto const before = b.residual;
  CHECK(
      rejects_mismatches(p, "sparse_all_reduce", [&](masked_problem const& q) { b.run(self, q); }));
  auto const with = [&](auto change) {
    return [&, change] {
      auto gradient = std::span<float const>(b.gradient);
      auto residual = std::span(b.residual);
      auto values = std::span(b.values);
      auto ctx = b.ctx;
      change(gradient, residual, values, ctx);
      scape::sparse_all_reduce(ctx, self, p.l, p.plan, std::span<mask_word const>(p.mask), gradient,
                               residual, 0.1F, values);
    };
  };
  auto const total = std::to_string(p.plan.total());
  CHECK(rejects(with([](auto& g, auto&, auto&, auto&) { g = g.first(129); }),
                {"sparse_all_reduce", "gradient", "129", "130"}));
  CHECK(rejects(with([](auto&, auto& e, auto&, auto&) { e = e.first(1); }),
                {"residual", "1", "130"}));
  CHECK(
      rejects(with([](auto&, auto&, auto& v, auto&) { v = v.first(2); }), {"values", "2", total}));
  CHECK(rejects(with([](auto&, auto&, auto&, auto& ctx) { ctx.scratch = ctx.scratch.first(100); }),
                {"100 bytes", std::to_string(4 * p.plan.total())}));
  CHECK(same_bits(b.residual, before));
}
