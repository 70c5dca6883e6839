// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The start of every optimizer step: norm, clipping, and the agreement to skip.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/sum_of_squares.hpp>
#include <scape/optim/options.hpp>

namespace scape::detail {

struct guarded_gradient {
  bool finite = true;
  double norm = 0;
  double clip_factor = 1;
  float coefficient = 1;  //!< (1 - beta1) * clip_factor / divisor
  std::int64_t control_bytes = 0;
};

//! Changes nothing but scratch (sum_of_squares_bytes(n)). The all-reduce takes place on every
//! rank or on none, as the options say.
template <communicator C, class Gradient>
guarded_gradient guard_gradient(host_context const& ctx, C& comm, adam_options const& o,
                                step_arguments const& a, std::span<Gradient const> gradient) {
  guarded_gradient result;
  auto const divisor = double{a.gradient_divisor};
  if (o.skip_nonfinite || o.clip_norm > 0) {
    auto const own = sum_of_squares(ctx, gradient);
    auto all = own;
    if (o.skip_nonfinite || o.clip == clip_scope::mean_square) {
      comm.all_reduce(ctx, std::span<double const>(&own, 1), std::span<double>(&all, 1),
                      std::plus<>())
          .wait(ctx);
      result.control_bytes =
          2 * (comm.size() - 1) * static_cast<std::int64_t>(sizeof(double)) / comm.size();
    }
    constexpr auto largest = double{std::numeric_limits<float>::max()};
    result.finite = !o.skip_nonfinite || std::sqrt(all) / divisor <= largest;
    result.norm = std::sqrt(own) / divisor;
    auto const clipped =
        o.clip == clip_scope::own_gradient ? result.norm : std::sqrt(all / comm.size()) / divisor;
    if (o.clip_norm > 0 && clipped > double{o.clip_norm} && std::isfinite(clipped)) {
      result.clip_factor = double{o.clip_norm} / clipped;
    }
  }
  result.coefficient = static_cast<float>((1 - double{o.beta1}) * (result.clip_factor / divisor));
  return result;
}

}  // namespace scape::detail
