// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of single_buffer_moment_rebuild that hold on every backend.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <scape/float16.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/options.hpp>
#include <scape/single_buffer_moment_rebuild.hpp>

#include "support/backend.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_bitmask.hpp"
#include "support/reference_optimizer.hpp"

namespace scape::testing {

inline std::vector<parameter_span> rebuild_model(std::int64_t n) {
  return {{.name = "a", .offset = 0, .length = n / 2, .lr_scale = 0.5F},
          {.name = "frozen", .offset = n / 2, .length = n / 4, .policy = span_policy::frozen},
          {.name = "c", .offset = n / 2 + n / 4, .length = n - n / 2 - n / 4, .decay_scale = 2}};
}

//! The state of one shard, `offset` elements past an aligned address.
template <class Backend, class Rule, class Wire = float>
struct rebuilt_shard {
  template <class T>
  using guarded_on = guarded<T, typename Backend::template vector<std::byte>>;

  guarded_on<float> m, v, w;
  guarded_on<std::uint16_t> age;
  guarded_on<Wire> values;

  rebuilt_shard(std::int64_t n, std::int64_t k, std::int64_t offset = 0)
      : m(integer_gradient(1, 0, 0, n), offset),
        v(Rule::keeps_second_moment ? make_vector(n, [](auto j) { return float(1 + j % 5); })
                                    : std::vector<float>(),
          offset),
        w(initial_weights(n), offset),
        age(make_vector(n, [](auto j) { return static_cast<std::uint16_t>(j % 9); }), offset),
        values(make_vector(k, [](auto i) { return Wire(small_integer(2, 0, 0, i, 8)); }), offset) {}

  void run(layout const& l, int p, std::span<mask_word const> mask, rebuild_scalars const& scalars,
           unmasked_moment unmasked) {
    typename Backend::template vector<mask_word> const bits(mask.begin(), mask.end());
    Backend::run(Backend::rebuild_bytes(l), [&](auto const& ctx) {
      single_buffer_moment_rebuild<Rule>(ctx, l, p, std::span<mask_word const>(bits),
                                         std::span<Wire const>(values.span()), scalars, unmasked,
                                         moment_state{m.span(), v.span(), age.span()}, w.span());
    });
  }
  [[nodiscard]] bool intact() const {
    return m.intact() && v.intact() && w.intact() && age.intact() && values.intact();
  }
  //! The same bits, or both NaN: which NaN arithmetic makes is up to the target.
  template <class Other>
  [[nodiscard]] bool equals(Other& other) {
    auto const alike = [](float a, float b) {
      return same_bits(std::span(&a, 1), std::span(&b, 1)) || (std::isnan(a) && std::isnan(b));
    };
    return std::ranges::equal(m.span(), other.m.span(), alike) &&
           std::ranges::equal(v.span(), other.v.span(), alike) &&
           std::ranges::equal(w.span(), other.w.span(), alike) &&
           same_bits(age.span(), other.age.span());
  }
};

//! The host without a pool, to compare with.
struct rebuild_on_host : host_backend {
  static std::size_t rebuild_bytes(layout const&) { return 0; }
};

inline std::span<mask_word const> block_of(masked_problem const& p, int s) {
  return std::span(p.mask).subspan(at(s * p.l.words_per_shard()), at(p.l.words_per_shard()));
}

template <class Backend, class Rule, class Wire>
void check_against_reference(layout const& l, double density, reference_update const& update,
                             unmasked_moment unmasked, std::int64_t offset) {
  constexpr std::int64_t step = 4;
  constexpr float lr = 0.0625F;
  auto scalars = detail::scalars_of(update.options, {.lr = lr}, update.ranks, step);
  scalars.moment_scaling = update.moment_scaling;
  scalars.step_scaling = update.step_scaling;
  if (std::isfinite(update.tau_max)) scalars.tau_max = static_cast<float>(update.tau_max);
  masked_problem const p(l, density);
  auto const where = reference_layout{{0, l.size()}, {l.spans().begin(), l.spans().end()}};
  for (int s = 0; s < l.shards(); ++s) {
    auto const k = p.plan.counts[at(s)];
    rebuilt_shard<Backend, Rule, Wire> state(l.shard_size(s), k, offset);
    rebuilt_shard<rebuild_on_host, Rule, Wire> before(l.shard_size(s), k), host(before);
    state.run(l, s, block_of(p, s), scalars, unmasked);
    host.run(l, s, block_of(p, s), scalars, unmasked);
    CHECK(state.equals(host));
    CHECK(state.intact());

    std::size_t next = 0;
    bool moments = true, seconds = true, weights = true, ages = true;
    for (std::size_t i = 0; i < state.w.span().size(); ++i) {
      auto const j = l.begin(s) + static_cast<std::int64_t>(i);
      auto const& span = where.spans[where.span_of(j)];
      auto const age = before.age.span()[i];
      double m = before.m.span()[i], w = before.w.span()[i], bound = 0;
      double v = Rule::keeps_second_moment ? before.v.span()[i] : 0;
      if (p.bits[at(j)] != 0) {
        update(step, double{lr} * double{span.lr_scale},
               double{update.options.weight_decay} * double{span.decay_scale},
               static_cast<float>(before.values.span()[next++]), age + 1, m, v, w, bound);
      } else if (unmasked == unmasked_moment::decay && span.policy != span_policy::frozen) {
        m *= double{update.options.beta1};
      }
      moments = moments && double{state.m.span()[i]} == m;
      if (Rule::keeps_second_moment) {
        seconds = seconds && std::abs(double{state.v.span()[i]} - v) <= 13 * 0x1p-24 * v;
      }
      weights = weights && std::abs(double{state.w.span()[i]} - w) <= bound;
      ages = ages && state.age.span()[i] == (p.bits[at(j)] != 0 ? 0 : age + 1);
    }
    CHECK(next == before.values.span().size());
    CHECK(moments);
    CHECK(seconds);
    CHECK(weights);
    CHECK(ages);
  }
}

TEST_CASE_TEMPLATE_DEFINE("moments, ages and weights equal the serial reference", Backend,
                          rebuild_reference) {
  adam_options o;
  o.beta1 = 0.5F;
  o.beta2 = 0.75F;
  o.weight_decay = 0.125F;
  int variant = 0;
  for (std::int64_t const n : {0, 1, 63, 64, 65, 300, 1000}) {
    for (double const density : {0.0, 0.1, 0.5, 1.0}) {
      for (auto const scaling : {age_scaling::none, age_scaling::sqrt, age_scaling::linear}) {
        CAPTURE(n);
        CAPTURE(density);
        ++variant;
        o.bias_correction = variant % 3 != 0;
        layout const l(n, 1 + variant % 3, rebuild_model(n), layout_options{.alignment = 1});
        reference_update update{.options = o,
                                .ranks = 1 << variant % 3,
                                .moment_scaling = scaling,
                                .step_scaling = variant % 2 == 0 ? scaling : age_scaling::none};
        if (variant % 4 == 0) update.tau_max = 3;
        auto const unmasked = variant % 2 == 0 ? unmasked_moment::decay : unmasked_moment::hold;
        auto const offset = variant / 2 % 2;
        check_against_reference<Backend, adams, float>(l, density, update, unmasked, offset);
        check_against_reference<Backend, adams, float16>(l, density, update, unmasked, offset);
        update.second_moment = true;
        check_against_reference<Backend, adamw, bfloat16>(l, density, update, unmasked, offset);
      }
    }
  }
}

//! Any moments, weights and values: infinities, NaN and denormals among them.
template <class Backend, class Rule, class Wire>
void check_any(std::int64_t n, age_scaling scaling) {
  masked_problem const p({n, 1, rebuild_model(n)}, 0.3);
  auto const k = p.plan.total();
  rebuilt_shard<rebuild_on_host, Rule, Wire> host(n, k);
  for (std::int64_t j = 0; j < n; ++j) {
    auto const any = [&](int seed) { return any_float(at(seed), 0, j); };
    host.m.span()[at(j)] = j % 3 == 0 ? any(1) : normal(1, 0, 0, j);
    if (Rule::keeps_second_moment) {
      host.v.span()[at(j)] = std::abs(j % 5 == 0 ? any(2) : normal(2, 0, 0, j));
    }
    host.w.span()[at(j)] = j % 7 == 0 ? any(3) : normal(3, 0, 0, j);
    host.age.span()[at(j)] = static_cast<std::uint16_t>(scramble(4, at(j)) >> j % 16);
  }
  for (std::int64_t i = 0; i < k; ++i) {
    host.values.span()[at(i)] = Wire(i % 4 == 0 ? any_float(5, 0, i) : normal(5, 0, 0, i));
  }
  rebuilt_shard<Backend, Rule, Wire> state(n, k, 1);
  std::ranges::copy(host.m.span(), state.m.span().begin());
  std::ranges::copy(host.v.span(), state.v.span().begin());
  std::ranges::copy(host.w.span(), state.w.span().begin());
  std::ranges::copy(host.age.span(), state.age.span().begin());
  std::ranges::copy(host.values.span(), state.values.span().begin());
  auto scalars = detail::scalars_of({.weight_decay = 0.1F}, {.lr = 0.01F}, 3, 7);
  scalars.moment_scaling = scalars.step_scaling = scaling;
  state.run(p.l, 0, p.mask, scalars, unmasked_moment::decay);
  host.run(p.l, 0, p.mask, scalars, unmasked_moment::decay);
  CHECK(state.equals(host));
  CHECK(state.intact());
}

TEST_CASE_TEMPLATE_DEFINE("any inputs give the bits of the host", Backend, rebuild_any) {
  for (auto const scaling : {age_scaling::none, age_scaling::sqrt, age_scaling::linear}) {
    check_any<Backend, adams, float>(1000, scaling);
    check_any<Backend, adams, bfloat16>(65, scaling);
    check_any<Backend, adamw, float>(1000, scaling);
    check_any<Backend, adamw, float16>(1000, scaling);
  }
  check_any<Backend, adamw, bfloat16>(100003, age_scaling::sqrt);
}

TEST_CASE_TEMPLATE_DEFINE("one coordinate by hand", Backend, rebuild_by_hand) {
  layout const l(1, 1);
  rebuild_scalars c;
  c.mean = 0.25F;  // four ranks
  c.beta1 = 0.5F;
  c.inverse_one_minus_beta1 = 2;
  c.beta2 = 0.75F;
  c.one_minus_beta2 = 0.25F;
  c.learning_rate = 0.5F;
  c.epsilon = 1e-30F;
  c.weight_decay = 0.5F;
  std::vector<mask_word> const mask = {1};
  auto const set = [](auto& state) {
    state.m.span()[0] = 4;
    state.w.span()[0] = 1;
    state.age.span()[0] = 3;
    state.values.span()[0] = 8;
  };
  // u = 8/4 = 2, tau = 4, s = 2, g = 2*2/2 = 2. AdamS: v = 3/4 * 16 + 1/4 * 4 = 13.
  rebuilt_shard<Backend, adams> a(1, 1);
  set(a);
  a.run(l, 0, mask, c, unmasked_moment::hold);
  CHECK(a.m.span()[0] == 4);
  CHECK(a.age.span()[0] == 0);
  CHECK(a.w.span()[0] == doctest::Approx(1 - 0.5 * (2 * 4 / std::sqrt(13.0) + 0.5)).epsilon(1e-6));
  // AdamW: v = 3/4 * 32 + 1/4 * 4 = 25.
  rebuilt_shard<Backend, adamw> b(1, 1);
  set(b);
  b.v.span()[0] = 32;
  b.run(l, 0, mask, c, unmasked_moment::hold);
  CHECK(b.m.span()[0] == 4);
  CHECK(b.v.span()[0] == 25);
  CHECK(b.w.span()[0] == doctest::Approx(1 - 0.5 * (2 * 4 / 5.0 + 0.5)).epsilon(1e-6));
}

TEST_CASE_TEMPLATE_DEFINE("ages stop at their largest value, and zeros do no harm", Backend,
                          rebuild_ages) {
  rebuilt_shard<Backend, adams> a(3, 1);
  std::ranges::copy(std::vector<std::uint16_t>{65535, 65535, 65534}, a.age.span().begin());
  std::ranges::fill(a.m.span(), 0.0F);
  a.values.span()[0] = 0;
  a.run({3, 1}, 0, std::vector<mask_word>{0b001}, {}, unmasked_moment::hold);
  CHECK(std::ranges::equal(a.age.span(), std::vector<std::uint16_t>{0, 65535, 65535}));
  CHECK(same_bits(a.w.span(), initial_weights(3)));  // 0 / (sqrt(0) + eps)
  CHECK(a.m.span()[0] == 0);
}

TEST_CASE_TEMPLATE_DEFINE("a NaN stays with its coordinate", Backend, rebuild_nan) {
  masked_problem const p({100, 1}, 0.3);
  rebuilt_shard<Backend, adamw> a(100, 30), b(100, 30);
  a.values.span()[4] = std::numeric_limits<float>::quiet_NaN();
  a.run(p.l, 0, p.mask, {}, unmasked_moment::hold);
  b.run(p.l, 0, p.mask, {}, unmasked_moment::hold);
  auto const hit = at(p.elements(0)[4]);
  for (std::size_t j = 0; j < 100; ++j) {
    CHECK(std::isnan(a.w.span()[j]) == (j == hit));
    if (j != hit) CHECK(a.w.span()[j] == b.w.span()[j]);
  }
}

TEST_CASE_TEMPLATE_DEFINE("sizes that disagree are refused and nothing is changed", Backend,
                          rebuild_arguments) {
  layout const l(130, 2, layout_options{.alignment = 1});
  masked_problem const p(l, 0.4);
  auto const words = block_of(p, 1);
  typename Backend::template vector<mask_word> const memory(words.begin(), words.end());
  rebuilt_shard<Backend, adamw> state(65, 26), before(65, 26);
  Backend::run(Backend::rebuild_bytes(l), [&](auto const& context) {
    auto const with = [&](auto change) {
      return [&, change] {
        auto mask = std::span<mask_word const>(memory);
        auto values = std::span<float const>(state.values.span());
        moment_state moments{state.m.span(), state.v.span(), state.age.span()};
        auto w = state.w.span();
        int rank = 1;
        auto ctx = context;
        change(mask, values, moments, w, rank, ctx);
        single_buffer_moment_rebuild<adamw>(ctx, l, rank, mask, values, rebuild_scalars{},
                                            unmasked_moment::decay, moments, w);
      };
    };
    CHECK(rejects(with([](auto& mask, auto&...) { mask = mask.first(1); }),
                  {"single_buffer_moment_rebuild", "mask", "1", "2"}));
    CHECK(rejects(with([](auto&, auto&, auto& s, auto&...) { s.m = s.m.first(64); }),
                  {"length of m ", "64", "65"}));
    CHECK(rejects(with([](auto&, auto&, auto& s, auto&...) { s.v = {}; }),
                  {"length of v ", "0", "65"}));
    CHECK(rejects(with([](auto&, auto&, auto& s, auto&...) { s.age = s.age.first(1); }),
                  {"length of age ", "1", "65"}));
    CHECK(rejects(with([](auto&, auto&, auto&, auto& w, auto&...) { w = w.first(2); }),
                  {"length of weights ", "2", "65"}));
    CHECK(rejects(with([](auto&, auto&, auto&, auto&, auto& rank, auto&) { rank = 2; }),
                  {"shard", "2"}));
    CHECK(rejects(with([](auto&, auto&, auto&, auto&, auto& rank, auto&) { rank = -1; }),
                  {"shard", "-1"}));
    if constexpr (Backend::cuda) {
      CHECK(rejects(with([](auto&, auto&, auto&, auto&, auto&, auto& ctx) {
                      ctx.scratch = ctx.scratch.first(ctx.scratch.size() - 512);
                    }),
                    {"single_buffer_moment_rebuild", "bytes"}));
    } else {
      CHECK(rejects(with([](auto&, auto& values, auto&...) { values = values.first(25); }),
                    {"values", "25", "26"}));
    }
    rebuilt_shard<Backend, adams> lean(65, 26);
    CHECK(rejects(
        [&] {
          single_buffer_moment_rebuild<adams>(
              context, l, 1, std::span<mask_word const>(memory),
              std::span<float const>(lean.values.span()), rebuild_scalars{}, unmasked_moment::hold,
              moment_state{lean.m.span(), state.v.span(), lean.age.span()}, lean.w.span());
        },
        {"length of v ", "65", "0"}));
  });
  CHECK(state.equals(before));
}

}  // namespace scape::testing
