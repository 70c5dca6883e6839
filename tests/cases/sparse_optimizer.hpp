// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The sparse optimizer against the serial reference, on any backend with ranks.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/counting_communicator.hpp"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_optimizer.hpp"

namespace scape::testing {

using gradients_of_step = std::vector<std::vector<float>>;

//! A run that is compared with the reference after every step.
struct scenario {
  std::string name;
  layout parameters;
  sparse_optimizer_options options;
  topk_scope scope = topk_scope::shard;
  int steps = 10;
  float gradient_divisor = 1;
  int gradient_range = 8;
  std::function<gradients_of_step(std::int64_t)> gradients = {};

  [[nodiscard]] step_arguments arguments(std::int64_t step) const {
    return {.lr = 0.0625F * static_cast<float>(1 + step % 3), .gradient_divisor = gradient_divisor};
  }
  [[nodiscard]] gradients_of_step gradients_of(std::int64_t step) const {
    if (gradients) return gradients(step);
    gradients_of_step result;
    for (int i = 0; i < parameters.shards(); ++i) {
      result.push_back(integer_gradient(7, i, step, parameters.size(), gradient_range));
    }
    return result;
  }
};

template <class Wire>
constexpr int bits_of_wire = std::is_same_v<Wire, float>            ? 24
                             : std::is_same_v<Wire, scape::float16> ? 11
                                                                    : 8;

//! What differs between one rank's optimizer and the reference after the same step.
template <class Rig>
std::string difference(Rig& r, int rank, scenario const& s, step_report const& report,
                       reference_sparse_optimizer const& want) {
  auto const& l = s.parameters;
  auto const state = r.state();
  auto const same = [](auto const& got, auto const& expected, std::int64_t offset) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (static_cast<double>(got[i]) !=
          static_cast<double>(expected[i + static_cast<std::size_t>(offset)])) {
        return false;
      }
    }
    return true;
  };
  auto const step = want.step_count - 1;
  if (report.step != step) return "step";
  if (state.steps != want.step_count) return "steps()";
  if (elements_of(l, state.mask) != want.masks.at(step)) return "mask";
  if (mask_of(l, elements_of(l, state.mask)) != state.mask) {
    return "bits without an element";
  }
  if (!same(state.residual, want.residual[at(rank)], 0)) return "residual";
  if (!same(state.m, want.m, l.begin(rank))) return "first moment";
  if (!same(state.age, want.age, l.begin(rank))) return "age";
  for (std::int64_t j = 0; j < l.size(); ++j) {
    auto const error = std::abs(static_cast<double>(state.weights[at(j)]) - want.w[at(j)]);
    if (!(error <= want.weight_bound[at(j)])) return "weight " + std::to_string(j);
  }
  auto const n = static_cast<double>(l.size());
  auto const sent = static_cast<double>(want.values_of(step));
  if (report.density != (n == 0 ? 0 : sent / n)) return "density";
  if (step > 0 && report.mask_overlap != want.overlap(step)) return "overlap";
  double square = 0;
  for (auto const e : want.residual[at(rank)]) square += e * e;
  if (std::abs(report.residual_norm - std::sqrt(square)) > 1e-12 * std::sqrt(square)) {
    return "residual norm";
  }
  return {};
}

template <class Backend, class Rule, class Wire = float>
void compare(scenario const& s) {
  CAPTURE(s.name);
  auto const ranks = s.parameters.shards();
  if (!Backend::has_ranks(ranks)) return;
  auto const steps = Backend::cuda ? std::min(s.steps, 8) : s.steps;  // an emulator is slow
  auto const weights = initial_weights(s.parameters.size());
  reference_sparse_optimizer reference(reference_of(s.parameters, s.scope), s.options,
                                       Rule::keeps_second_moment, weights);
  reference.wire_bits = bits_of_wire<Wire>;
  std::vector<gradients_of_step> gradients;
  std::vector<reference_sparse_optimizer> expected;
  for (int t = 0; t < steps; ++t) {
    gradients.push_back(s.gradients_of(t));
    reference.step(gradients.back(), s.arguments(t));
    expected.push_back(reference);
  }
  CHECK(reference.inexact == 0);

  Backend::ranks(ranks, [&](auto& comm) {
    CAPTURE(s.name);
    sparse_rig_on<Backend, Rule, Wire> r(comm, s.parameters, s.options);
    for (int t = 0; t < steps; ++t) {
      auto const& report = r.step(gradients[at(t)][at(comm.rank())], s.arguments(t));
      CAPTURE(t);
      auto const what = difference(r, comm.rank(), s, report, expected[at(t)]);
      CHECK(what == "");
      if (!what.empty()) break;
    }
  });
}

inline std::string label(std::initializer_list<std::int64_t> numbers) {
  std::string text;
  for (auto const x : numbers) text += std::to_string(x) + " ";
  return text;
}

//! Weights with matrices, always-sent vectors, a frozen table and densities of their own; 300.
inline std::vector<parameter_span> model() {
  return {
      {.name = "wte", .offset = 0, .length = 100, .decay_scale = 0.5F},
      {.name = "ln.g",
       .offset = 100,
       .length = 10,
       .policy = span_policy::always,
       .decay_scale = 0},
      {.name = "pos", .offset = 110, .length = 37, .policy = span_policy::frozen},
      {.name = "ln.b", .offset = 147, .length = 3, .policy = span_policy::always, .decay_scale = 0},
      {.name = "head", .offset = 150, .length = 50, .density = 0.25, .lr_scale = 2},
      {.name = "never", .offset = 200, .length = 20, .density = 0},
      {.name = "proj", .offset = 220, .length = 80}};
}

TEST_CASE_TEMPLATE_DEFINE("every length and rank count equals the reference", Backend,
                          sparse_optimizer_1) {
  for (std::int64_t const n : {0, 1, 18, 63, 64, 65, 1000}) {
    for (int const ranks : {1, 2, 3, 4, 7, 8}) {
      for (std::int64_t const alignment : {64, 1}) {
        if (Backend::cuda && (n / 2 + ranks) % 2 == (alignment == 1 ? 1 : 0)) continue;
        scenario s{.name = label({n, ranks, alignment}),
                   .parameters = {n, ranks, layout_options{.alignment = alignment}},
                   .options = exact_options(0.1),
                   .steps = n == 1000 ? 12 : 6};
        if ((n + ranks) % 2 == 0) {
          compare<Backend, adams>(s);
        } else {
          compare<Backend, adamw>(s);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("unequal and empty shards equal the reference", Backend,
                          sparse_optimizer_2) {
  using boundaries = std::vector<std::int64_t>;
  for (auto const& b : {boundaries{0, 0, 130, 900, 1000}, boundaries{0, 1000, 1000},
                        boundaries{0, 1, 2, 2, 3, 70, 70, 71, 100}, boundaries{0, 0, 0, 5}}) {
    auto const ranks = static_cast<int>(b.size()) - 1;
    scenario s{.name = label({b.back(), ranks}),
               .parameters = {b.back(), ranks, layout_options{.boundaries = b}},
               .options = exact_options(0.15)};
    compare<Backend, adams>(s);
    compare<Backend, adamw>(s);
  }
}

TEST_CASE_TEMPLATE_DEFINE("statistics, lags and first masks equal the reference", Backend,
                          sparse_optimizer_3) {
  int variant = 0;
  for (auto const statistic :
       {statistic_kind::staleness_aware, statistic_kind::literal, statistic_kind::random}) {
    for (int const lag : {0, 1, 2, 4}) {
      for (auto const first : {first_mask::dense, first_mask::statistic}) {
        auto o = exact_options(0.1);
        o.statistic = statistic;
        o.lag = lag;
        o.first = first;
        o.seed = 12345;
        ++variant;
        o.density_ramp_steps = variant % 3 == 0 ? 7 : 0;
        o.unmasked = variant % 2 == 0 ? unmasked_moment::decay : unmasked_moment::hold;
        o.bias_correction = variant % 5 != 0;
        scenario const s{.name = label({static_cast<int>(statistic), lag, static_cast<int>(first)}),
                         .parameters = {200, 4, layout_options{.alignment = 1}},
                         .options = o,
                         .steps = 12};
        compare<Backend, adams>(s);
        if (lag < 4) compare<Backend, adamw>(s);
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("age scalings and their limit equal the reference", Backend,
                          sparse_optimizer_4) {
  for (auto const in_moment : {age_scaling::none, age_scaling::sqrt, age_scaling::linear}) {
    for (auto const in_step : {age_scaling::none, age_scaling::sqrt, age_scaling::linear}) {
      for (float const tau_max : {0.0F, 2.5F}) {
        auto o = exact_options(0.1);
        o.moment_scaling = in_moment;
        o.step_scaling = in_step;
        o.tau_max = tau_max;
        scenario const s{.name = label({static_cast<int>(in_moment), static_cast<int>(in_step)}),
                         .parameters = {130, 2},
                         .options = o,
                         .steps = 14};
        compare<Backend, adams>(s);
        compare<Backend, adamw>(s);
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("span policies, own densities, scales and scopes equal the reference",
                          Backend, sparse_optimizer_5) {
  for (int const ranks : {1, 2, 3, 4, 8}) {
    for (auto const scope : {topk_scope::shard, topk_scope::tensor}) {
      for (int const lag : {0, 1, 3}) {
        for (int const ramp : {0, 6}) {
          if (Backend::cuda && (lag + ramp / 6 + ranks) % 2 == 0) continue;
          auto o = exact_options(0.1);
          o.lag = lag;
          o.density_ramp_steps = ramp;
          o.unmasked = lag == 1 ? unmasked_moment::decay : unmasked_moment::hold;
          scenario const s{
              .name = label({ranks, static_cast<int>(scope), lag, ramp}),
              .parameters = {300, ranks, model(), layout_options{.alignment = 1, .scope = scope}},
              .options = o,
              .scope = scope};
          compare<Backend, adams>(s);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "16-bit wires round what is sent and keep the rest, as the reference does", Backend,
    sparse_optimizer_6) {
  for (int const ranks : {1, 2, 4, 7}) {
    // NCCL may round after every addition.
    if ((Backend::cuda || requires { Backend::sums_on_two_levels; }) && ranks > 2) continue;
    scenario s{.name = label({ranks}),
               .parameters = {300, ranks, layout_options{.alignment = 1}},
               .options = exact_options(0.2),
               .gradient_range = 3000};
    compare<Backend, adams, scape::bfloat16>(s);
    s.options.lag = 0;
    compare<Backend, adamw, scape::float16>(s);
  }
}

TEST_CASE_TEMPLATE_DEFINE("lags at densities near one have exact counts", Backend,
                          sparse_optimizer_7) {
  for (double const density : {0.3, 0.5, 0.97, 1.0}) {
    for (int const lag : {2, 4}) {
      auto o = exact_options(density);
      o.lag = lag;
      scenario const s{.name = label({lag, static_cast<int>(100 * density)}),
                       .parameters = {100, 2, layout_options{.alignment = 1}},
                       .options = o,
                       .steps = 12};
      compare<Backend, adams>(s);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("density 0 sends nothing after the first step and still ages", Backend,
                          sparse_optimizer_8) {
  auto o = exact_options(0);
  scenario const s{.name = "0", .parameters = {100, 3}, .options = o};
  compare<Backend, adams>(s);
}

TEST_CASE_TEMPLATE_DEFINE("the divisor divides and the clipping bounds, as computed by hand",
                          Backend, sparse_optimizer_9) {
  auto const gradient = [](float a, float b) {
    auto g = std::vector<float>(64);
    g[3] = a;
    g[40] = b;
    return g;
  };
  // Norms 20 and 4 before the divisor, 5 and 1 after it.
  auto const gradients = [&](std::int64_t) {
    return gradients_of_step{gradient(12, 16), gradient(0, 4)};
  };
  auto o = exact_options(0.25);
  o.clip_norm = 1.25F;
  scenario s{.name = "own",
             .parameters = {64, 2, layout_options{.alignment = 1}},
             .options = o,
             .gradient_divisor = 4,
             .gradients = gradients};
  compare<Backend, adams>(s);
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adams> r(comm, s.parameters, s.options);
    auto const& report = r.step(gradients(0)[at(comm.rank())], s.arguments(0));
    CHECK(report.gradient_norm == (comm.rank() == 0 ? 5 : 1));
    CHECK(report.clip_factor == (comm.rank() == 0 ? 0.25 : 1));
    // u = (1 - beta1) * factor * g / divisor; everything was sent, so the mean is in m.
    if (comm.rank() == 0) CHECK(r.state().m[3] == 0.5F * (0.5F * 0.25F * 3));
    if (comm.rank() == 1) CHECK(r.state().m[8] == 0.5F * (0.5F * 0.25F * 4 + 0.5F * 1));
  });

  // Norms 7 and 1: the root of the mean square is 5.
  auto const seven_and_one = [&](std::int64_t) {
    return gradients_of_step{gradient(28, 0), gradient(0, -4)};
  };
  s.name = "mean square";
  s.options.clip = scape::clip_scope::mean_square;
  s.gradients = seven_and_one;
  compare<Backend, adamw>(s);
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adams> r(comm, s.parameters, s.options);
    auto const& report = r.step(seven_and_one(0)[at(comm.rank())], s.arguments(0));
    CHECK(report.gradient_norm == (comm.rank() == 0 ? 7 : 1));
    CHECK(report.clip_factor == 0.25);
  });

  s.options.clip_norm = 5;
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adams> r(comm, s.parameters, s.options);
    CHECK(r.step(seven_and_one(0)[at(comm.rank())], s.arguments(0)).clip_factor == 1);
  });
}

//! Prefers high indices and old coordinates; a user's own statistic.
template <bool Before>
struct oldest_first {
  static constexpr bool before_send = Before;
  float weight = 1;
  SCAPE_HOST_DEVICE float operator()(scape::statistic_input const& in) const noexcept {
    return weight * (in.age * 4 + std::abs(in.residual)) + static_cast<float>(in.element % 3);
  }
};

template <class Backend, bool Before>
void compare_own_statistic(int lag) {
  layout const l(150, 3, layout_options{.alignment = 1});
  auto o = exact_options(0.1);
  o.lag = lag;
  reference_sparse_optimizer reference(reference_of(l), o, false, initial_weights(150));
  reference.statistic = [](reference_input const& in) {
    return to_float(2 * (in.age * 4 + std::abs(in.residual)) + static_cast<double>(in.element % 3));
  };
  reference.statistic_before_send = Before;
  scenario const s{.name = "own", .parameters = l, .options = o};
  std::vector<reference_sparse_optimizer> expected;
  for (int t = 0; t < s.steps; ++t) {
    reference.step(s.gradients_of(t), s.arguments(t));
    expected.push_back(reference);
  }
  using optimizer =
      scape::sparse_optimizer<adams, typename Backend::communicator, float, oldest_first<Before>>;
  Backend::ranks(3, [&](auto& comm) {
    rig_on<Backend, optimizer> r(comm, l, o, nullptr, oldest_first<Before>{2});
    for (int t = 0; t < s.steps; ++t) {
      auto const& report = r.step(s.gradients_of(t)[at(comm.rank())], s.arguments(t));
      CHECK(difference(r, comm.rank(), s, report, expected[at(t)]) == "");
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE(
    "a statistic of the user's own is used, before or after the send as it says", Backend,
    sparse_optimizer_10) {
  for (int const lag : {0, 1, 3}) {
    compare_own_statistic<Backend, true>(lag);
    compare_own_statistic<Backend, false>(lag);
  }
}

TEST_CASE_TEMPLATE_DEFINE("the random statistic is the same for the same seed only", Backend,
                          sparse_optimizer_11) {
  layout const l(640, 2);
  auto const masks_of = [&](std::uint64_t seed) {
    auto o = exact_options(0.1);
    o.statistic = statistic_kind::random;
    o.seed = seed;
    std::vector<std::vector<mask_word>> masks;
    Backend::ranks(2, [&](auto& comm) {
      sparse_rig_on<Backend, adams> r(comm, l, o);
      for (int t = 0; t < 5; ++t) {
        r.step(normal_gradient(comm.rank() == 0 ? seed : 5, comm.rank(), t, 640));
        if (comm.rank() == 0) masks.push_back(r.state().mask);
      }
    });
    return masks;
  };
  auto const first = masks_of(1);
  CHECK(first == masks_of(1));
  auto const other = masks_of(2);
  for (std::size_t t = 1; t < first.size(); ++t) {
    CHECK(first[t] != other[t]);
    CHECK(first[t] != first[t - 1]);
  }
}

TEST_CASE_TEMPLATE_DEFINE("pending masks do not meet, and all ranks have the same", Backend,
                          sparse_optimizer_12) {
  if (!Backend::has_ranks(4)) return;
  layout const l(1000, 4, layout_options{.alignment = 1});
  for (int const lag : {2, 4}) {
    auto o = sparse_optimizer_options::staleness_aware(0.1);
    o.lag = lag;
    constexpr int steps = 20;
    std::vector<std::vector<std::vector<char>>> masks(4);
    Backend::ranks(4, [&](auto& comm) {
      sparse_rig_on<Backend, adams> r(comm, l, o);
      for (int t = 0; t < steps; ++t) {
        r.step(normal_gradient(3, comm.rank(), t, 1000));
        masks[at(comm.rank())].push_back(elements_of(l, r.state().mask));
      }
    });
    if constexpr (requires { Backend::share(masks); }) Backend::share(masks);
    for (int i = 1; i < 4; ++i) CHECK(masks[at(i)] == masks[0]);
    for (int t = lag; t < steps; ++t) {
      CHECK(std::ranges::count(masks[0][at(t)], 1) == 100);
      for (int s = std::max(lag, t - lag + 1); s < t; ++s) {
        int common = 0;
        for (std::size_t j = 0; j < 1000; ++j) common += masks[0][at(s)][j] & masks[0][at(t)][j];
        CHECK(common == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("an Inf or NaN on one rank is skipped by all and leaves no trace",
                          Backend, sparse_optimizer_13) {
  layout const l(200, 3, layout_options{.alignment = 1});
  auto const bad_values = {std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN()};
  int variant = 0;
  for (auto const bad : bad_values) {
    for (int const lag : {0, 1, 2}) {
      auto o = sparse_optimizer_options::staleness_aware(0.1);
      o.lag = lag;
      o.first = variant % 4 < 2 ? first_mask::dense : first_mask::statistic;
      o.clip_norm = 1;
      o.clip =
          variant++ % 2 == 0 ? scape::clip_scope::own_gradient : scape::clip_scope::mean_square;
      Backend::ranks(3, [&](auto& comm) {
        sparse_rig_on<Backend, adamw> with(comm, l, o), without(comm, l, o);
        for (int t = 0; t < 9; ++t) {
          auto const good = normal_gradient(3, comm.rank(), t, 200);
          if (t % 4 == 0) {
            auto gradient = normal_gradient(4, comm.rank(), t, 200);
            if (comm.rank() == t / 4) gradient[at(199 - 90 * (t / 4))] = bad;
            auto const before = with.state();
            auto const& report = with.step(gradient);
            CHECK(report.skipped);
            CHECK(report.step == t);
            if (!Backend::cuda) {  // the host of a stream does not know
              CHECK(report.density == 0);
              CHECK(report.bytes.total() == report.bytes.control);
            }
            CHECK(with.state() == before);
          }
          CHECK_FALSE(with.step(good).skipped);
          without.step(good);
          CHECK(with.state() == without.state());
        }
        CHECK(with.skipped_steps() == 3);
        CHECK(without.skipped_steps() == 0);
      });
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("without the agreement a NaN goes through and shows", Backend,
                          sparse_optimizer_14) {
  layout const l(100, 2);
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.skip_nonfinite = false;
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adams> r(comm, l, o);
    auto gradient = normal_gradient(1, comm.rank(), 0, 100);
    r.step(gradient);
    if (comm.rank() == 1) gradient[7] = std::numeric_limits<float>::quiet_NaN();
    auto const& report = r.step(gradient);
    CHECK_FALSE(report.skipped);
    CHECK(report.bytes.control == 0);
    CHECK(report.gradient_norm == 0);  // not needed, not computed
    for (int t = 2; t < 20; ++t) r.step(normal_gradient(1, comm.rank(), t, 100));
    CHECK(std::isnan(r.state().weights[7]));
  });
}

TEST_CASE_TEMPLATE_DEFINE(
    "the statistics of the report cost nothing when off and change nothing when on", Backend,
    sparse_optimizer_15) {
  layout const l(500, 2);
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  auto on = o;
  on.statistics = true;
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adams> a(comm, l, o), b(comm, l, on);
    for (int t = 0; t < 5; ++t) {
      auto const gradient = normal_gradient(1, comm.rank(), t, 500);
      auto const& off_report = a.step(gradient);
      CHECK(off_report.mask_overlap == 0);
      CHECK(off_report.residual_norm == 0);
      auto const& on_report = b.step(gradient);
      if (t > 0) CHECK(on_report.residual_norm > 0);
      CHECK(a.state() == b.state());
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a loss scale that changes from step to step leaves no trace", Backend,
                          sparse_optimizer_16) {
  layout const l(200, 2);
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.clip_norm = 5;
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adamw> plain(comm, l, o), scaled(comm, l, o);
    for (int t = 0; t < 12; ++t) {
      auto gradient = normal_gradient(1, comm.rank(), t, 200);
      plain.step(gradient);
      auto const scale = std::ldexp(1.0F, 3 * (t % 5));
      for (auto& g : gradient) g *= scale;
      scaled.step(gradient, {.gradient_divisor = scale});
      CHECK(scaled.state() == plain.state());
    }
  });
}

template <class Backend, class Wire>
void check_traffic(layout const& l, sparse_optimizer_options const& o) {
  auto const ranks = l.shards();
  using counting = counting_communicator<typename Backend::communicator>;
  Backend::ranks(ranks, [&](auto& inner) {
    counting comm(inner);
    rig_on<Backend, sparse_optimizer<adamw, counting, Wire>> r(comm, l, o);
    for (int t = 0; t < 8; ++t) {
      CAPTURE(t);
      comm.reset();
      auto const bytes = r.step(normal_gradient(2, comm.rank(), t, l.size())).bytes;
      bool const dense = o.first == first_mask::dense && t < std::max(o.lag, 1);
      auto const plan = dense ? l.plan(1, 0) : l.plan(o.density, o.ramp(t));
      auto const gathered = (o.lag > 0 || !dense ? 1 : 0) + (!dense && t < o.lag ? 1 : 0);
      CHECK(comm.reduce_scatters ==
            reduce_scatter_of(l, plan, comm.rank(), sizeof(Wire), Backend::cuda));
      CHECK(comm.gathers.calls == 1 + gathered);
      CHECK(comm.all_reduces.calls == 1);
      CHECK(comm.broadcasts.calls == 0);
      CHECK(comm.barriers.calls == 0);
      CHECK(comm.gathers.bytes == bytes.parameters + bytes.mask);
      CHECK(comm.all_reduces.bytes == bytes.control);
      CHECK(bytes.values == l.value_wire_bytes(plan, comm.rank(), sizeof(Wire)));
      CHECK(bytes.parameters == l.value_wire_bytes(plan, comm.rank(), sizeof(float)));
      auto const made = l.plan(o.density, o.ramp(t + o.lag));
      auto const own = l.plan(o.density, o.ramp(t));
      auto const mask_bytes = [&](send_plan const& p) {
        return Backend::cuda ? l.mask_wire_bytes() : l.mask_wire_bytes(p, comm.rank());
      };
      CHECK(bytes.mask == (o.lag > 0 || !dense ? mask_bytes(made) : 0) +
                              (!dense && t < o.lag ? mask_bytes(own) : 0));
      CHECK(bytes.control == 2 * (ranks - 1) * 8 / ranks);
      CHECK(bytes.total() == bytes.values + bytes.parameters + bytes.mask + bytes.control);
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a step is three collectives and an agreement, of the predicted bytes",
                          Backend, sparse_optimizer_17) {
  for (int const lag : {0, 1, 2}) {
    for (auto const first : {first_mask::dense, first_mask::statistic}) {
      auto o = sparse_optimizer_options::staleness_aware(0.1);
      o.lag = lag;
      o.first = first;
      o.statistics = true;
      o.density_ramp_steps = lag == 1 ? 5 : 0;
      check_traffic<Backend, float>({1000, 4}, o);
      check_traffic<Backend, bfloat16>({1000, 3, layout_options{.boundaries = {0, 100, 100, 1000}}},
                                       o);
      check_traffic<Backend, float16>({300, 2, model(), layout_options{.alignment = 1}}, o);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("wrong options and arguments are refused and change nothing", Backend,
                          sparse_optimizer_18) {
  layout const l(100, 2);
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  Backend::ranks(2, [&](auto& comm) {
    using optimizer = sparse_optimizer<adams, typename Backend::communicator>;
    auto const good = sparse_optimizer_options::staleness_aware(0.1);
    auto const refuses = [&](auto change, std::string_view text) {
      auto o = good;
      change(o);
      typename Backend::buffer const storage(1 << 16);
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

    typename Backend::buffer const storage(optimizer::storage_bytes(l, good));
    CHECK(rejects([&] { optimizer(comm, layout(100, 3), good, storage.bytes()); },
                  {"sparse_optimizer", "size is 2", "expected 3"}));
    layout const huge((std::int64_t{1} << 61) - 1, 1);  // its bytes do not fit in 64 bits
    CHECK(optimizer::storage_bytes(huge, good) == std::numeric_limits<std::size_t>::max());
    CHECK(optimizer::scratch_bytes(huge, good) == std::numeric_limits<std::size_t>::max());
    auto const short_storage = storage.bytes().first(storage.bytes().size() / 2);
    CHECK(rejects([&] { optimizer(comm, l, good, short_storage); },
                  {"sparse_optimizer", std::to_string(short_storage.size()) + " bytes"}));

    sparse_rig_on<Backend, adams> r(comm, l, good);
    auto const gradient = normal_gradient(1, comm.rank(), 0, 100);
    typename Backend::template vector<float> const reachable(gradient.begin(), gradient.end());
    r.step(gradient);
    auto const before = r.state();
    auto const step_refuses = [&](auto change, std::initializer_list<std::string_view> texts) {
      auto ctx = r.ctx;
      auto weights = r.weight_span();
      auto g = std::span<float const>(reachable);
      step_arguments a;
      change(ctx, weights, g, a);
      return rejects([&] { r.optimizer.step(ctx, weights, g, a); }, texts) && r.state() == before;
    };
    using context = typename Backend::context;
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
    CHECK(r.steps() == 2);
  });
}

TEST_CASE_TEMPLATE_DEFINE("memory at any misalignment is enough", Backend, sparse_optimizer_19) {
  layout const l(130, 2, layout_options{.alignment = 1});
  auto const o = sparse_optimizer_options::staleness_aware(0.1);
  for (std::size_t const shift : {1U, 4U, 100U, 255U}) {
    Backend::ranks(2, [&](auto& comm) {
      using optimizer = sparse_optimizer<adamw, typename Backend::communicator>;
      sparse_rig_on<Backend, adamw> aligned(comm, l, o), r(comm, l, o);
      typename Backend::buffer const storage(optimizer::storage_bytes(l, o) + shift);
      typename Backend::buffer const scratch(optimizer::scratch_bytes(l, o) + shift);
      auto ctx = r.ctx;
      ctx.scratch = scratch.bytes().subspan(shift);
      optimizer shifted(comm, l, o, storage.bytes().subspan(shift));
      for (int t = 0; t < 3; ++t) {
        auto const gradient = normal_gradient(1, comm.rank(), t, 130);
        typename Backend::template vector<float> const reachable(gradient.begin(), gradient.end());
        shifted.step(ctx, r.weight_span(), std::span<float const>(reachable), {});
        aligned.step(gradient);
        CHECK(same_bits(r.current_weights(), aligned.current_weights()));
      }
    });
  }
}

}  // namespace scape::testing
