// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <scape/single_buffer_moment_rebuild.hpp>

#include "cases/single_buffer_moment_rebuild.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

template <int threads>
struct host : pooled_backend<threads> {
  static std::size_t rebuild_bytes(layout const&) { return 0; }
};

TEST_CASE_TEMPLATE_INVOKE(rebuild_reference, rebuild_on_host, host<2>, host<3>);
TEST_CASE_TEMPLATE_INVOKE(rebuild_any, host<2>, host<3>);
TEST_CASE_TEMPLATE_INVOKE(rebuild_by_hand, rebuild_on_host);
TEST_CASE_TEMPLATE_INVOKE(rebuild_ages, rebuild_on_host);
TEST_CASE_TEMPLATE_INVOKE(rebuild_nan, rebuild_on_host);
TEST_CASE_TEMPLATE_INVOKE(rebuild_arguments, rebuild_on_host);

TEST_CASE("a mask with bits of no parameter or of frozen ones is refused") {
  layout const l(100, 1,
                 {{.name = "a", .offset = 0, .length = 70},
                  {.name = "frozen", .offset = 70, .length = 10, .policy = span_policy::frozen},
                  {.name = "b", .offset = 80, .length = 20}});
  rebuilt_shard<rebuild_on_host, adams> state(100, 2), before(100, 2);
  std::vector<mask_word> const beyond = {1, mask_word{1} << 36};
  CHECK(rejects([&] { state.run(l, 0, beyond, {}, unmasked_moment::hold); }, {"beyond", "1"}));
  std::vector<mask_word> const frozen = {1, mask_word{1} << (72 - 64)};
  CHECK(rejects([&] { state.run(l, 0, frozen, {}, unmasked_moment::hold); }, {"frozen"}));
  CHECK(state.equals(before));
}

}  // namespace
}  // namespace scape::testing
