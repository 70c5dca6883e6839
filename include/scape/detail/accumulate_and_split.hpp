// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What every backend does with one coordinate of the gradient: add it to what was not sent yet,
//! and, under the mask, part the sum into what travels and what stays.

#include <scape/config.hpp>
#include <scape/float16.hpp>

namespace scape::detail {

//! u = coefficient * gradient + residual, rounded as detail::fmadd does.
template <class Grad>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float accumulate(float coefficient, Grad gradient,
                                                       float residual) noexcept {
  return fmadd(coefficient, static_cast<float>(gradient), residual);
}

//! sent + residual = u exactly, for every finite u.
template <class Wire>
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE void split(float u, float limit, Wire& sent,
                                                 float& residual) noexcept {
  sent = to_wire<Wire>(u, limit);
  residual = residual_of(u, sent);
}

}  // namespace scape::detail
