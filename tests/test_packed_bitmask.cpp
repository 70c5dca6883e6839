// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <scape/context/host.hpp>
#include <scape/packed_bitmask.hpp>

#include "cases/packed_bitmask.hpp"

namespace scape::testing {
namespace {

template <int Threads>
struct pool_backend : host_backend {
  template <class F>
  static void run(std::size_t scratch, F const& f) {
    host_pool pool(Threads);
    host_backend::run(scratch, [&](host_context ctx) {
      ctx.pool = &pool;
      f(ctx);
    });
  }
};

TEST_CASE_TEMPLATE_INVOKE(bitmask_packing, host_backend, pool_backend<2>, pool_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(bitmask_values, host_backend);
TEST_CASE_TEMPLATE_INVOKE(bitmask_queries, host_backend, pool_backend<2>, pool_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(bitmask_moves, host_backend, pool_backend<2>, pool_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(bitmask_algebra, host_backend, pool_backend<2>, pool_backend<3>);
TEST_CASE_TEMPLATE_INVOKE(bitmask_arguments, host_backend);

TEST_CASE("on the host, arguments that do not fit the mask's bits change nothing") {
  host_context const ctx{};
  std::vector<mask_word> words(3, 1);
  auto const before = words;
  bitmask_view const mask(words, 130);
  std::vector<float> dense(130), few(2, 1);
  for (std::int64_t const index : {std::int64_t{130}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    std::vector<std::int64_t> const indices = {5, index};
    CHECK(rejects([&] { bits::pack_indices(ctx, indices, mask); },
                  {"pack_indices", std::to_string(index), "130"}));
  }
  CHECK(rejects([&] { bits::gather(ctx, mask, dense, std::span(few)); }, {"gather", "2", "3"}));
  few.resize(4, 1);
  CHECK(rejects([&] { bits::scatter(ctx, mask, few, std::span(dense)); }, {"scatter", "4", "3"}));
  std::vector<int> indices(4);
  CHECK(rejects([&] { bits::unpack_indices(ctx, mask, std::span(indices)); },
                {"unpack_indices", "4", "3"}));
  CHECK(bits::select(ctx, mask, 2) == 128);
  CHECK(rejects([&] { (void)bits::select(ctx, mask, 3); }, {"select", "number 3", "130"}));
  CHECK(words == before);
  CHECK(std::ranges::count(dense, 0.0F) == 130);
}

}  // namespace
}  // namespace scape::testing
