// SPDX-License-Identifier: Apache-2.0
#include "delayed_training.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>

#include "gpt.hpp"
#include "held_out_loss.hpp"
#include "model_optimizer.hpp"

namespace basis_rotation {
namespace {

using weights_type = train_gpt::aligned_vector<float>;

// The last `stages` versions of the weights.
class weight_history {
 public:
  weight_history(weights_type const& initial, std::int64_t stages)
      : versions_(static_cast<std::size_t>(stages), initial) {}

  void store(std::int64_t step, weights_type const& weights) { version(step) = weights; }

  // What the stages have in their forward pass of `step`.
  void compose(std::int64_t step, std::span<staged_tensor const> tensors, weights_type& out) {
    for (auto const& t : tensors) {
      auto const& from = version(std::max<std::int64_t>(0, step - t.delay));
      std::copy_n(from.begin() + t.offset, t.length(), out.begin() + t.offset);
    }
  }

 private:
  weights_type& version(std::int64_t step) {
    return versions_[static_cast<std::size_t>(step) % versions_.size()];
  }

  std::vector<weights_type> versions_;
};

// Linear warm-up, then constant. Stage-wise: divided by delay^p, with p from 1 to 0 over five
// warm-ups.
double learning_rate(settings const& s, delayed_run const& run, std::int64_t step,
                     std::int64_t delay) {
  auto const warmups = static_cast<double>(step + 1) / static_cast<double>(s.warmup);
  double const lr = run.lr * std::min(1.0, warmups);
  if (run.how != method::stagewise_lr || delay < 2) return lr;
  return lr / std::pow(static_cast<double>(delay), 1 - std::min(1.0, warmups / 5));
}

// Refresh intervals by tensor; only matrices have a share in the budget.
std::vector<std::int64_t> intervals_of(delayed_run const& run,
                                       std::span<staged_tensor const> tensors) {
  std::vector<std::int64_t> delays;
  for (auto const& t : tensors) {
    if (t.rows > 1) delays.push_back(t.delay);
  }
  auto const shares = scape::refresh_intervals(delays, run.interval, run.budget);
  auto share = shares.begin();
  std::vector<std::int64_t> intervals;
  for (auto const& t : tensors) intervals.push_back(t.rows > 1 ? *share++ : 0);
  return intervals;
}

// Where the line through two points reaches `target`.
double crossing(loss_point const& before, loss_point const& after, double target) {
  auto const part = (before.loss - target) / (before.loss - after.loss);
  return static_cast<double>(before.step) + part * static_cast<double>(after.step - before.step);
}

}  // namespace

delayed_result train_with_delay(settings const& s, train_gpt::corpus const& text,
                                delayed_run const& run, validation_observer const& observe) {
  auto const start = std::chrono::steady_clock::now();
  auto const tensors = place_on_stages(s.shape, run.stages);
  model_optimizer optimizer(run.how, tensors, intervals_of(run, tensors));
  train_gpt::gpt<float> model(s.shape, s.batch);
  train_gpt::batch b(s.batch, s.shape.context);
  auto const initial = train_gpt::initial_parameters(s.shape, run.seed);
  weights_type weights(initial.begin(), initial.end()), forward(weights), gradient(weights.size());
  weight_history history(weights, run.stages);
  std::vector<double> lr(tensors.size());

  delayed_result result{.run = run};
  auto const validate = [&](std::int64_t step) {
    loss_point const now{step, held_out_loss(model, weights, text, b, s.validation_rows)};
    bool const there = now.loss <= s.target;
    if (there) {
      result.steps_to_target = step == 0 ? 0 : crossing(result.validation.back(), now, s.target);
    }
    result.validation.push_back(now);
    if (observe) observe(step, optimizer);
    return !there && std::isfinite(now.loss);
  };
  bool going_on = validate(0);
  for (std::int64_t step = 0; step < s.max_steps && going_on; ++step) {
    history.store(step, weights);
    history.compose(step, tensors, forward);
    train_gpt::sample(b, text.training(), run.seed, step, 0);
    model.loss_and_gradient(forward, run.stashing ? forward : weights, b.inputs, b.targets,
                            gradient);
    for (std::size_t i = 0; i < lr.size(); ++i) {
      lr[i] = learning_rate(s, run, step, tensors[i].delay);
    }
    optimizer.step(weights, gradient, lr);
    bool const last = step + 1 == s.max_steps;
    if (last || (step + 1) % s.validate_every == 0) going_on = validate(step + 1);
  }
  result.refreshes = optimizer.refreshes();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace basis_rotation
