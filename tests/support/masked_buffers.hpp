// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One rank's arguments of a masked collective that accumulates, and what it must make of them.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <scape/config.hpp>
#include <scape/float16.hpp>
#include <scape/sparse_reduce_scatter.hpp>

#include "masked_problem.hpp"
#include "rank_data.hpp"
#include "reference_bitmask.hpp"

namespace scape::testing {

inline bool same_float(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
//! Equal, or both NaN.
inline bool same_value(float a, float b) { return a == b || (a != a && b != b); }

//! Scratch of a masked collective.
template <class Backend, class T>
std::size_t collective_bytes(masked_problem const& p) {
  if constexpr (Backend::cuda) {
    return sparse_collective_bytes<T>(p.l, p.plan.total());
  } else {
    return sparse_collective_bytes<T>(p.plan.total());
  }
}

//! The problem's mask where the backend can reach it.
template <class Backend>
auto mask_on(masked_problem const& p) {
  return typename Backend::template vector<mask_word>(p.mask.begin(), p.mask.end());
}

//! Returns when what was enqueued is done, or throws why it never will be.
template <class Comm, class Context>
void complete(Comm& comm, Context const& ctx) {
  if constexpr (requires { comm.synchronize(ctx); }) comm.synchronize(ctx);
}

//! Buffers between guards, `offset` elements past an aligned address.
template <class Backend, class Wire, class Gradient = float>
struct masked_buffers {
  template <class T>
  using guarded_on = guarded<T, typename Backend::template vector<std::byte>>;

  guarded_on<Gradient> gradient;
  guarded_on<float> residual;
  guarded_on<Wire> values;

  template <class F, class G>
  masked_buffers(masked_problem const& p, std::int64_t count, F const& gradient_of,
                 G const& residual_of, std::int64_t offset = 0)
      : gradient(make_vector(p.l.size(), [&](auto j) { return Gradient(gradient_of(j)); }), offset),
        residual(make_vector(p.l.size(), [&](auto j) { return float(residual_of(j)); }), offset),
        values(count, offset) {}

  //! Calls op(ctx, comm, layout, plan, mask, gradient, residual, coefficient, values).
  template <class Comm, class Op>
  void run(Comm& comm, masked_problem const& p, float coefficient, Op const& op) {
    auto const mask = mask_on<Backend>(p);
    Backend::run(collective_bytes<Backend, Wire>(p), [&](auto const& ctx) {
      op(ctx, comm, p.l, p.plan, std::span<mask_word const>(mask),
         std::span<Gradient const>(gradient.span()), residual.span(), coefficient, values.span());
      complete(comm, ctx);
    });
  }

  //! What is accumulated before anything is sent.
  [[nodiscard]] std::vector<float> accumulated(float coefficient) {
    return make_vector(std::ssize(gradient.span()), [&](auto j) {
      return detail::fmadd(coefficient, static_cast<float>(gradient.span()[at(j)]),
                           residual.span()[at(j)]);
    });
  }

  [[nodiscard]] bool intact() const {
    return gradient.intact() && residual.intact() && values.intact();
  }
};

//! What rank `rank` accumulates. Sums of the `exact` values, as sent on any wire, are exact in any
//! order over 8 ranks, but a 16-bit wire leaves something of each behind.
struct rank_inputs {
  bool exact;

  [[nodiscard]] float coefficient() const { return exact ? 0.125F : 0.1F; }
  [[nodiscard]] float gradient(int rank, std::int64_t j) const {
    if (!exact) return normal(3, rank, 0, j);
    auto const g = small_integer(3, rank, 0, j, 3);
    return 8 * (g < 0 ? g - 20 : g + 20);
  }
  [[nodiscard]] float residual(int rank, std::int64_t j) const {
    if (!exact) return normal(4, rank, 0, j);
    return small_integer(4, rank, 0, j, 3) + small_integer(5, rank, 0, j, 7) * 0x1p-10F;
  }
  template <class Gradient>
  [[nodiscard]] float accumulated(int rank, std::int64_t j) const {
    return detail::fmadd(coefficient(), static_cast<float>(Gradient(gradient(rank, j))),
                         residual(rank, j));
  }
  template <class Wire, class Gradient>
  [[nodiscard]] Wire sent(int ranks, int rank, std::int64_t j) const {
    return detail::to_wire<Wire>(accumulated<Gradient>(rank, j), detail::wire_limit<Wire>(ranks));
  }
  //! The ranks' own roundings summed in rank order, rounded once.
  template <class Wire, class Gradient>
  [[nodiscard]] Wire sum(int ranks, std::int64_t j) const {
    auto result = static_cast<float>(sent<Wire, Gradient>(ranks, 0, j));
    for (int r = 1; r < ranks; ++r) result += static_cast<float>(sent<Wire, Gradient>(ranks, r, j));
    return Wire(result);
  }
  //! What rank `rank` keeps.
  template <class Wire, class Gradient>
  [[nodiscard]] std::vector<float> kept(masked_problem const& p, int ranks, int rank) const {
    return make_vector(p.l.size(), [&](auto j) {
      auto const u = accumulated<Gradient>(rank, j);
      return p.bits[at(j)] == 0 ? u : detail::residual_of(u, sent<Wire, Gradient>(ranks, rank, j));
    });
  }
};

//! Buffers of one rank with such inputs.
template <class Backend, class Wire, class Gradient = float>
auto buffers_with(rank_inputs const& inputs, masked_problem const& p, std::int64_t count, int rank,
                  std::int64_t offset = 0) {
  return masked_buffers<Backend, Wire, Gradient>(
      p, count, [&](auto j) { return inputs.gradient(rank, j); },
      [&](auto j) { return inputs.residual(rank, j); }, offset);
}

}  // namespace scape::testing
