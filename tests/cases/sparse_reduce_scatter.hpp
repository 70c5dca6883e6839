// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of sparse_reduce_scatter that hold on every backend.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <scape/float16.hpp>
#include <scape/sparse_reduce_scatter.hpp>

#include "support/counting_communicator.hpp"
#include "support/failing_communicator.hpp"
#include "support/masked_buffers.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {

struct reduce_scatter_op {
  template <class Context, class Comm, class... Arguments>
  void operator()(Context const& ctx, Comm& comm, Arguments const&... arguments) const {
    sparse_reduce_scatter(ctx, comm, arguments...);
  }
};

//! For one rank, whose values are what it sent: sent + residual = u.
template <class Backend, class Wire, class Gradient>
void check_mass(typename Backend::communicator& comm) {
  for (std::uint64_t seed = 0; seed < 25; seed += Backend::cuda ? 6 : 1) {
    for (float const coefficient : {0.1F, 1.0F}) {
      CAPTURE(seed);
      auto const n = static_cast<std::int64_t>(seed * 37 % 700);
      masked_problem const p({n, 1}, 0.3, seed);
      masked_buffers<Backend, Wire, Gradient> b(
          p, p.plan.counts[0], [&](auto j) { return any_float(seed, 0, j); },
          [&](auto j) { return j % 7 == 0 ? any_float(seed, 1, j) : normal(seed, 1, 0, j); },
          static_cast<std::int64_t>(seed % 2));
      auto const u = b.accumulated(coefficient);
      b.run(comm, p, coefficient, reduce_scatter_op{});
      bool conserved = true, waits = true, finite_stays_finite = true, special = true;
      std::size_t next = 0;
      for (std::size_t j = 0; j < u.size(); ++j) {
        auto const e = b.residual.span()[j];
        if (p.bits[j] == 0) {
          waits = waits && (same_float(e, u[j]) || (e != e && u[j] != u[j]));
          continue;
        }
        auto const sent = static_cast<float>(b.values.span()[next++]);
        if (std::isfinite(u[j])) {
          finite_stays_finite = finite_stays_finite && std::isfinite(sent);
          conserved = conserved && double{sent} + double{e} == double{u[j]} && sent + e == u[j];
        } else {
          special = special && same_value(sent, u[j]) && same_float(e, 0);
        }
        if constexpr (std::is_same_v<Wire, float>) conserved = conserved && same_float(e, 0);
      }
      CHECK(next == b.values.span().size());
      CHECK(conserved);
      CHECK(waits);
      CHECK(finite_stays_finite);
      CHECK(special);
      CHECK(b.intact());
    }
  }
}

//! Sums of the ranks' own roundings, in rank order, arrive at the owner.
template <class Backend, class Wire, class Gradient = float>
void check_sums(typename Backend::communicator& comm, masked_problem const& p,
                rank_inputs const& inputs, std::int64_t offset = 0) {
  auto const rank = comm.rank();
  auto b = buffers_with<Backend, Wire, Gradient>(inputs, p, p.plan.counts[at(rank)], rank, offset);
  b.run(comm, p, inputs.coefficient(), reduce_scatter_op{});
  auto const elements = p.elements(rank);
  CHECK(same_bits(b.values.span(), make_vector(std::ssize(elements), [&](auto i) {
                    return inputs.sum<Wire, Gradient>(comm.size(), elements[at(i)]);
                  })));
  CHECK(same_bits(b.residual.span(), inputs.kept<Wire, Gradient>(p, comm.size(), rank)));
  CHECK(b.intact());
}

TEST_CASE_TEMPLATE_DEFINE("what is sent and what stays make up what was accumulated, on every wire",
                          Backend, reduce_scatter_mass) {
  Backend::ranks(1, [](auto& comm) {
    check_mass<Backend, float, float>(comm);
    check_mass<Backend, bfloat16, float>(comm);
    check_mass<Backend, float16, float>(comm);
    check_mass<Backend, bfloat16, bfloat16>(comm);
    check_mass<Backend, float, float16>(comm);
  });
}

TEST_CASE_TEMPLATE_DEFINE("the sums over the ranks arrive at the owners", Backend,
                          reduce_scatter_sums) {
  for (int const ranks : {1, 2, 3, 4, 7, 8}) {
    if (!Backend::has_ranks(ranks)) continue;
    for (bool const exact : {true, false}) {
      // NCCL sums in an order of its own.
      if ((Backend::cuda || requires { Backend::sums_on_two_levels; }) && !exact) continue;
      Backend::ranks(ranks, [&](auto& comm) {
        rank_inputs const inputs{exact};
        for (auto const& l : some_layouts(ranks)) {
          if (Backend::cuda && ranks > 3 && l.size() < 65) continue;
          CAPTURE(ranks);
          CAPTURE(l.size());
          CAPTURE(exact);
          check_sums<Backend, float>(comm, {l, 0.3}, inputs, 1);
          check_sums<Backend, bfloat16>(comm, {l, 0.1}, inputs, 1);
          check_sums<Backend, float16>(comm, {l, 1}, inputs);
          check_sums<Backend, float>(comm, {l, 0}, inputs);
        }
      });
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a long vector", Backend, reduce_scatter_long) {
  Backend::ranks(1, [](auto& comm) {
    check_sums<Backend, bfloat16, float16>(comm, {{100003, 1}, 0.1}, {.exact = false}, 1);
  });
}

TEST_CASE_TEMPLATE_DEFINE("residual, own and not averaged, for two ranks by hand", Backend,
                          reduce_scatter_by_hand) {
  if (!Backend::has_ranks(2)) return;
  masked_problem p({4, 2, layout_options{.alignment = 2}}, 0.5);
  p.mask = {0b10, 0b01};  // elements 1 and 2
  p.bits = {0, 1, 1, 0};
  Backend::ranks(2, [&](auto& comm) {
    auto const first = comm.rank() == 0;
    auto const gradient =
        first ? std::vector<float>{2, 4, 6, 8} : std::vector<float>{10, 514, 20, 30};
    masked_buffers<Backend, bfloat16> b(
        p, 1, [&](auto j) { return gradient[at(j)]; }, [&](auto) { return first ? 1 : 0; });
    b.run(comm, p, 0.5F, reduce_scatter_op{});
    // bfloat16 has 8 bits: 257 is sent as 256, and the sum 259 arrives as 260.
    auto const kept = first ? std::vector<float>{2, 0, 0, 5} : std::vector<float>{5, 1, 0, 15};
    CHECK(std::ranges::equal(b.residual.span(), kept));
    CHECK(static_cast<float>(b.values.span()[0]) == (first ? 260 : 10 + 4));
  });
}

TEST_CASE_TEMPLATE_DEFINE("a dense vector is summed under the mask and left alone", Backend,
                          reduce_scatter_dense) {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    if (!Backend::has_ranks(ranks) || (Backend::cuda && ranks > 3)) continue;
    Backend::ranks(ranks, [&](auto& comm) {
      for (auto const& l : some_layouts(ranks)) {
        masked_problem const p(l, 0.3);
        auto const mask = mask_on<Backend>(p);
        auto const before = integer_gradient(1, comm.rank(), 0, l.size());
        typename Backend::template vector<float> const dense(before.begin(), before.end());
        typename Backend::template vector<float> values(at(p.plan.counts[at(comm.rank())]));
        Backend::run(collective_bytes<Backend, float>(p), [&](auto const& ctx) {
          sparse_reduce_scatter(ctx, comm, l, p.plan, std::span<mask_word const>(mask),
                                std::span<float const>(dense), std::span<float>(values));
          complete(comm, ctx);
        });
        std::vector<float> expected;
        for (auto const j : p.elements(comm.rank())) {
          float sum = 0;
          for (int i = 0; i < ranks; ++i) sum += small_integer(1, i, 0, j, 8);
          expected.push_back(sum);
        }
        CHECK(same_bits(values, expected));
        CHECK(same_bits(dense, before));
      }
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("one reduce-scatter of the predicted bytes", Backend,
                          reduce_scatter_traffic) {
  if (!Backend::has_ranks(3)) return;
  Backend::ranks(3, [&](auto& inner) {
    for (auto const& l : some_layouts(3)) {
      if (Backend::cuda && l.size() < 65) continue;
      masked_problem const p(l, 0.2);
      counting_communicator<typename Backend::communicator> comm(inner);
      auto b = buffers_with<Backend, bfloat16>({}, p, p.plan.counts[at(comm.rank())], comm.rank());
      b.run(comm, p, 1, reduce_scatter_op{});
      CHECK(comm.reduce_scatters ==
            reduce_scatter_of(l, p.plan, comm.rank(), sizeof(bfloat16), Backend::cuda));
      CHECK(comm.gathers.calls + comm.all_reduces.calls + comm.broadcasts.calls == 0);
    }
  });
}

template <class Backend, class Wire>
void check_return(failure_point point) {
  failing_communicator<typename Backend::context> failing(point);
  masked_problem const p({500, 1}, 0.3);
  masked_buffers<Backend, Wire> b(
      p, p.plan.total(), [](auto j) { return any_float(5, 0, j); },
      [](auto j) { return j % 5 == 0 ? any_float(5, 1, j) : normal(5, 1, 0, j); }, 1);
  auto const u = b.accumulated(0.1F);
  CHECK(raises<peer_error>([&] { b.run(failing, p, 0.1F, reduce_scatter_op{}); },
                           {"rank 1 is gone"}));
  CHECK(std::ranges::equal(b.residual.span(), u, same_value));
  CHECK(b.intact());
}

TEST_CASE_TEMPLATE_DEFINE("nothing is lost when the collective fails", Backend,
                          reduce_scatter_failure) {
  for (auto const point : {failure_point::start, failure_point::wait}) {
    check_return<Backend, float>(point);
    check_return<Backend, bfloat16>(point);
    check_return<Backend, float16>(point);
  }
}

enum class peer_loss { throws, leaves, stalls };

TEST_CASE_TEMPLATE_DEFINE("nothing is lost on any survivor of a failure", Backend,
                          reduce_scatter_lost_peer) {
  if (!Backend::has_ranks(4)) return;
  for (auto const loss : {peer_loss::throws, peer_loss::leaves, peer_loss::stalls}) {
    CAPTURE(loss);
    // Equal shards, unequal ones, and with the last one empty.
    auto const alignment = loss == peer_loss::throws ? 1 : loss == peer_loss::leaves ? 96 : 128;
    masked_problem const p({300, 4, layout_options{.alignment = alignment}}, 0.3);
    bool const short_deadline = Backend::cuda || loss == peer_loss::stalls;
    auto const body = [&](auto& comm) {
      if (comm.rank() == 2) {
        if (loss == peer_loss::throws) throw std::runtime_error("no memory left");
        if (loss == peer_loss::stalls) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        return;
      }
      rank_inputs const inputs{false};
      auto const rank = comm.rank();
      auto b = buffers_with<Backend, bfloat16>(inputs, p, p.plan.counts[at(rank)], rank);
      auto const u = b.accumulated(inputs.coefficient());
      try {
        b.run(comm, p, inputs.coefficient(), reduce_scatter_op{});
        CHECK(p.plan.counts[at(rank)] == 0);
        CHECK(requires { Backend::receivers_of_nothing_wait_for_nobody; });
        return;
      } catch (peer_error const& e) {
        CHECK(e.peer() == (Backend::cuda ? -1 : 2));
      }
      CHECK(same_bits(b.residual.span(), u));
    };
    auto const start = std::chrono::steady_clock::now();
    try {
      Backend::ranks(4, body, std::chrono::milliseconds(short_deadline ? 300 : 20000));
      CHECK(Backend::cuda);  // the survivors' errors are caught, and leaving early is none
    } catch (std::exception const&) {
      CHECK((!Backend::cuda || loss == peer_loss::throws));
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  }
}

TEST_CASE_TEMPLATE_DEFINE("sizes that disagree are refused and nothing is changed", Backend,
                          reduce_scatter_arguments) {
  Backend::ranks(1, [](auto& comm) {
    masked_problem const p({130, 1}, 0.3);
    auto const one = [](auto) { return 1; };
    auto const two = [](auto) { return 2; };
    masked_buffers<Backend, float> b(p, 39, one, two);
    auto const unchanged = [&] {
      return std::ranges::count(b.residual.span(), 2.0F) == 130 &&
             std::ranges::count(b.values.span(), 0.0F) == 39;
    };
    CHECK(rejects_mismatches<Backend>(p, "sparse_reduce_scatter", [&](masked_problem const& q) {
      b.run(comm, q, 1, reduce_scatter_op{});
    }));
    CHECK(unchanged());

    auto const memory = mask_on<Backend>(p);
    auto const mask = std::span<mask_word const>(memory);
    auto const bytes = collective_bytes<Backend, float>(p);
    Backend::run(bytes, [&](auto const& context) {
      auto const with = [&](auto change) {
        return [&, change] {
          auto gradient = std::span<float const>(b.gradient.span());
          auto residual = b.residual.span();
          auto values = b.values.span();
          auto ctx = context;
          change(gradient, residual, values, ctx);
          sparse_reduce_scatter(ctx, comm, p.l, p.plan, mask, gradient, residual, 1.0F, values);
        };
      };
      CHECK(rejects(with([](auto& g, auto&, auto&, auto&) { g = g.first(129); }),
                    {"gradient", "129", "130"}));
      CHECK(rejects(with([](auto&, auto& e, auto&, auto&) { e = e.first(0); }),
                    {"residual", "0", "130"}));
      CHECK(rejects(with([](auto&, auto&, auto& v, auto&) { v = v.first(38); }),
                    {"values", "38", "39"}));
      CHECK(rejects(with([](auto&, auto&, auto&, auto& c) { c.scratch = c.scratch.first(100); }),
                    {"sparse_reduce_scatter", "100 bytes", "156"}));
      if constexpr (Backend::cuda) {  // enough for the values, not for the mask's ranks
        CHECK(rejects(with([](auto&, auto&, auto&, auto& c) { c.scratch = c.scratch.first(256); }),
                      {"sparse_reduce_scatter", "256 bytes"}));
      }
      auto const dense = std::span<float const>(b.gradient.span());
      CHECK(rejects(
          [&] {
            sparse_reduce_scatter(context, comm, p.l, p.plan, mask, dense.first(7),
                                  b.values.span());
          },
          {"dense", "7", "130"}));
      CHECK(rejects(
          [&] {
            sparse_reduce_scatter(context, comm, p.l, p.plan, mask, dense,
                                  b.values.span().first(1));
          },
          {"values", "1", "39"}));
    });
    masked_problem const halves({130, 2}, 0.3);
    CHECK(rejects([&] { b.run(comm, halves, 1, reduce_scatter_op{}); },
                  {"shards is 2", "expected 1"}));
    CHECK(unchanged());
  });
}

TEST_CASE_TEMPLATE_DEFINE("finite values have a finite sum on a float16 wire, and the rest waits",
                          Backend, reduce_scatter_limit) {
  constexpr int ranks = 4;
  if (!Backend::has_ranks(ranks)) return;
  masked_problem const p({64, ranks, layout_options{.alignment = 16}}, 1);
  Backend::ranks(ranks, [&](auto& comm) {
    masked_buffers<Backend, float16> b(
        p, 16, [](auto) { return 3e5F; }, [](auto) { return 0; });
    b.run(comm, p, 1, reduce_scatter_op{});
    for (auto const sum : b.values.span()) CHECK(static_cast<float>(sum) == 4 * 8192);
    for (auto const rest : b.residual.span()) CHECK(rest == 3e5F - 8192);
  });
}

TEST_CASE_TEMPLATE_DEFINE("a plan whose offsets do not fit its counts is refused", Backend,
                          reduce_scatter_plans) {
  Backend::ranks(1, [](auto& comm) {
    masked_problem p({64, 1}, 1);
    masked_buffers<Backend, float> b(
        p, 64, [](auto) { return 1; }, [](auto) { return 0; });
    auto const run = [&] { b.run(comm, p, 1, reduce_scatter_op{}); };
    run();
    CHECK(b.values.span()[63] == 1.0F);
    p.plan.offsets = {0, 500};
    CHECK(rejects(run, {"64", "500"}));
    p.plan.offsets = {7, 71};
    CHECK(rejects(run, {"first offset is 7", "expected 0"}));
    p.plan.offsets.clear();
    CHECK(rejects(
        [&] {
          Backend::run(1000, [&](auto const& ctx) {
            sparse_reduce_scatter(ctx, comm, p.l, p.plan, std::span<mask_word const>(p.mask),
                                  std::span<float const>(b.gradient.span()), b.values.span());
          });
        },
        {"offsets is 0", "expected 2"}));
  });
}

}  // namespace scape::testing
