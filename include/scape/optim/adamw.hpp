// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! AdamW: a second moment of its own beside the first.

#include <string_view>

#include <scape/config.hpp>

namespace scape {

//! v = beta2 v + (1 - beta2) g^2 (Adam with decoupled weight decay, arXiv 1711.05101).
struct adamw {
  static constexpr std::string_view name = "adamw";
  static constexpr bool keeps_second_moment = true;

  SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE static float second_moment(float beta2,
                                                                   float one_minus_beta2,
                                                                   float /*m*/, float v,
                                                                   float g) noexcept {
    return detail::fmadd(beta2, v, (one_minus_beta2 * g) * g);
  }
};

}  // namespace scape
