// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The dense optimizer against the serial reference and the sparse one, on any backend with ranks.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/counting_communicator.hpp"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_optimizer.hpp"

namespace scape::testing {

//! Warm-up, then a cosine.
inline step_arguments schedule(int t, int steps) {
  auto const x = static_cast<float>(t) / static_cast<float>(steps);
  return {.lr = 0.01F * std::min(1.0F, 10 * x) * (1 + std::cos(3.1415927F * x))};
}

inline std::vector<parameter_span> dense_model(std::int64_t n) {
  return {{.name = "a", .offset = 0, .length = n / 2, .lr_scale = 0.5F},
          {.name = "b",
           .offset = n / 2,
           .length = n / 4,
           .policy = span_policy::always,
           .decay_scale = 0},
          {.name = "c", .offset = n / 2 + n / 4, .length = n - n / 2 - n / 4}};
}

inline adam_options dense_options_of(sparse_optimizer_options const& o) { return o; }

//! Density 1, at every lag, with and without a ramp, against the dense optimizer.
template <class Backend, class Rule, class Gradient = float>
void check_density_one(layout const& l, adam_options const& base, int steps) {
  Backend::ranks(l.shards(), [&](auto& comm) {
    dense_rig_on<Backend, Rule> dense(comm, l, base);
    std::vector<std::unique_ptr<sparse_rig_on<Backend, Rule>>> sparse;
    for (int const lag : {0, 1, 2}) {
      for (int const ramp : {0, 10}) {
        if (Backend::cuda && (lag == 1) != (ramp == 10)) continue;  // an emulator is slow
        sparse_optimizer_options o;
        static_cast<adam_options&>(o) = base;
        o.density = 1;
        o.lag = lag;
        o.density_ramp_steps = ramp;
        sparse.push_back(std::make_unique<sparse_rig_on<Backend, Rule>>(comm, l, o));
      }
    }
    bool equal = true, same_report = true;
    for (int t = 0; t < steps; ++t) {
      auto const gradient =
          make_vector(l.size(), [&](auto j) { return Gradient(normal(11, comm.rank(), t, j)); });
      auto const arguments = schedule(t, steps);
      auto const report = dense.step(gradient, arguments);
      for (auto const& s : sparse) {
        auto const& other = s->step(gradient, arguments);
        equal = equal && same_bits(dense.current_weights(), s->current_weights());
        equal = equal && same_bits(dense.first_moment(), s->first_moment());
        same_report = same_report && report.gradient_norm == other.gradient_norm &&
                      report.clip_factor == other.clip_factor &&
                      report.bytes.values == other.bytes.values &&
                      report.bytes.parameters == other.bytes.parameters;
      }
    }
    CHECK(equal);
    CHECK(same_report);
    CHECK(std::ranges::all_of(dense.current_weights(), [](float w) { return std::isfinite(w); }));
  });
}

TEST_CASE_TEMPLATE_DEFINE("density 1 equals the dense optimizer bit for bit", Backend,
                          dense_optimizer_1) {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    if (Backend::cuda && ranks == 7) continue;
    for (bool const clip : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(clip);
      layout const l(150, ranks, dense_model(150), layout_options{.alignment = 1});
      adam_options o;
      o.weight_decay = 0.1F;
      o.clip_norm = clip ? 2.0F : 0.0F;
      o.clip = ranks % 2 == 0 ? scape::clip_scope::mean_square : scape::clip_scope::own_gradient;
      int const steps = Backend::cuda ? 6 : 50;
      check_density_one<Backend, adams>(l, o, steps);
      check_density_one<Backend, adamw>(l, o, steps);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "density 1 equals the dense optimizer for 16-bit gradients and unequal shards", Backend,
    dense_optimizer_2) {
  adam_options o;
  o.weight_decay = 0.1F;
  o.bias_correction = false;
  layout const unequal(300, 3, layout_options{.boundaries = {0, 0, 37, 300}});
  check_density_one<Backend, adams, scape::bfloat16>(unequal, o, Backend::cuda ? 6 : 20);
  check_density_one<Backend, adamw, scape::float16>(unequal, o, Backend::cuda ? 6 : 20);
  check_density_one<Backend, adams>({0, 2}, o, 3);
  check_density_one<Backend, adams>({1, 4}, o, 10);
}

TEST_CASE_TEMPLATE_DEFINE("the dense step equals the serial reference", Backend,
                          dense_optimizer_3) {
  for (int const ranks : {1, 2, 3, 4, 7, 8}) {
    for (std::int64_t const n : {0, 1, 18, 64, 65, 300}) {
      CAPTURE(ranks);
      CAPTURE(n);
      if (Backend::cuda && ranks > 4 && n != 65) continue;
      auto spans = dense_model(n);
      spans[2].policy = n % 2 == 0 ? span_policy::frozen : span_policy::sparse;
      layout const l(n, ranks, spans, layout_options{.alignment = ranks % 2 == 0 ? 64 : 1});
      auto const o = dense_options_of(exact_options(1));
      auto const weights = initial_weights(n);
      constexpr int steps = Backend::cuda ? 4 : 8;
      auto const run = [&]<class Rule>(Rule) {
        reference_dense_optimizer reference(reference_of(l), o, Rule::keeps_second_moment, weights);
        std::vector<reference_dense_optimizer> expected;
        for (int t = 0; t < steps; ++t) {
          std::vector<std::vector<float>> gradients;
          for (int i = 0; i < ranks; ++i) gradients.push_back(integer_gradient(5, i, t, n));
          reference.step(gradients, {.lr = 0.03125F, .gradient_divisor = 2});
          expected.push_back(reference);
        }
        if (!Backend::has_ranks(ranks)) return;
        Backend::ranks(ranks, [&](auto& comm) {
          dense_rig_on<Backend, Rule> r(comm, l, o);
          for (int t = 0; t < steps; ++t) {
            r.step(integer_gradient(5, comm.rank(), t, n), {.lr = 0.03125F, .gradient_divisor = 2});
            auto const& want = expected[at(t)];
            bool same_moments = true, close = true;
            auto const m = r.first_moment();
            auto const w = r.current_weights();
            for (std::int64_t j = 0; j < std::ssize(m); ++j) {
              same_moments =
                  same_moments && double{m[at(j)]} == want.m[at(l.begin(comm.rank()) + j)];
            }
            for (std::int64_t j = 0; j < n; ++j) {
              close =
                  close && std::abs(double{w[at(j)]} - want.w[at(j)]) <= want.weight_bound[at(j)];
            }
            CHECK(same_moments);
            CHECK(close);
          }
        });
      };
      run(adams{});
      run(adamw{});
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("an Inf or NaN on one rank is skipped by all", Backend,
                          dense_optimizer_4) {
  layout const l(100, 3, layout_options{.alignment = 1});
  Backend::ranks(3, [&](auto& comm) {
    dense_rig_on<Backend, adamw> with(comm, l, adam_options{}), without(comm, l, adam_options{});
    for (int t = 0; t < 6; ++t) {
      auto const gradient = normal_gradient(1, comm.rank(), t, 100);
      if (t % 2 == 1) {
        auto bad = gradient;
        if (comm.rank() == t / 2) bad[50] = std::numeric_limits<float>::quiet_NaN();
        auto const before = with.current_weights();
        CHECK(with.step(bad).skipped);
        CHECK(same_bits(before, with.current_weights()));
      }
      with.step(gradient);
      without.step(gradient);
      CHECK(same_bits(with.current_weights(), without.current_weights()));
      CHECK(same_bits(with.first_moment(), without.first_moment()));
    }
    CHECK(with.skipped_steps() == 3);
    CHECK(with.steps() == 6);
  });
}

TEST_CASE_TEMPLATE_DEFINE("one step by hand", Backend, dense_optimizer_5) {
  // g = 2, beta1 = 1/2, beta2 = 3/4, all corrections: m = 1, m c1 = 2, v = 1/4 * 4 = 1, v c2 = 4.
  adam_options o;
  o.beta1 = 0.5F;
  o.beta2 = 0.75F;
  o.weight_decay = 0.5F;
  layout const l(1, 1);
  Backend::ranks(1, [&](auto& comm) {
    dense_rig_on<Backend, adamw> r(comm, l, o);
    r.set_weights({4});
    auto const report = r.step(std::vector<float>{2}, {.lr = 0.125F});
    CHECK(r.current_weights()[0] ==
          doctest::Approx(4 - 0.125 * (2.0 / 2.0 + 0.5 * 4)).epsilon(1e-6));
    CHECK(r.first_moment()[0] == 1);
    CHECK(report.step == 0);
    CHECK(report.density == 1);
    CHECK(report.gradient_norm == 2);
    CHECK(r.steps() == 1);
  });
}

TEST_CASE_TEMPLATE_DEFINE("the traffic is that of one reduce-scatter and one all-gather", Backend,
                          dense_optimizer_6) {
  using counting = counting_communicator<typename Backend::communicator>;
  layout const l(1000, 3, layout_options{.boundaries = {0, 100, 100, 1000}});
  Backend::ranks(3, [&](auto& inner) {
    counting comm(inner);
    rig_on<Backend, dense_optimizer<adams, counting>> r(comm, l, adam_options{});
    for (int t = 0; t < 3; ++t) {
      comm.reset();
      auto const bytes = r.step(normal_gradient(1, comm.rank(), t, 1000)).bytes;
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

TEST_CASE_TEMPLATE_DEFINE("wrong options and arguments are refused and change nothing", Backend,
                          dense_optimizer_7) {
  using optimizer = dense_optimizer<adamw, typename Backend::communicator>;
  layout const l(10, 1);
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  adam_options bad;
  bad.beta1 = 1;
  Backend::ranks(1, [&](auto& comm) {
    dense_rig_on<Backend, adamw> r(comm, l, adam_options{});
    auto const storage = r.storage.bytes();
    CHECK(rejects([&] { optimizer(comm, l, bad, storage); }, {"dense_optimizer", "beta1"}));
    CHECK(rejects([&] { optimizer(comm, layout(10, 2), {}, storage); }, {"is 1", "expected 2"}));
    CHECK(rejects([&] { optimizer(comm, l, {}, storage.first(200)); }, {"200 bytes"}));

    auto const gradient = normal_gradient(1, 0, 0, 10);
    typename Backend::template vector<float> const reachable(gradient.begin(), gradient.end());
    std::span<float const> const g(reachable);
    auto const w = r.weight_span();
    auto const weights = r.current_weights();
    auto& opt = r.optimizer;
    CHECK(rejects([&] { opt.step(r.ctx, w.first(9), g, {}); }, {"weights", "9", "10"}));
    CHECK(rejects([&] { opt.step(r.ctx, w, g.first(3), {}); }, {"gradient", "3", "10"}));
    CHECK(rejects([&] { opt.step(r.ctx, w, g, {.lr = nan}); }, {"learning rate"}));
    CHECK(rejects([&] { opt.step(r.ctx, w, g, {.gradient_divisor = 0}); }, {"divisor"}));
    auto tight = r.ctx;
    tight.scratch = tight.scratch.first(tight.scratch.size() - 1);
    CHECK(rejects([&] { opt.step(tight, w, g, {}); },
                  {std::to_string(tight.scratch.size()), std::to_string(r.ctx.scratch.size())}));
    CHECK(same_bits(weights, r.current_weights()));
    CHECK(r.steps() == 0);
  });
}

}  // namespace scape::testing
