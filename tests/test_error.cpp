// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include <scape/error.hpp>

#include "support/raises.hpp"

using scape::testing::rejects;

static_assert(std::is_base_of_v<std::runtime_error, scape::error>);
static_assert(std::is_base_of_v<scape::error, scape::argument_error>);
static_assert(std::is_base_of_v<scape::error, scape::peer_error>);
static_assert(std::is_base_of_v<scape::error, scape::checkpoint_error>);
static_assert(!std::is_base_of_v<scape::argument_error, scape::peer_error>);

TEST_CASE("an error names the operation, the rank and the place") {
  scape::argument_error const outside("layout", "n is -1");
  CHECK(std::string(outside.what()) == "scape::layout: n is -1");
  CHECK(outside.operation() == "layout");
  CHECK(outside.rank() == -1);
  CHECK(outside.size() == -1);
  CHECK(std::string(outside.where().file).find("test_error.cpp") != std::string::npos);
  CHECK(outside.where().line == __LINE__ - 6);

  scape::peer_error const lost("all_gather", "rank 2 left", 2, 1, 4);
  CHECK(std::string(lost.what()) == "scape::all_gather [rank 1 of 4]: rank 2 left");
  CHECK(lost.peer() == 2);
  CHECK(lost.rank() == 1);
  CHECK(lost.size() == 4);
}

TEST_CASE("checks name both numbers and pass what is right") {
  using namespace scape::detail;
  CHECK_NOTHROW(expect_equal("op", "the length", 3, 3));
  CHECK(rejects([] { expect_equal("op", "the length", 2, 3); },
                {"scape::op: the length is 2, expected 3"}));
  CHECK(rejects([] { expect_equal("op", "the length", 2, 3, "one per rank"); },
                {"is 2, expected 3; one per rank"}));
  CHECK(
      rejects([] { expect_equal("op", "n", std::int64_t{1} << 40, -1); }, {"1099511627776", "-1"}));
  CHECK_NOTHROW(expect_scratch("op", 8, 8));
  CHECK(rejects([] { expect_scratch("op", 7, 8); }, {"scape::op", "7 bytes", "8 are needed"}));
  CHECK_NOTHROW(expect(true, "op", "unused"));
  CHECK(rejects([] { expect(false, "op", "the reason"); }, {"scape::op: the reason"}));
}

TEST_CASE("a check reports where it was called") {
  try {
    scape::detail::expect(false, "op", "x");
    FAIL("it did not throw");
  } catch (scape::error const& e) {
    CHECK(std::string(e.where().file).find("test_error.cpp") != std::string::npos);
  }
}
