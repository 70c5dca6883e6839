// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/concepts.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>

#include "support/counting_communicator.hpp"

namespace {

using comm_t = scape::self_communicator;
static_assert(scape::communicator<comm_t>);
static_assert(scape::has_all_gather<comm_t, float> && scape::has_all_gather<comm_t, std::uint64_t>);
static_assert(scape::has_reduce_scatter<comm_t, scape::bfloat16>);
static_assert(scape::has_reduce_scatter<comm_t, float, scape::maximum>);
static_assert(scape::has_all_reduce<comm_t, double>);
static_assert(scape::has_broadcast<comm_t, scape::float16>);
static_assert(!scape::has_all_gather<comm_t, std::string>);
static_assert(!scape::has_reduce_scatter<comm_t, float, std::function<float(float, float)>>);
static_assert(scape::has_all_reduce<scape::testing::counting_communicator<comm_t>, double>);

std::string message_of(std::function<void()> const& call) {
  try {
    call();
  } catch (scape::argument_error const& e) {
    return e.what();
  }
  return "no argument_error";
}

}  // namespace

TEST_CASE_TEMPLATE("a rank of its own copies", T, float, double, std::int32_t, scape::bfloat16) {
  comm_t comm;
  scape::host_context const ctx;
  CHECK(comm.rank() == 0);
  CHECK(comm.size() == 1);
  for (std::int64_t const n : {0, 1, 63, 64, 65, 1000}) {
    CAPTURE(n);
    std::vector<T> const in(static_cast<std::size_t>(n), static_cast<T>(3.0F));
    std::array const counts{n};
    auto const same = [&](std::vector<T> const& out) {
      bool equal = true;
      for (auto const& x : out) equal &= static_cast<float>(x) == 3.0F;
      return equal;
    };
    auto const fresh = [&] { return std::vector<T>(static_cast<std::size_t>(n)); };
    auto out = fresh();
    comm.all_gather(ctx, in, std::span(out), counts).wait(ctx);
    CHECK(same(out));
    out = fresh();
    comm.reduce_scatter(ctx, in, std::span(out), counts).wait(ctx);
    CHECK(same(out));
    out = fresh();
    comm.all_reduce(ctx, in, std::span(out), scape::maximum{}).wait(ctx);
    CHECK(same(out));
    comm.all_gather(ctx, out, std::span(out), counts).wait(ctx);
    comm.reduce_scatter(ctx, out, std::span(out), counts).wait(ctx);
    comm.all_reduce(ctx, out, std::span(out)).wait(ctx);
    comm.broadcast(ctx, std::span(out), 0).wait(ctx);
    comm.barrier(ctx).wait(ctx);
    CHECK(same(out));
  }
}

TEST_CASE("arguments are checked as elsewhere") {
  comm_t comm;
  scape::host_context const ctx;
  std::vector<float> five(5), six(6);
  std::array<std::int64_t, 1> const counts{5}, negative{-1};
  std::array<std::int64_t, 2> const two{2, 3};
  CHECK(message_of([&] { comm.all_gather(ctx, five, std::span(six), counts).wait(ctx); }) ==
        "scape::all_gather [rank 0 of 1]: recv has 6 elements, expected 5, the sum of counts");
  CHECK(message_of([&] { comm.reduce_scatter(ctx, five, std::span(six), counts).wait(ctx); }) ==
        "scape::reduce_scatter [rank 0 of 1]: recv has 6 elements, expected 5, counts[0]");
  CHECK(message_of([&] { comm.all_reduce(ctx, five, std::span(six)).wait(ctx); }) ==
        "scape::all_reduce [rank 0 of 1]: recv has 6 elements, expected 5, the length of send");
  CHECK(message_of([&] { comm.all_gather(ctx, five, std::span(five), two).wait(ctx); }) ==
        "scape::all_gather [rank 0 of 1]: counts has 2 entries, expected 1, one per rank");
  CHECK(message_of([&] { comm.all_gather(ctx, five, std::span(five), negative).wait(ctx); }) ==
        "scape::all_gather [rank 0 of 1]: counts[0] is -1, expected 0 or more");
  CHECK(message_of([&] { comm.broadcast(ctx, std::span(five), 1).wait(ctx); }) ==
        "scape::broadcast [rank 0 of 1]: root is 1, expected a rank from 0 to 0");
  auto const early = std::span(six).first(5), late = std::span(six).last(5);
  CHECK(message_of([&] { comm.all_reduce(ctx, early, late).wait(ctx); }).find("overlaps") !=
        std::string::npos);
}

TEST_CASE("the counting communicator sees nothing travel to a rank of its own") {
  comm_t self;
  scape::testing::counting_communicator comm(self);
  scape::host_context const ctx;
  std::vector<float> data(8, 1.0F);
  std::array<std::int64_t, 1> const counts{8};
  comm.all_gather(ctx, data, std::span(data), counts).wait(ctx);
  comm.reduce_scatter(ctx, data, std::span(data), counts).wait(ctx);
  comm.all_reduce(ctx, data, std::span(data)).wait(ctx);
  comm.broadcast(ctx, std::span(data), 0).wait(ctx);
  comm.barrier(ctx).wait(ctx);
  scape::testing::traffic const once{.calls = 1, .bytes = 0};
  CHECK(comm.gathers == once);
  CHECK(comm.reduce_scatters == once);
  CHECK(comm.all_reduces == once);
  CHECK(comm.broadcasts == once);
  CHECK(comm.barriers == once);
  comm.reset();
  CHECK(comm.gathers == scape::testing::traffic{});
}
