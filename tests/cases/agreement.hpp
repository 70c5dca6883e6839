// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks that are about to do different things are told, on any backend of the host.

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <scape/agreement.hpp>
#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/counting_communicator.hpp"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {

inline agreement example_agreement() {
  return {.operation = "sparse_optimizer::step",
          .element = "float",
          .n = 1000,
          .shards = 4,
          .k = 100,
          .step = 7,
          .layout = 11,
          .mask = 12,
          .weights = 13};
}

//! f() throws on this rank a peer_error that names the culprit and contains the parts.
template <class F>
bool names_culprit(int culprit, F const& f, std::vector<std::string> const& parts) {
  try {
    f();
  } catch (peer_error const& e) {
    std::string_view const text = e.what();
    bool all = e.peer() == culprit;
    for (auto const& part : parts) all = all && text.find(part) != text.npos;
    return all;
  }
  return false;
}

TEST_CASE_TEMPLATE_DEFINE("every difference is named on every rank", Backend, agreement_1) {
  struct difference {
    std::function<void(agreement&)> change;
    std::vector<std::string> parts;
  };
  std::vector<difference> const differences = {
      {[](agreement& a) { a.operation = "dense_optimizer::step"; },
       {"the operation is dense_optimizer::step on rank 1", "and sparse_optimizer::step on rank"}},
      {[](agreement& a) { a.element = "scape::bfloat16"; },
       {"the element type is scape::bfloat16 on rank 1", "and float on rank"}},
      {[](agreement& a) { a.n = 1001; }, {"n is 1001 on rank 1", "and 1000 on rank"}},
      {[](agreement& a) { a.shards = 3; }, {"the number of shards is 3 on rank 1", "and 4 on"}},
      {[](agreement& a) { a.k = 99; }, {"k is 99 on rank 1", "and 100 on rank"}},
      {[](agreement& a) { a.step = 6; }, {"the step is 6 on rank 1", "and 7 on rank"}},
      {[](agreement& a) { a.layout = 1; }, {"fingerprint is 1 on rank 1", "and 11 on rank"}},
      {[](agreement& a) { a.mask = 1; }, {"the mask's hash is 1 on rank 1", "and 12 on rank"}},
      {[](agreement& a) { a.weights = 1; }, {"the weights' hash is 1 on rank 1", "and 13 on"}}};
  for (int const ranks : {1, 2, 3, 4, 7}) {
    if (!Backend::has_ranks(ranks)) continue;
    Backend::ranks(ranks, [&](auto& inner) {
      counting_communicator comm(inner);
      Backend::run(0, [&](auto const& ctx) {
        expect_agreement(ctx, comm, example_agreement());
        CHECK(comm.gathers == traffic{1, 104 * (ranks - 1)});
        for (auto const& d : differences) {
          if (ranks == 1) break;
          auto own = example_agreement();
          if (comm.rank() == 1) d.change(own);
          CHECK(names_culprit(
              1, [&] { expect_agreement(ctx, comm, own); }, d.parts));
        }
        expect_agreement(ctx, comm, example_agreement());
      });
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("two halves that differ are named, whichever ranks they are", Backend,
                          agreement_4) {
  for (unsigned const half : {0b0011U, 0b0101U, 0b0110U, 0b1001U, 0b1010U, 0b1100U}) {
    if (!Backend::has_ranks(4)) return;
    Backend::ranks(4, [&](auto& comm) {
      bool const in_half = ((half >> static_cast<unsigned>(comm.rank())) & 1U) != 0;
      Backend::run(0, [&](auto const& ctx) {
        auto own = example_agreement();
        own.element = in_half ? "unsigned long" : "long long";
        int const last = (half & 1U) == (half >> 3U) ? 2 : 3;  // of those who differ from rank 0
        CHECK(names_culprit(
            last, [&] { expect_agreement(ctx, comm, own); },
            {"long on rank " + std::to_string(last),
             (half & 1U) != 0 ? "and unsigned long on rank 0" : "and long long on rank 0"}));
      });
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("optimizers that are about to take different steps change nothing",
                          Backend, agreement_2) {
  if (!Backend::has_ranks(3)) return;
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.check_agreement = true;
  auto denser = o;
  denser.density = 0.2;
  denser.first = o.first = first_mask::statistic;
  layout const l(200, 3), longer(201, 3, layout_options{.boundaries = {0, 67, 134, 201}});
  Backend::ranks(3, [&](auto& comm) {
    bool const odd = comm.rank() == 1;
    auto const refused = [&](auto& r, std::vector<std::string> const& parts) {
      auto const before = r.state();
      auto const n = std::ssize(r.weights);
      auto const step = [&] { r.step(normal_gradient(4, comm.rank(), 0, n)); };
      return names_culprit(1, step, parts) && r.state() == before;
    };
    sparse_rig_on<Backend, adams> n(comm, odd ? longer : l, o), k(comm, l, odd ? denser : o),
        weights(comm, l, o), step(comm, l, o);
    CHECK(refused(n, {"n is 201 on rank 1", "and 200"}));
    CHECK(refused(k, {"k is", "on rank 1"}));
    if (odd) weights.weights[3] = 1e9F;
    CHECK(refused(weights, {"the weights' hash", "on rank 1"}));

    sparse_rig_on<Backend, adams, bfloat16> narrow(comm, l, o);
    if (odd) {
      CHECK(refused(narrow, {"the element type is scape::bfloat16 on rank 1", "and float on"}));
    } else {
      CHECK(refused(weights, {"the element type is scape::bfloat16 on rank 1", "and float on"}));
    }

    for (int t = 0; t < 3; ++t) step.step(normal_gradient(4, comm.rank(), t, 200));
    auto const early = step.saved();
    step.step(normal_gradient(4, comm.rank(), 3, 200));
    auto const late = step.saved();
    if (odd) step.load(early);
    CHECK(refused(step, {"the step is 3 on rank 1", "and 4 on rank"}));
    step.load(late);
    for (int t = 4; t < 8; ++t) step.step(normal_gradient(4, comm.rank(), t, 200));
    CHECK(step.steps() == 8);
  });
}

TEST_CASE_TEMPLATE_DEFINE("the check changes no bit of a training", Backend, agreement_3) {
  if (!Backend::has_ranks(3)) return;
  layout const l(300, 3, layout_options{.alignment = 1});
  for (int const lag : {0, 1, 2}) {
    auto plain = sparse_optimizer_options::staleness_aware(0.1);
    plain.lag = lag;
    auto checked = plain;
    checked.check_agreement = true;
    Backend::ranks(3, [&](auto& comm) {
      sparse_rig_on<Backend, adamw> a(comm, l, plain), b(comm, l, checked);
      dense_rig_on<Backend, adamw> c(comm, l, plain), d(comm, l, checked);
      for (int t = 0; t < 6; ++t) {
        auto const gradient = normal_gradient(5, comm.rank(), t, 300);
        a.step(gradient);
        b.step(gradient);
        CHECK(a.state() == b.state());
        c.step(gradient);
        d.step(gradient);
        CHECK(same_bits(c.current_weights(), d.current_weights()));
      }
    });
  }
}

}  // namespace scape::testing
