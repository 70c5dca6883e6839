// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of sparse_all_reduce that hold on every backend.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <scape/float16.hpp>
#include <scape/sparse_all_reduce.hpp>

#include "support/counting_communicator.hpp"
#include "support/failing_communicator.hpp"
#include "support/masked_buffers.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {

struct all_reduce_op {
  template <class Context, class Comm, class... Arguments>
  void operator()(Context const& ctx, Comm& comm, Arguments const&... arguments) const {
    sparse_all_reduce(ctx, comm, arguments...);
  }
};

//! The communicator's size need not be the layout's number of shards.
template <class Backend, class Wire, class Gradient = float>
void check_all_reduced(typename Backend::communicator& comm, masked_problem const& p,
                       rank_inputs const& inputs, std::int64_t offset = 0) {
  auto const total = p.plan.total();
  auto b = buffers_with<Backend, Wire, Gradient>(inputs, p, total, comm.rank(), offset);
  b.run(comm, p, inputs.coefficient(), all_reduce_op{});
  std::vector<Wire> expected;
  for (int s = 0; s < p.l.shards(); ++s) {
    for (auto const j : p.elements(s)) {
      expected.push_back(inputs.sum<Wire, Gradient>(comm.size(), j));
    }
  }
  CHECK(same_bits(b.values.span(), expected));
  CHECK(same_bits(b.residual.span(), inputs.kept<Wire, Gradient>(p, comm.size(), comm.rank())));
  CHECK(b.intact());
}

TEST_CASE_TEMPLATE_DEFINE("every rank receives all sums, whatever the layout's number of shards",
                          Backend, all_reduce_sums) {
  for (int const ranks : {1, 2, 3, 4, 8}) {
    if (!Backend::has_ranks(ranks)) continue;
    for (bool const exact : {true, false}) {
      // NCCL sums in an order of its own.
      if ((Backend::cuda || requires { Backend::sums_on_two_levels; }) && !exact) continue;
      Backend::ranks(ranks, [&](auto& comm) {
        rank_inputs const inputs{exact};
        for (int const shards : {1, 3}) {
          for (auto const& l : some_layouts(shards)) {
            if (Backend::cuda && ranks > 2 && l.size() < 65) continue;
            CAPTURE(ranks);
            CAPTURE(l.size());
            CAPTURE(exact);
            check_all_reduced<Backend, float>(comm, {l, 0.3}, inputs, 1);
            check_all_reduced<Backend, bfloat16>(comm, {l, 0.1}, inputs, 1);
            check_all_reduced<Backend, float16, bfloat16>(comm, {l, 1}, inputs);
            check_all_reduced<Backend, float>(comm, {l, 0}, inputs);
          }
        }
      });
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("it is one all-reduce", Backend, all_reduce_traffic) {
  if (!Backend::has_ranks(3)) return;
  masked_problem const p({1000, 1}, 0.2);
  Backend::ranks(3, [&](auto& inner) {
    counting_communicator<typename Backend::communicator> comm(inner);
    auto b = buffers_with<Backend, bfloat16>({}, p, p.plan.total(), comm.rank());
    b.run(comm, p, 0.1F, all_reduce_op{});
    CHECK(comm.all_reduces == traffic{1, 2 * 2 * 2 * 200 / 3});
    CHECK(comm.reduce_scatters.calls + comm.gathers.calls + comm.broadcasts.calls == 0);
  });
}

TEST_CASE_TEMPLATE_DEFINE("nothing is lost when the collective fails", Backend,
                          all_reduce_failure) {
  for (auto const point : {failure_point::start, failure_point::wait}) {
    failing_communicator<typename Backend::context> failing(point);
    masked_problem const p({500, 1}, 0.3);
    auto b = buffers_with<Backend, bfloat16>({.exact = false}, p, p.plan.total(), 0, 1);
    auto const u = b.accumulated(0.1F);
    CHECK(
        raises<peer_error>([&] { b.run(failing, p, 0.1F, all_reduce_op{}); }, {"rank 1 is gone"}));
    CHECK(same_bits(b.residual.span(), u));
  }
}

TEST_CASE_TEMPLATE_DEFINE("nothing is lost on any survivor of a failure", Backend,
                          all_reduce_lost_peer) {
  if (!Backend::has_ranks(3)) return;
  masked_problem const p({300, 2}, 0.3);
  auto const body = [&](auto& comm) {
    if (comm.rank() == 1) throw std::runtime_error("lost");
    auto b = buffers_with<Backend, float16>({.exact = false}, p, p.plan.total(), comm.rank());
    auto const u = b.accumulated(0.1F);
    CHECK_THROWS_AS(b.run(comm, p, 0.1F, all_reduce_op{}), peer_error);
    CHECK(same_bits(b.residual.span(), u));
  };
  CHECK_THROWS_AS(
      Backend::ranks(3, body,
                     Backend::cuda ? std::chrono::milliseconds(300) : std::chrono::seconds(20)),
      std::runtime_error);
}

TEST_CASE_TEMPLATE_DEFINE("sizes that disagree are refused and nothing is changed", Backend,
                          all_reduce_arguments) {
  Backend::ranks(1, [](auto& comm) {
    masked_problem const p({130, 2}, 0.3);
    rank_inputs const inputs{false};
    auto b = buffers_with<Backend, float>(inputs, p, p.plan.total(), 0);
    auto const before = make_vector(130, [&](auto j) { return inputs.residual(0, j); });
    CHECK(rejects_mismatches<Backend>(p, "sparse_all_reduce", [&](masked_problem const& q) {
      b.run(comm, q, 0.1F, all_reduce_op{});
    }));
    auto const mask = mask_on<Backend>(p);
    Backend::run(collective_bytes<Backend, float>(p), [&](auto const& context) {
      auto const with = [&](auto change) {
        return [&, change] {
          auto gradient = std::span<float const>(b.gradient.span());
          auto residual = b.residual.span();
          auto values = b.values.span();
          auto ctx = context;
          change(gradient, residual, values, ctx);
          sparse_all_reduce(ctx, comm, p.l, p.plan, std::span<mask_word const>(mask), gradient,
                            residual, 0.1F, values);
        };
      };
      auto const total = std::to_string(p.plan.total());
      CHECK(rejects(with([](auto& g, auto&, auto&, auto&) { g = g.first(129); }),
                    {"sparse_all_reduce", "gradient", "129", "130"}));
      CHECK(rejects(with([](auto&, auto& e, auto&, auto&) { e = e.first(1); }),
                    {"residual", "1", "130"}));
      CHECK(rejects(with([](auto&, auto&, auto& v, auto&) { v = v.first(2); }),
                    {"values", "2", total}));
      CHECK(rejects(with([](auto&, auto&, auto&, auto& c) { c.scratch = c.scratch.first(100); }),
                    {"100 bytes", std::to_string(4 * p.plan.total())}));
    });
    CHECK(same_bits(b.residual.span(), before));
  });
}

}  // namespace scape::testing
