// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the owner of one coordinate does with the reduced value: rebuild the moments and step.
//! Shared by the dense and the sparse optimizer and by every backend.

#include <cmath>
#include <cstdint>

#include <scape/config.hpp>

namespace scape {

//! How the age of a coordinate scales something: by 1, sqrt(tau) or tau, with tau the number of
//! steps whose gradients the value sums up.
enum class age_scaling : std::uint8_t { none, sqrt, linear };

//! The scalars of one step, the same for all coordinates of a scale range.
struct rebuild_scalars {
  float mean = 1;  //!< 1 / P
  float beta1 = 0.9F;
  float inverse_one_minus_beta1 = 10;
  float beta2 = 0.95F;
  float one_minus_beta2 = 0.05F;
  float first_correction = 1;   //!< 1 / (1 - beta1^t)
  float second_correction = 1;  //!< 1 / (1 - beta2^t)
  float learning_rate = 1e-3F;
  float epsilon = 1e-8F;
  float weight_decay = 0;
  float tau_max = 65536;
  age_scaling moment_scaling = age_scaling::sqrt;  //!< divides the gradient inside v
  age_scaling step_scaling = age_scaling::sqrt;    //!< multiplies the normalised step
};

namespace detail {

SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float age_scale(age_scaling scaling, float tau) noexcept {
  if (scaling == age_scaling::none) return 1.0F;
  return scaling == age_scaling::sqrt ? std::sqrt(tau) : tau;
}

//! `sum` is the reduced value of a coordinate sent after `tau` >= 1 steps.
//!
//!     u = sum / P                      mean of what the ranks sent
//!     m' = beta1 m + u                 the new first moment
//!     g = u / (1 - beta1) / s_v        mean gradient, on the scale of one step
//!     v' = Rule(m, v, g)
//!     w' = w - lr [ s_w m' c1 / (sqrt(v' c2) + eps) + wd w ]
template <class Rule>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE void rebuild_element(rebuild_scalars const& c, float sum,
                                                           float tau, float& m, float& v,
                                                           float& w) noexcept {
  auto const clamped = tau < c.tau_max ? tau : c.tau_max;
  auto const u = sum * c.mean;
  auto const g = u * c.inverse_one_minus_beta1 / age_scale(c.moment_scaling, clamped);
  auto const second = Rule::second_moment(c.beta2, c.one_minus_beta2, m, v, g);
  m = fmadd(c.beta1, m, u);
  v = second;
  auto const normalised = age_scale(c.step_scaling, clamped) * (m * c.first_correction) /
                          (std::sqrt(second * c.second_correction) + c.epsilon);
  w = fmadd(-c.learning_rate, fmadd(c.weight_decay, w, normalised), w);
}

}  // namespace detail
}  // namespace scape
