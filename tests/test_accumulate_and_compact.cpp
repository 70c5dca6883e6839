// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/accumulate_and_compact.hpp>
#include <scape/float16.hpp>

#include "cases/accumulate_and_compact.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

template <int threads>
struct host : pooled_backend<threads> {
  template <class Comm, class Grad, class Wire>
  static void fuse(Comm&, std::span<Grad const> gradient, std::span<float> residual,
                   std::span<mask_word const> mask, float coefficient, std::span<Wire> sent) {
    host::run(0, [&](host_context const& ctx) {
      detail::accumulate_and_compact(ctx, gradient.data(), residual.data(), std::ssize(residual),
                                     mask.data(), coefficient, detail::wire_limit<Wire>(1),
                                     sent.data());
    });
  }
};

TEST_CASE_TEMPLATE_INVOKE(fused_pass, host<1>, host<2>, host<3>);

TEST_CASE("neighbouring blocks do not touch each other") {
  host_context const ctx{};
  std::int64_t const n = 777;
  for (std::int64_t cut = 1; cut < n; cut += 97) {
    auto const grad = any_gradients<float>(n, true);
    auto const residual = any_residuals(n, true);
    auto const left = make_mask("0.5", cut);
    auto const right = make_mask("0.1", n - cut);
    auto mask = left;
    mask.insert(mask.end(), right.begin(), right.end());
    auto const expected = fused_reference<bfloat16>(grad, residual, mask, 0.5F);
    auto const count = std::ranges::count(left, true);

    std::vector<bfloat16> sent(expected.sent.size());
    auto after = residual;
    auto const run = [&](std::int64_t begin, std::int64_t size, auto const& words,
                         std::int64_t first) {
      detail::accumulate_and_compact(ctx, grad.data() + begin, after.data() + begin, size,
                                     words.data(), 0.5F, detail::wire_limit<bfloat16>(1),
                                     sent.data() + first);
    };
    run(cut, n - cut, packed(right), count);  // the later block first
    run(0, cut, packed(left), 0);
    CHECK(same_values(sent, expected.sent));
    CHECK(same_values(after, expected.residual));
  }
}

}  // namespace
}  // namespace scape::testing
