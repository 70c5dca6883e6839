// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of the pass that accumulates, parts and packs. A backend has fuse(comm, gradient,
//! residual, mask, coefficient, sent), which makes it for one rank, with the mask of all elements.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <scape/config.hpp>
#include <scape/float16.hpp>

#include "support/rank_data.hpp"
#include "support/reference_bitmask.hpp"

namespace scape::testing {

//! Equal bits, but any NaN equals any other: which one a sum of two NaN gives is up to the target.
template <class A, class B>
bool same_values(A const& a, B const& b) {
  return std::ranges::equal(a, b, [](auto x, auto y) {
    return same_bits(std::span(&x, 1), std::span(&y, 1)) ||
           (std::isnan(static_cast<float>(x)) && std::isnan(static_cast<float>(y)));
  });
}

//! Gradients of about 1, among them, if wanted, any float of all.
template <class Grad>
std::vector<Grad> any_gradients(std::int64_t n, bool extreme) {
  return make_vector(n, [&](auto j) {
    auto const any = std::bit_cast<float>(static_cast<std::uint32_t>(scramble(3, at(j))));
    return static_cast<Grad>(extreme && j % 3 == 0 ? any : normal(1, 0, 0, j));
  });
}

inline std::vector<float> any_residuals(std::int64_t n, bool extreme) {
  constexpr float special[] = {0.0F,     -0.0F,     1e-45F,
                               -1e-40F,  65519.0F,  65520.0F,
                               1e10F,    -3e38F,    std::numeric_limits<float>::max(),
                               INFINITY, -INFINITY, NAN};
  return make_vector(n, [&](auto j) {
    if (extreme && j % 5 == 0) return special[at(j / 5) % std::size(special)];
    auto const any = std::bit_cast<float>(static_cast<std::uint32_t>(scramble(4, at(j))));
    return extreme && j % 5 == 1 ? any : normal(2, 0, 0, j);
  });
}

template <class Wire>
struct fused_outcome {
  std::vector<float> sums, residual;
  std::vector<Wire> sent;
};

//! One element after the other.
template <class Wire, class Grad>
fused_outcome<Wire> fused_reference(std::vector<Grad> const& grad,
                                    std::vector<float> const& residual,
                                    std::vector<bool> const& mask, float coefficient) {
  fused_outcome<Wire> o;
  for (std::size_t j = 0; j < mask.size(); ++j) {
    auto const u = detail::fmadd(coefficient, static_cast<float>(grad[j]), residual[j]);
    o.sums.push_back(u);
    o.residual.push_back(u);
    if (!mask[j]) continue;
    o.sent.push_back(detail::to_wire<Wire>(u, detail::wire_limit<Wire>(1)));
    o.residual.back() = detail::residual_of(u, o.sent.back());
  }
  return o;
}

template <class Backend, class Wire, class Grad>
void check_fused(typename Backend::communicator& comm, std::int64_t n, std::string_view pattern,
                 std::int64_t offset, bool extreme) {
  CAPTURE(n);
  CAPTURE(pattern);
  CAPTURE(offset);
  CAPTURE(extreme);
  using memory = typename Backend::template vector<std::byte>;
  constexpr float coefficient = 0.1F;
  auto const mask = make_mask(pattern, n);
  auto const grad = any_gradients<Grad>(n, extreme);
  auto const before = any_residuals(n, extreme);
  auto const expected = fused_reference<Wire>(grad, before, mask, coefficient);

  guarded<Grad, memory> g(grad, offset);
  guarded<float, memory> residual(before, offset);
  guarded<mask_word, memory> words(packed(mask));
  if (n % 64 != 0) words.span().back() |= ~mask_word{0} << (n % 64);  // must be ignored
  guarded<Wire, memory> sent(std::ssize(expected.sent), offset);
  Backend::fuse(comm, std::span<Grad const>(g.span()), residual.span(),
                std::span<mask_word const>(words.span()), coefficient, sent.span());
  CHECK(same_values(sent.span(), expected.sent));
  CHECK(same_values(residual.span(), expected.residual));
  CHECK((g.intact() && residual.intact() && words.intact() && sent.intact()));
  CHECK(same_bits(g.span(), grad));

  bool conserved = true;
  std::size_t r = 0;
  for (std::size_t j = 0; j < mask.size(); ++j) {
    auto const s = mask[j] ? static_cast<float>(sent.span()[r++]) : 0.0F;
    auto const u = expected.sums[j];
    if (std::isfinite(u)) conserved = conserved && s + residual.span()[j] == u;
    if (!extreme) {
      auto const exact = 0.1 * static_cast<double>(static_cast<float>(grad[j])) + before[j];
      conserved =
          conserved && std::abs(static_cast<double>(u) - exact) < 1e-6 * (1 + std::abs(exact));
    }
  }
  CHECK(conserved);
}

template <class Backend, class Wire, class Grad>
void check_fused_sizes(typename Backend::communicator& comm) {
  for (auto const pattern : mask_patterns) {
    bool const once =
        std::is_same_v<Wire, bfloat16> && std::is_same_v<Grad, float> && pattern == "few and many";
    if (!Backend::cuda || once) check_fused<Backend, Wire, Grad>(comm, 100003, pattern, 1, true);
    for (std::int64_t const n : {0, 1, 63, 64, 65, 127, 128, 511, 1000}) {
      if (Backend::cuda && n > 65 && n < 1000) continue;
      check_fused<Backend, Wire, Grad>(comm, n, pattern, 0, true);
      check_fused<Backend, Wire, Grad>(comm, n, pattern, 1, false);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("the fused pass agrees with one element after the other", Backend,
                          fused_pass) {
  Backend::ranks(1, [](auto& comm) {
    check_fused_sizes<Backend, float, float>(comm);
    check_fused_sizes<Backend, float, bfloat16>(comm);
    check_fused_sizes<Backend, float, float16>(comm);
    check_fused_sizes<Backend, bfloat16, float>(comm);
    check_fused_sizes<Backend, bfloat16, bfloat16>(comm);
    check_fused_sizes<Backend, bfloat16, float16>(comm);
    check_fused_sizes<Backend, float16, float>(comm);
    check_fused_sizes<Backend, float16, bfloat16>(comm);
    check_fused_sizes<Backend, float16, float16>(comm);
  });
}

}  // namespace scape::testing
