// SPDX-License-Identifier: Apache-2.0
#include "model_optimizer.hpp"

#include <cmath>

namespace basis_rotation {
namespace {

constexpr float beta1 = 0.9F, nesterov_beta1 = 0.99F, beta2 = 0.95F, epsilon = 1e-8F;

scape::rotated_adam_options options_of(method m, std::int64_t interval) {
  using enum method;
  scape::rotated_adam_options o;
  o.beta1 = beta1;
  o.beta2 = beta2;
  o.epsilon = epsilon;
  o.refresh_interval = interval;
  o.source = m == first_unilateral || m == first_bilateral ? scape::rotation_source::first_moment
                                                           : scape::rotation_source::second_moment;
  o.geometry = m == first_bilateral || m == second_bilateral ? scape::rotation_geometry::bilateral
                                                             : scape::rotation_geometry::unilateral;
  if (!is_rotated(m)) o.dimension_limit = 0;
  return o;
}

template <class T>
std::span<T> part(std::span<T> all, staged_tensor const& t) {
  return all.subspan(static_cast<std::size_t>(t.offset), static_cast<std::size_t>(t.length()));
}

}  // namespace

nesterov_adam::nesterov_adam(std::int64_t size, float b1, float b2, float eps)
    : beta1_(b1), beta2_(b2), epsilon_(eps), m_(static_cast<std::size_t>(size)), v_(m_) {}

void nesterov_adam::step(std::span<float> weights, std::span<float const> gradient, float lr) {
  ++steps_;
  auto const correction = [&](float beta, std::int64_t t) {
    return static_cast<float>(1 - std::pow(static_cast<double>(beta), static_cast<double>(t)));
  };
  auto const ahead = beta1_ / correction(beta1_, steps_ + 1);
  auto const now = (1 - beta1_) / correction(beta1_, steps_);
  auto const second = 1 / correction(beta2_, steps_);
  for (std::size_t i = 0; i < m_.size(); ++i) {
    auto const g = gradient[i];
    m_[i] = beta1_ * m_[i] + (1 - beta1_) * g;
    v_[i] = beta2_ * v_[i] + (1 - beta2_) * g * g;
    weights[i] -= lr * (ahead * m_[i] + now * g) / (std::sqrt(second * v_[i]) + epsilon_);
  }
}

model_optimizer::model_optimizer(method m, std::span<staged_tensor const> tensors,
                                 std::span<std::int64_t const> intervals)
    : tensors_(tensors.begin(), tensors.end()) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    auto const& t = tensors_[i];
    if (m == method::nesterov) {
      optimizers_.emplace_back(nesterov_adam(t.length(), nesterov_beta1, beta2, epsilon));
    } else {
      optimizers_.emplace_back(scape::rotated_adam(t.rows, t.columns, options_of(m, intervals[i])));
    }
  }
}

void model_optimizer::step(std::span<float> weights, std::span<float const> gradient,
                           std::span<double const> lr) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    auto const& t = tensors_[i];
    std::visit(
        [&](auto& optimizer) {
          optimizer.step(part(weights, t), part(gradient, t), static_cast<float>(lr[i]));
        },
        optimizers_[i]);
  }
}

std::int64_t model_optimizer::refreshes() const {
  std::int64_t sum = 0;
  for (auto const& o : optimizers_) {
    if (auto const* rotated = std::get_if<scape::rotated_adam>(&o)) sum += rotated->refreshes();
  }
  return sum;
}

scape::rotated_adam& model_optimizer::adam(std::size_t i) {
  return std::get<scape::rotated_adam>(optimizers_[i]);
}

}  // namespace basis_rotation
