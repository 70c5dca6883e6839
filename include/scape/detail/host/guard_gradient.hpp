// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The start of every optimizer step: norm, clipping, and the agreement to skip.

#include <functional>
#include <span>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/sum_of_squares.hpp>
#include <scape/optim/options.hpp>

namespace scape::detail {

//! Changes nothing but scratch (sum_of_squares_bytes(n)). The all-reduce takes place on every
//! rank or on none, as the options say.
template <communicator C, class Gradient>
guarded_gradient guard_gradient(host_context const& ctx, C& comm, adam_options const& o,
                                step_arguments const& a, std::span<Gradient const> gradient) {
  auto const own = measures_gradient(o) ? sum_of_squares(ctx, gradient) : 0.0;
  auto all = own;
  if (agrees_on_gradient(o)) {
    comm.all_reduce(ctx, std::span<double const>(&own, 1), std::span<double>(&all, 1),
                    std::plus<>())
        .wait(ctx);
  }
  return guarded(o, a, comm.size(), own, all);
}

}  // namespace scape::detail
