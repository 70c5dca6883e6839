// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

#include <scape/single_buffer_moment_rebuild.cuh>

#include "cases/single_buffer_moment_rebuild.hpp"
#include "support/cuda_backend.cuh"

namespace scape::testing {
namespace {

struct device : cuda_backend {
  static std::size_t rebuild_bytes(layout const& l) {
    return single_buffer_moment_rebuild_bytes(l);
  }
};

TEST_CASE_TEMPLATE_INVOKE(rebuild_reference, device);
TEST_CASE_TEMPLATE_INVOKE(rebuild_any, device);
TEST_CASE_TEMPLATE_INVOKE(rebuild_by_hand, device);
TEST_CASE_TEMPLATE_INVOKE(rebuild_ages, device);
TEST_CASE_TEMPLATE_INVOKE(rebuild_nan, device);
TEST_CASE_TEMPLATE_INVOKE(rebuild_arguments, device);

TEST_CASE("CUDA's own 16-bit floats") {
  check_any<device, adams, __half>(1000, age_scaling::sqrt);
  check_any<device, adamw, __nv_bfloat16>(1000, age_scaling::linear);
}

TEST_CASE("more parameters than a launch has room for") {
  std::vector<parameter_span> spans;
  for (std::int64_t i = 0; i < 250; ++i) {
    spans.push_back({.name = std::to_string(i),
                     .offset = 4 * i,
                     .length = 4,
                     .policy = i % 7 == 3 ? span_policy::frozen : span_policy::sparse,
                     .lr_scale = static_cast<float>(1 + i % 5)});
  }
  masked_problem const p({1000, 2, spans, layout_options{.alignment = 1}}, 0.5);
  for (int s = 0; s < 2; ++s) {
    auto const k = p.plan.counts[at(s)];
    rebuilt_shard<device, adamw> state(500, k);
    rebuilt_shard<rebuild_on_host, adamw> host(500, k);
    state.run(p.l, s, block_of(p, s), {}, unmasked_moment::decay);
    host.run(p.l, s, block_of(p, s), {}, unmasked_moment::decay);
    CHECK(state.equals(host));
  }
}

TEST_CASE("bits without a value, of no element or of a frozen one only age") {
  layout const l(100, 1,
                 {{.name = "a", .offset = 0, .length = 80},
                  {.name = "frozen", .offset = 80, .length = 20, .policy = span_policy::frozen}});
  std::vector<mask_word> const mask = {1, mask_word{1} << (90 - 64) | mask_word{1} << 36};
  rebuilt_shard<device, adamw> state(100, 3);
  rebuilt_shard<rebuild_on_host, adamw> host(100, 1);
  host.values.span()[0] = state.values.span()[0];
  state.run(l, 0, mask, {}, unmasked_moment::decay);
  host.run(l, 0, std::vector<mask_word>{1, 0}, {}, unmasked_moment::decay);
  CHECK(state.equals(host));
  CHECK(state.intact());

  rebuilt_shard<device, adamw> few(100, 1);
  few.run(l, 0, std::vector<mask_word>{0b10001, 0}, {}, unmasked_moment::decay);
  CHECK(few.equals(host));
}

TEST_CASE("values that a collective never wrote change nothing") {
  masked_problem const p({100, 1}, 0.3);
  rebuilt_shard<device, adamw> state(100, 30), before(100, 30);
  for (std::uint32_t i = 0; i < 4; ++i) {
    state.values.span()[i] = detail::bit_cast<float>(std::uint32_t{0x7fc5ca9e + i});
  }
  state.run(p.l, 0, p.mask, {}, unmasked_moment::decay);
  CHECK(state.equals(before));
  state.values.span()[3] = 1;  // three of the marks are only odd values
  state.run(p.l, 0, p.mask, {}, unmasked_moment::decay);
  CHECK_FALSE(state.equals(before));
}

}  // namespace
}  // namespace scape::testing
