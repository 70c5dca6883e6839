// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! AdamS: the second moment is made from the first one, so none is kept.

#include <string_view>

#include <scape/config.hpp>

namespace scape {

//! v = beta2 m^2 + (1 - beta2) g^2 with the old first moment m (AdamS, arXiv 2505.16363).
struct adams {
  static constexpr std::string_view name = "adams";
  static constexpr bool keeps_second_moment = false;

  SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE static float second_moment(float beta2,
                                                                   float one_minus_beta2, float m,
                                                                   float /*v*/, float g) noexcept {
    return detail::fmadd(beta2 * m, m, (one_minus_beta2 * g) * g);
  }
};

}  // namespace scape
