// SPDX-License-Identifier: Apache-2.0

//! @file
//! The parts of the example basis_rotation: stages, delayed gradients, energy, sparse sync.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "corpus.hpp"
#include "delayed_training.hpp"
#include "energy.hpp"
#include "gpt.hpp"
#include "held_out_loss.hpp"
#include "method.hpp"
#include "model_optimizer.hpp"
#include "settings.hpp"
#include "sparse_sync.hpp"
#include "stages.hpp"
#include "support/text_file.hpp"

namespace {

using namespace basis_rotation;
using scape::testing::text_file;

settings small() {
  settings s;
  s.shape = {.layers = 2, .width = 8, .heads = 2, .context = 8, .tied = false};
  s.batch = 4;
  s.warmup = 4;
  s.target = 0;
  s.max_steps = 12;
  s.validate_every = 6;
  s.validation_rows = 8;
  s.sync_steps = 12;
  return s;
}

std::map<std::string, std::int64_t> delays_of(train_gpt::gpt_shape const& shape,
                                              std::int64_t stages) {
  std::map<std::string, std::int64_t> delays;
  for (auto const& t : place_on_stages(shape, stages)) delays[t.name] = t.delay;
  return delays;
}

}  // namespace

TEST_CASE("the stages hold all tensors, in the order of depth") {
  train_gpt::gpt_shape const shape{
      .layers = 3, .width = 12, .heads = 2, .context = 7, .tied = false};
  for (std::int64_t stages = 1; stages <= most_stages(shape); ++stages) {
    auto const tensors = parameter_tensors(shape);
    auto const placed = place_on_stages(shape, stages);
    REQUIRE(placed.size() == tensors.size());
    std::vector<std::int64_t> matrices(static_cast<std::size_t>(stages));
    for (std::size_t i = 0; i < placed.size(); ++i) {
      auto const& t = placed[i];
      CHECK(t.name == tensors[i].name);
      CHECK(t.offset == tensors[i].offset);
      CHECK(t.length() == tensors[i].length);
      CHECK((t.rows == 1) == (tensors[i].one_dimensional || !t.name.starts_with("block")));
      if (i > 0) CHECK(t.delay <= placed[i - 1].delay);
      if (t.rows > 1) ++matrices[static_cast<std::size_t>(t.delay)];
    }
    CHECK(placed.front().delay == stages - 1);
    CHECK(placed.back().delay == 0);
    auto const [fewest, most] = std::ranges::minmax(matrices);
    CHECK(most - fewest <= 1);
  }
  auto const delays = delays_of(shape, 12);
  CHECK(delays.at("token_embedding") == 11);
  CHECK(delays.at("position_embedding") == 11);
  CHECK(delays.at("block0.attention_norm.bias") == 11);
  CHECK(delays.at("block0.qkv.bias") == 11);
  CHECK(delays.at("block0.projection.weight") == 10);
  CHECK(delays.at("block0.mlp_norm.gain") == 9);
  CHECK(delays.at("block0.expand.bias") == 9);
  CHECK(delays.at("block1.attention_norm.bias") == 7);
  CHECK(delays.at("block2.contract.bias") == 0);
  CHECK(delays.at("final_norm.gain") == 0);
  CHECK(delays.at("head.weight") == 0);
  CHECK(delays_of(shape, 2).at("block1.projection.bias") == 1);
  CHECK(delays_of(shape, 2).at("block1.mlp_norm.gain") == 0);
  for (auto const& t : place_on_stages(shape, 1)) {
    if (t.name.ends_with("contract.weight")) CHECK(t.rows == 48);
    if (t.name.ends_with("expand.weight")) CHECK(t.columns == 48);
  }
}

// The same training with all versions of the weights kept.
std::vector<loss_point> reference_training(settings const& s, train_gpt::corpus const& text,
                                           delayed_run const& run) {
  auto const tensors = place_on_stages(s.shape, run.stages);
  train_gpt::gpt<float> model(s.shape, s.batch);
  train_gpt::batch b(s.batch, s.shape.context);
  auto const initial = train_gpt::initial_parameters(s.shape, run.seed);
  using weights = train_gpt::aligned_vector<float>;
  std::vector<weights> versions{weights(initial.begin(), initial.end())};
  weights gradient(initial.size());
  std::vector<scape::rotated_adam> optimizers;
  for (auto const& t : tensors) {
    scape::rotated_adam_options o;
    o.refresh_interval = run.interval;
    if (run.how == method::adam) o.dimension_limit = 0;
    optimizers.emplace_back(t.rows, t.columns, o);
  }
  std::vector<loss_point> validation;
  auto const validate = [&](std::int64_t step) {
    validation.push_back({step, held_out_loss(model, versions.back(), text, b, s.validation_rows)});
  };
  validate(0);
  for (std::int64_t step = 0; step < s.max_steps; ++step) {
    weights forward(initial.size());
    for (auto const& t : tensors) {
      auto const& old =
          versions[static_cast<std::size_t>(std::max<std::int64_t>(0, step - t.delay))];
      std::copy_n(old.begin() + t.offset, t.length(), forward.begin() + t.offset);
    }
    train_gpt::sample(b, text.training(), run.seed, step, 0);
    weights now = versions.back();
    model.loss_and_gradient(forward, run.stashing ? forward : now, b.inputs, b.targets, gradient);
    double const lr = run.lr * std::min(1.0, static_cast<double>(step + 1) / 4);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto const at = static_cast<std::size_t>(tensors[i].offset);
      auto const length = static_cast<std::size_t>(tensors[i].length());
      optimizers[i].step(std::span(now).subspan(at, length),
                         std::span<float const>(gradient).subspan(at, length),
                         static_cast<float>(lr));
    }
    versions.push_back(now);
    if ((step + 1) % s.validate_every == 0) validate(step + 1);
  }
  return validation;
}

TEST_CASE("every gradient is that of the weights its stages had") {
  text_file const file;
  train_gpt::corpus const text(file.path());
  auto const s = small();
  std::map<std::pair<std::int64_t, bool>, double> losses;
  for (auto const how : {method::adam, method::second_bilateral}) {
    for (std::int64_t const stages : {1, 3, 8}) {
      for (bool const stashing : {true, false}) {
        delayed_run const run{
            .how = how, .stages = stages, .stashing = stashing, .interval = 4, .lr = 0.02};
        auto const result = train_with_delay(s, text, run);
        auto const expected = reference_training(s, text, run);
        REQUIRE(result.validation.size() == 3);
        for (std::size_t i = 0; i < 3; ++i) {
          CHECK(result.validation[i].step == static_cast<std::int64_t>(6 * i));
          CHECK(result.validation[i].loss == expected[i].loss);
        }
        CHECK_FALSE(result.steps_to_target.has_value());
        losses[{stages, stashing}] = result.validation.back().loss;
      }
    }
    CHECK(losses.at({1, true}) == losses.at({1, false}));
    CHECK(losses.at({8, true}) != losses.at({8, false}));
    CHECK(losses.at({8, true}) != losses.at({1, true}));
  }
}

TEST_CASE("the target is met between two validations") {
  text_file const file;
  train_gpt::corpus const text(file.path());
  auto s = small();
  delayed_run const run{.how = method::adam, .lr = 0.02};
  auto const all = train_with_delay(s, text, run).validation;
  REQUIRE(all[1].loss < all[0].loss);
  REQUIRE(all[2].loss < all[1].loss);
  s.target = 0.25 * all[1].loss + 0.75 * all[2].loss;
  auto const result = train_with_delay(s, text, run);
  CHECK(result.steps_to_target.value_or(0) == doctest::Approx(6 + 0.75 * 6));
  s.target = 0.5 * all[0].loss + 0.5 * all[1].loss;
  CHECK(train_with_delay(s, text, run).validation.size() == 2);
}

TEST_CASE("a shared budget: stages without delay keep their first basis") {
  text_file const file;
  train_gpt::corpus const text(file.path());
  auto s = small();
  s.max_steps = 120;
  s.validate_every = 120;
  std::map<scape::refresh_budget, double> refreshes;
  using enum scape::refresh_budget;
  for (auto const budget : {uniform, stage_aware, inverse}) {
    delayed_run const run{.how = method::second_unilateral,
                          .stages = 8,
                          .budget = budget,
                          .interval = 10,
                          .lr = 1e-3};
    refreshes[budget] = static_cast<double>(train_with_delay(s, text, run).refreshes);
  }
  CHECK(refreshes[uniform] == 8 * 11);  // 119 steps after the first gradient
  CHECK(refreshes[stage_aware] == doctest::Approx(88).epsilon(0.1));
  CHECK(refreshes[inverse] == doctest::Approx(88).epsilon(0.1));
}

TEST_CASE("Nesterov's look-ahead, two steps by hand") {
  // b1 = b2 = 1/2, eps = 0, lr = 1; gradients 4 and 8.
  // step 1: m = 2, v = 8;   (1/2 m / (3/4) + 1/2 g / (1/2)) / sqrt(8 / (1/2)) = (4/3 + 4) / 4
  // step 2: m = 5, v = 36;  (1/2 m / (7/8) + 1/2 g / (3/4)) / sqrt(36 / (3/4)) = (20/7 + 16/3) /
  // sqrt(48)
  nesterov_adam adam(1, 0.5F, 0.5F, 0);
  std::vector<float> w{0}, g{4};
  adam.step(w, g, 1);
  CHECK(static_cast<double>(w[0]) == doctest::Approx(-4.0 / 3));
  g[0] = 8;
  adam.step(w, g, 1);
  CHECK(static_cast<double>(w[0]) ==
        doctest::Approx(-4.0 / 3 - (20.0 / 7 + 16.0 / 3) / std::sqrt(48)));
}

TEST_CASE("energy shares") {
  std::vector<float> const values{1, -3, 2, 0, 0, 0, 0, 0, 0, 0};
  CHECK(energy_share(values, 0.1) == doctest::Approx(9.0 / 14));
  CHECK(energy_share(values, 0.2) == doctest::Approx(13.0 / 14));
  CHECK(energy_share(values, 1) == doctest::Approx(1));
  CHECK(energy_share(values, 0.001) == doctest::Approx(9.0 / 14));
  CHECK(energy_share(std::vector<float>(5), 0.4) == 0);
}

TEST_CASE("the moments of both bases have the same norm") {
  text_file const file;
  train_gpt::corpus const text(file.path());
  std::size_t seen = 0;
  auto const observe = [&](std::int64_t step, model_optimizer& optimizer) {
    if (step == 0) return;
    auto const original = original_moments(optimizer), rotated = rotated_moments(optimizer);
    CHECK(original.size() == 2 * 12 * 8 * 8);  // four matrices per block
    REQUIRE(rotated.size() == original.size());
    double a = 0, b = 0;
    for (auto const x : original) a += std::pow(static_cast<double>(x), 2);
    for (auto const x : rotated) b += std::pow(static_cast<double>(x), 2);
    CHECK(b == doctest::Approx(a).epsilon(1e-4));
    CHECK(original != rotated);
    ++seen;
  };
  auto const result = train_with_delay(
      small(), text, {.how = method::second_bilateral, .interval = 4, .lr = 0.02}, observe);
  CHECK(seen == 2);
}

TEST_CASE("sparse sync: full density is plain training in either basis") {
  text_file const file;
  train_gpt::corpus const text(file.path());
  auto s = small();
  s.ranks = 1;
  s.interval = 4;
  for (auto const how : {method::adam, method::second_bilateral}) {
    auto const plain =
        train_with_delay(s, text, {.how = how, .interval = 4, .lr = 0.02}).validation.back().loss;
    std::vector<double> sparse_losses;
    for (auto const basis : {mask_basis::original, mask_basis::rotated}) {
      auto const dense = train_with_sparse_sync(s, text, {how, 1, basis, 0.02});
      REQUIRE(dense.validation.size() == 2);
      CHECK(dense.validation.back().loss == doctest::Approx(plain).epsilon(1e-3));
      auto const sparse = train_with_sparse_sync(s, text, {how, 0.1, basis, 0.02});
      sparse_losses.push_back(sparse.validation.back().loss);
      CHECK(std::abs(sparse_losses.back() - plain) > 1e-3);
      CHECK(sparse.validation.back().loss < std::log(256));  // it learns
    }
    CHECK((sparse_losses[0] == sparse_losses[1]) == (how == method::adam));
  }
}

TEST_CASE("sparse sync: two ranks hold the same weights to the end") {
  text_file const file;
  train_gpt::corpus const text(file.path());
  auto s = small();
  s.ranks = 2;
  s.interval = 4;
  for (auto const basis : {mask_basis::original, mask_basis::rotated}) {
    sync_run const run{method::first_bilateral, 0.05, basis, 0.02};
    auto const a = train_with_sparse_sync(s, text, run), b = train_with_sparse_sync(s, text, run);
    CHECK(a.validation.back().loss == b.validation.back().loss);
  }
}
