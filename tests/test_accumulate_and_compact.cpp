// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/accumulate_and_compact.hpp>
#include <scape/float16.hpp>

#include "support/rank_data.hpp"
#include "support/reference_bitmask.hpp"

namespace {

using scape::bfloat16;
using scape::float16;
using scape::mask_word;
using scape::testing::at;
using scape::testing::guarded;
using scape::testing::make_mask;
using scape::testing::make_vector;
using scape::testing::normal;
using scape::testing::packed;
using scape::testing::same_bits;
using scape::testing::scramble;

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
std::vector<Grad> gradients(std::int64_t n, bool extreme) {
  return make_vector(n, [&](auto j) {
    auto const any = std::bit_cast<float>(static_cast<std::uint32_t>(scramble(3, at(j))));
    return static_cast<Grad>(extreme && j % 3 == 0 ? any : normal(1, 0, 0, j));
  });
}

std::vector<float> residuals(std::int64_t n, bool extreme) {
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
struct outcome {
  std::vector<float> sums, residual;
  std::vector<Wire> sent;
};

//! One element after the other.
template <class Wire, class Grad>
outcome<Wire> reference(std::vector<Grad> const& grad, std::vector<float> const& residual,
                        std::vector<bool> const& mask, float coefficient) {
  outcome<Wire> o;
  for (std::size_t j = 0; j < mask.size(); ++j) {
    auto const u = scape::detail::fmadd(coefficient, static_cast<float>(grad[j]), residual[j]);
    o.sums.push_back(u);
    o.residual.push_back(u);
    if (!mask[j]) continue;
    o.sent.push_back(scape::detail::to_wire<Wire>(u, scape::detail::wire_limit<Wire>(2)));
    o.residual.back() = scape::detail::residual_of(u, o.sent.back());
  }
  return o;
}

template <class Wire, class Grad>
void check(scape::host_context const& ctx, std::int64_t n, std::string_view pattern,
           std::int64_t offset, bool extreme) {
  CAPTURE(n);
  CAPTURE(pattern);
  CAPTURE(offset);
  CAPTURE(extreme);
  constexpr float coefficient = 0.1F;
  auto const mask = make_mask(pattern, n);
  auto const grad = gradients<Grad>(n, extreme);
  auto const before = residuals(n, extreme);
  auto const expected = reference<Wire>(grad, before, mask, coefficient);

  guarded<Grad> g(grad, offset);
  guarded<float> residual(before, offset);
  guarded<mask_word> words(packed(mask));
  if (n % 64 != 0) words.span().back() |= ~mask_word{0} << (n % 64);  // must be ignored
  guarded<Wire> sent(std::ssize(expected.sent), offset);
  scape::detail::accumulate_and_compact(ctx, g.data(), residual.data(), n, words.data(),
                                        coefficient, scape::detail::wire_limit<Wire>(2),
                                        sent.data());
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

}  // namespace

TEST_CASE_TEMPLATE("the fused pass agrees with one element after the other", Types,
                   std::pair<float, float>, std::pair<float, bfloat16>, std::pair<float, float16>,
                   std::pair<bfloat16, float>, std::pair<bfloat16, bfloat16>,
                   std::pair<bfloat16, float16>, std::pair<float16, float>,
                   std::pair<float16, bfloat16>, std::pair<float16, float16>) {
  using wire = typename Types::first_type;
  using grad = typename Types::second_type;
  for (int threads = 1; threads <= 3; ++threads) {
    CAPTURE(threads);
    auto const pool = threads == 1 ? nullptr : std::make_unique<scape::host_pool>(threads);
    scape::host_context const ctx{{}, pool.get()};
    for (auto const pattern : scape::testing::mask_patterns) {
      check<wire, grad>(ctx, 100003, pattern, 1, true);
      if (threads > 1) continue;
      for (std::int64_t const n : {0, 1, 63, 64, 65, 127, 128, 511, 1000}) {
        check<wire, grad>(ctx, n, pattern, 0, true);
        check<wire, grad>(ctx, n, pattern, 1, false);
      }
    }
  }
}

TEST_CASE("neighbouring blocks do not touch each other") {
  scape::host_context const ctx{};
  std::int64_t const n = 777;
  for (std::int64_t cut = 1; cut < n; cut += 97) {
    auto const grad = gradients<float>(n, true);
    auto const residual = residuals(n, true);
    auto const left = make_mask("0.5", cut);
    auto const right = make_mask("0.1", n - cut);
    auto mask = left;
    mask.insert(mask.end(), right.begin(), right.end());
    auto const expected = reference<bfloat16>(grad, residual, mask, 0.5F);
    auto const count = std::ranges::count(left, true);

    std::vector<bfloat16> sent(expected.sent.size());
    auto after = residual;
    auto const run = [&](std::int64_t begin, std::int64_t size, auto const& words,
                         std::int64_t first) {
      scape::detail::accumulate_and_compact(
          ctx, grad.data() + begin, after.data() + begin, size, words.data(), 0.5F,
          scape::detail::wire_limit<bfloat16>(2), sent.data() + first);
    };
    run(cut, n - cut, packed(right), count);  // the later block first
    run(0, cut, packed(left), 0);
    CHECK(same_values(sent, expected.sent));
    CHECK(same_values(after, expected.residual));
  }
}
