// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
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

#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_optimizer.hpp"

namespace {

using namespace scape::testing;
using scape::adams;
using scape::adamw;
using scape::age_scaling;
using scape::layout;
using scape::layout_options;
using scape::mask_word;
using scape::rebuild_scalars;
using scape::span_policy;
using scape::unmasked_moment;

std::vector<scape::parameter_span> model(std::int64_t n) {
  return {{.name = "a", .offset = 0, .length = n / 2, .lr_scale = 0.5F},
          {.name = "frozen", .offset = n / 2, .length = n / 4, .policy = span_policy::frozen},
          {.name = "c", .offset = n / 2 + n / 4, .length = n - n / 2 - n / 4, .decay_scale = 2}};
}

//! The state of one shard.
template <class Rule, class Wire = float>
struct shard {
  std::vector<float> m, v, w;
  std::vector<std::uint16_t> age;
  std::vector<Wire> values;

  shard(std::int64_t n, std::int64_t k)
      : m(integer_gradient(1, 0, 0, n)),
        v(Rule::keeps_second_moment ? make_vector(n, [](auto j) { return float(1 + j % 5); })
                                    : std::vector<float>()),
        w(initial_weights(n)),
        age(make_vector(n, [](auto j) { return static_cast<std::uint16_t>(j % 9); })),
        values(make_vector(k, [](auto i) { return Wire(small_integer(2, 0, 0, i, 8)); })) {}

  void run(scape::host_context const& ctx, layout const& l, int p, std::span<mask_word const> mask,
           rebuild_scalars const& scalars, unmasked_moment unmasked) {
    scape::single_buffer_moment_rebuild<Rule>(ctx, l, p, mask, std::span<Wire const>(values),
                                              scalars, unmasked, {m, v, age}, std::span(w));
  }
};

std::span<mask_word const> block_of(masked_problem const& p, int s) {
  return std::span(p.mask).subspan(at(s * p.l.words_per_shard()), at(p.l.words_per_shard()));
}

template <class Rule, class Wire>
void check_against_reference(layout const& l, double density, reference_update const& update,
                             unmasked_moment unmasked, scape::host_pool* pool) {
  constexpr std::int64_t step = 4;
  constexpr float lr = 0.0625F;
  auto scalars = scape::detail::scalars_of(update.options, {.lr = lr}, update.ranks, step);
  scalars.moment_scaling = update.moment_scaling;
  scalars.step_scaling = update.step_scaling;
  if (std::isfinite(update.tau_max)) scalars.tau_max = static_cast<float>(update.tau_max);
  masked_problem const p(l, density);
  auto const where = reference_layout{{0, l.size()}, {l.spans().begin(), l.spans().end()}};
  for (int s = 0; s < l.shards(); ++s) {
    shard<Rule, Wire> state(l.shard_size(s), p.plan.counts[at(s)]);
    auto const before = state;
    state.run({{}, pool}, l, s, block_of(p, s), scalars, unmasked);

    std::size_t next = 0;
    bool moments = true, seconds = true, weights = true, ages = true;
    for (std::size_t i = 0; i < state.w.size(); ++i) {
      auto const j = l.begin(s) + static_cast<std::int64_t>(i);
      auto const& span = where.spans[where.span_of(j)];
      double m = before.m[i], w = before.w[i], bound = 0;
      double v = Rule::keeps_second_moment ? before.v[i] : 0;
      if (p.bits[at(j)] != 0) {
        update(step, double{lr} * double{span.lr_scale},
               double{update.options.weight_decay} * double{span.decay_scale},
               static_cast<float>(before.values[next++]), before.age[i] + 1, m, v, w, bound);
      } else if (unmasked == unmasked_moment::decay && span.policy != span_policy::frozen) {
        m *= double{update.options.beta1};
      }
      moments = moments && double{state.m[i]} == m;
      if (Rule::keeps_second_moment) {
        seconds = seconds && std::abs(double{state.v[i]} - v) <= 13 * 0x1p-24 * v;
      }
      weights = weights && std::abs(double{state.w[i]} - w) <= bound;
      ages = ages && state.age[i] == (p.bits[at(j)] != 0 ? 0 : before.age[i] + 1);
    }
    CHECK(next == before.values.size());
    CHECK(moments);
    CHECK(seconds);
    CHECK(weights);
    CHECK(ages);
  }
}

}  // namespace

TEST_CASE("moments, ages and weights equal the serial reference") {
  scape::host_pool two(2), three(3);
  scape::adam_options o;
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
        layout const l(n, 1 + variant % 3, model(n), layout_options{.alignment = 1});
        reference_update update{.options = o,
                                .ranks = 1 << variant % 3,
                                .moment_scaling = scaling,
                                .step_scaling = variant % 2 == 0 ? scaling : age_scaling::none};
        if (variant % 4 == 0) update.tau_max = 3;
        auto const unmasked = variant % 2 == 0 ? unmasked_moment::decay : unmasked_moment::hold;
        auto* const pool = variant % 5 == 0 ? &two : variant % 5 == 1 ? &three : nullptr;
        check_against_reference<adams, float>(l, density, update, unmasked, pool);
        check_against_reference<adams, scape::float16>(l, density, update, unmasked, pool);
        update.second_moment = true;
        check_against_reference<adamw, scape::bfloat16>(l, density, update, unmasked, pool);
      }
    }
  }
}

TEST_CASE("one coordinate by hand") {
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
  // u = 8/4 = 2, tau = 4, s = 2, g = 2*2/2 = 2. AdamS: v = 3/4 * 16 + 1/4 * 4 = 13.
  shard<adams> a(1, 1);
  a.m = {4};
  a.w = {1};
  a.age = {3};
  a.values = {8};
  a.run({}, l, 0, mask, c, unmasked_moment::hold);
  CHECK(a.m[0] == 4);
  CHECK(a.age[0] == 0);
  CHECK(a.w[0] == doctest::Approx(1 - 0.5 * (2 * 4 / std::sqrt(13.0) + 0.5)).epsilon(1e-6));
  // AdamW: v = 3/4 * 32 + 1/4 * 4 = 25.
  shard<adamw> b(1, 1);
  b.m = {4};
  b.v = {32};
  b.w = {1};
  b.age = {3};
  b.values = {8};
  b.run({}, l, 0, mask, c, unmasked_moment::hold);
  CHECK(b.m[0] == 4);
  CHECK(b.v[0] == 25);
  CHECK(b.w[0] == doctest::Approx(1 - 0.5 * (2 * 4 / 5.0 + 0.5)).epsilon(1e-6));
}

TEST_CASE("ages stop at their largest value, and zeros do no harm") {
  layout const l(3, 1);
  std::vector<mask_word> const mask = {0b001};
  shard<adams> a(3, 1);
  a.age = {65535, 65535, 65534};
  a.m = {0, 0, 0};
  a.values = {0};
  auto const w = a.w;
  a.run({}, l, 0, mask, {}, unmasked_moment::hold);
  CHECK(a.age == std::vector<std::uint16_t>{0, 65535, 65535});
  CHECK(a.w == w);  // 0 / (sqrt(0) + eps)
  CHECK(a.m[0] == 0);
}

TEST_CASE("a NaN stays with its coordinate") {
  layout const l(100, 1);
  masked_problem const p(l, 0.3);
  shard<adamw> a(100, 30), b(100, 30);
  a.values[4] = std::numeric_limits<float>::quiet_NaN();
  a.run({}, l, 0, p.mask, {}, unmasked_moment::hold);
  b.run({}, l, 0, p.mask, {}, unmasked_moment::hold);
  auto const hit = at(p.elements(0)[4]);
  for (std::size_t j = 0; j < 100; ++j) {
    CHECK(std::isnan(a.w[j]) == (j == hit));
    if (j != hit) CHECK(a.w[j] == b.w[j]);
  }
}

TEST_CASE("sizes that disagree are refused and nothing is changed") {
  layout const l(130, 2, layout_options{.alignment = 1});
  masked_problem const p(l, 0.4);
  shard<adamw> state(65, 26);
  auto const before = state;
  auto const with = [&](auto change) {
    return [&, change] {
      auto mask = block_of(p, 1);
      auto values = std::span<float const>(state.values);
      scape::moment_state moments{state.m, state.v, state.age};
      auto w = std::span(state.w);
      int rank = 1;
      change(mask, values, moments, w, rank);
      scape::single_buffer_moment_rebuild<adamw>({}, l, rank, mask, values, rebuild_scalars{},
                                                 unmasked_moment::decay, moments, w);
    };
  };
  CHECK(rejects(with([](auto& mask, auto&, auto&, auto&, auto&) { mask = mask.first(1); }),
                {"single_buffer_moment_rebuild", "mask", "1", "2"}));
  CHECK(rejects(with([](auto&, auto& values, auto&, auto&, auto&) { values = values.first(25); }),
                {"values", "25", "26"}));
  CHECK(rejects(with([](auto&, auto&, auto& s, auto&, auto&) { s.m = s.m.first(64); }),
                {"length of m ", "64", "65"}));
  CHECK(rejects(with([](auto&, auto&, auto& s, auto&, auto&) { s.v = {}; }),
                {"length of v ", "0", "65"}));
  CHECK(rejects(with([](auto&, auto&, auto& s, auto&, auto&) { s.age = s.age.first(1); }),
                {"length of age ", "1", "65"}));
  CHECK(rejects(with([](auto&, auto&, auto&, auto& w, auto&) { w = w.first(2); }),
                {"length of weights ", "2", "65"}));
  CHECK(rejects(with([](auto&, auto&, auto&, auto&, auto& rank) { rank = 2; }), {"shard", "2"}));
  CHECK(rejects(with([](auto&, auto&, auto&, auto&, auto& rank) { rank = -1; }), {"shard", "-1"}));
  CHECK(same_bits(state.m, before.m));
  CHECK(same_bits(state.v, before.v));
  CHECK(same_bits(state.w, before.w));
  CHECK(state.age == before.age);

  shard<adams> lean(65, 26);
  CHECK(rejects(
      [&] {
        scape::single_buffer_moment_rebuild<adams>(
            {}, l, 1, block_of(p, 1), std::span<float const>(lean.values), rebuild_scalars{},
            unmasked_moment::hold, {lean.m, state.v, lean.age}, std::span(lean.w));
      },
      {"length of v ", "65", "0"}));
}

TEST_CASE("a mask with bits of no parameter or of frozen ones is refused") {
  layout const l(100, 1,
                 {{.name = "a", .offset = 0, .length = 70},
                  {.name = "frozen", .offset = 70, .length = 10, .policy = span_policy::frozen},
                  {.name = "b", .offset = 80, .length = 20}});
  shard<adams> state(100, 2);
  auto const before = state;
  std::vector<mask_word> const beyond = {1, mask_word{1} << 36};
  CHECK(rejects([&] { state.run({}, l, 0, beyond, {}, unmasked_moment::hold); }, {"beyond", "1"}));
  std::vector<mask_word> const frozen = {1, mask_word{1} << (72 - 64)};
  CHECK(rejects([&] { state.run({}, l, 0, frozen, {}, unmasked_moment::hold); }, {"frozen"}));
  CHECK(same_bits(state.w, before.w));
  CHECK(state.age == before.age);
}
