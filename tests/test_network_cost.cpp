// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/network_cost.hpp>
#include <scape/workspace.hpp>

#include "support/counting_communicator.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

using scape::calibration_options;
using scape::exchange_algorithm;
using scape::exchange_rounds;
using scape::exchange_sample;
using scape::fit_link;
using scape::link_cost;
using scape::network_cost;
using scape::testing::at;
using scape::testing::rejects;
using scape::testing::uniform;

namespace {

constexpr auto all_algorithms = {exchange_algorithm::ring, exchange_algorithm::direct,
                                 exchange_algorithm::tree};

//! Messages of 16 bytes to 16 MiB among 2 to 64 ranks, of every algorithm, at the exact time.
std::vector<exchange_sample> samples_of(link_cost const& link) {
  std::vector<exchange_sample> samples;
  for (auto const algorithm : all_algorithms) {
    for (int const ranks : {2, 7, 64}) {
      for (double bytes = 16; bytes <= 1 << 24; bytes *= 16) {
        auto const seconds = network_cost{.link = link, .algorithm = algorithm};
        samples.push_back({algorithm, ranks, bytes, seconds.exchange(ranks, bytes)});
      }
    }
  }
  return samples;
}

}  // namespace

TEST_CASE("rounds of an exchange") {
  CHECK(exchange_rounds(exchange_algorithm::ring, 1) == 0);
  CHECK(exchange_rounds(exchange_algorithm::direct, 1) == 0);
  CHECK(exchange_rounds(exchange_algorithm::tree, 1) == 0);
  CHECK(exchange_rounds(exchange_algorithm::ring, 8) == 7);
  CHECK(exchange_rounds(exchange_algorithm::direct, 8) == 1);
  CHECK(exchange_rounds(exchange_algorithm::tree, 2) == 1);
  CHECK(exchange_rounds(exchange_algorithm::tree, 3) == 2);
  CHECK(exchange_rounds(exchange_algorithm::tree, 8) == 3);
  CHECK(exchange_rounds(exchange_algorithm::tree, 9) == 4);
  CHECK(exchange_rounds(exchange_algorithm::tree, 10240) == 14);
}

TEST_CASE("one level: rounds of latency and the bytes once") {
  // Powers of two, so that the sums are exact: 2^-10 s a message, 2^-20 s a byte.
  network_cost network{.link = {0x1p-10, 0x1p-20}};
  CHECK(network.exchange(5, 1024) == 4 * 0x1p-10 + 0x1p-10);
  CHECK(network.exchange(5, 0) == 4 * 0x1p-10);
  CHECK(network.exchange(1, 0) == 0);
  network.algorithm = exchange_algorithm::direct;
  CHECK(network.exchange(5, 1024) == 0x1p-10 + 0x1p-10);
  network.algorithm = exchange_algorithm::tree;
  CHECK(network.exchange(5, 1024) == 3 * 0x1p-10 + 0x1p-10);
  for (auto const algorithm : all_algorithms) {
    network.algorithm = algorithm;
    CHECK(network.all_reduce(5, 8) == 3 * (0x1p-10 + 0x1p-17));
    CHECK(network.all_reduce(1, 8) == 0);
  }
}

TEST_CASE("two levels: most bytes inside the node, blocks of a node's ranks between them") {
  // 4 nodes of 3: of the 11 blocks a rank receives, 8 come from inside its node (2 ranks, for 4
  // nodes) and 3 from the others.
  network_cost network{
      .link = {0x1p-10, 0x1p-20}, .ranks_per_node = 3, .inside = {0x1p-15, 0x1p-30}};
  CHECK(network.exchange(12, 11264) ==
        (2 * 0x1p-15 + 8192 * 0x1p-30) + (3 * 0x1p-10 + 3072 * 0x1p-20));
  CHECK(network.all_reduce(12, 8) == 2 * (0x1p-15 + 0x1p-27) + 2 * (0x1p-10 + 0x1p-17));
  // A single node, full or not, has no other link.
  CHECK(network.exchange(3, 1024) == 2 * 0x1p-15 + 1024 * 0x1p-30);
  CHECK(network.exchange(2, 1024) == 0x1p-15 + 1024 * 0x1p-30);
  CHECK(network.all_reduce(2, 8) == 0x1p-15 + 0x1p-27);
  network.algorithm = exchange_algorithm::direct;
  CHECK(network.exchange(12, 11264) == (0x1p-15 + 8192 * 0x1p-30) + (0x1p-10 + 3072 * 0x1p-20));
}

TEST_CASE("two levels with equal links and one round each cost the bytes of one level") {
  link_cost const free_messages{0, 0x1p-20};
  network_cost const one{.link = free_messages};
  network_cost const two{.link = free_messages, .ranks_per_node = 4, .inside = free_messages};
  CHECK(two.exchange(12, 11264) == one.exchange(12, 11264));
}

TEST_CASE("more ranks never take less time for as many bytes each") {
  for (auto const algorithm : all_algorithms) {
    network_cost const network{.link = {1e-5, 1e-10}, .algorithm = algorithm};
    for (int ranks = 2; ranks < 300; ++ranks) {
      CHECK(network.exchange(ranks, 1e6) <= network.exchange(ranks + 1, 1e6));
      CHECK(network.all_reduce(ranks, 8) <= network.all_reduce(ranks + 1, 8));
    }
  }
}

TEST_CASE("ranks that do not fill their nodes are refused") {
  network_cost const network{.ranks_per_node = 8};
  CHECK(rejects([&] { (void)network.exchange(12, 1); },
                {"network_cost::exchange", "12 ranks", "nodes of 8", "multiple"}));
  CHECK(rejects([&] { (void)network.all_reduce(0, 1); },
                {"network_cost::all_reduce", "ranks is 0", "at least 1"}));
  for (int const none : {0, -1}) {
    network_cost const nodeless{.ranks_per_node = none};
    CHECK(rejects([&] { (void)nodeless.exchange(4, 1); }, {"ranks_per_node is below 1"}));
    CHECK(rejects([&] { (void)nodeless.all_reduce(4, 1); }, {"ranks_per_node is below 1"}));
  }
}

TEST_CASE("the fit finds the link behind exact times") {
  for (link_cost const link : {link_cost{2e-6, 2e-11}, {1e-3, 1e-12}, {1e-9, 1e-6}}) {
    auto const found = fit_link(samples_of(link));
    CHECK(std::abs(found.latency / link.latency - 1) < 1e-9);
    CHECK(std::abs(found.inverse_bandwidth / link.inverse_bandwidth - 1) < 1e-9);
  }
  auto const no_latency = fit_link(samples_of({0, 1e-9}));
  CHECK(no_latency.latency <= 1e-24);
  CHECK(no_latency.inverse_bandwidth == doctest::Approx(1e-9));
  auto const no_bytes = fit_link(samples_of({1e-5, 0}));
  CHECK(no_bytes.latency == doctest::Approx(1e-5));
  CHECK(no_bytes.inverse_bandwidth <= 1e-24);
}

// Times are off by at most a share e, so the true link leaves relative errors of at most e / (1 -
// e) in the N equations. The fit differs from it by the projection of these errors, so with rows
// scaled to the true link, |A x| <= sqrt(N) e / (1 - e) for the relative errors x of the two
// numbers, and |x| is at most that by the smallest singular value of A.
TEST_CASE("the fit is as near as the noise allows") {
  link_cost const link{2e-6, 2e-11};
  for (double const e : {0.01, 0.1, 0.3}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      auto samples = samples_of(link);
      double aa = 0, ab = 0, bb = 0;
      for (std::size_t i = 0; i < samples.size(); ++i) {
        auto& s = samples[i];
        s.seconds *= 1 + e * (2 * uniform(seed, 0, 0, static_cast<std::int64_t>(i)) - 1);
        auto const a = exchange_rounds(s.algorithm, s.ranks) * link.latency / s.seconds;
        auto const b = s.bytes * link.inverse_bandwidth / s.seconds;
        aa += a * a;
        ab += a * b;
        bb += b * b;
      }
      auto const smallest = std::sqrt((aa + bb) / 2 - std::hypot((aa - bb) / 2, ab));
      auto const bound = std::sqrt(static_cast<double>(samples.size())) * e / (1 - e) / smallest;
      auto const found = fit_link(samples);
      CAPTURE(e);
      CAPTURE(seed);
      CHECK(std::hypot(found.latency / link.latency - 1,
                       found.inverse_bandwidth / link.inverse_bandwidth - 1) <= bound);
    }
  }
}

TEST_CASE("neither number becomes negative") {
  using enum exchange_algorithm;
  // Time grows faster than the bytes: alone, they explain it best.
  std::vector<exchange_sample> const steep{{ring, 2, 1000, 1e-3}, {ring, 2, 2000, 4e-3}};
  auto const bandwidth = fit_link(steep);
  CHECK(bandwidth.latency == 0);
  // x minimises (1000 x / 1e-3 - 1)^2 + (2000 x / 4e-3 - 1)^2: x = (1e6 + 5e5) / (1e12 + 2.5e11).
  CHECK(bandwidth.inverse_bandwidth == doctest::Approx(1.2e-6));
  // Time falls with the bytes: only messages are left.
  std::vector<exchange_sample> const falling{{ring, 2, 1000, 4e-3}, {ring, 2, 2000, 1e-3}};
  auto const latency = fit_link(falling);
  CHECK(latency.inverse_bandwidth == 0);
  CHECK(latency.latency == doctest::Approx((250.0 + 1000.0) / (62500.0 + 1e6)));
}

TEST_CASE("samples that a fit cannot use are refused") {
  using enum exchange_algorithm;
  using samples = std::vector<exchange_sample>;
  auto const refused = [](samples const& s, std::initializer_list<std::string_view> parts) {
    return rejects([&] { (void)fit_link(s); }, parts);
  };
  constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused({}, {"fit_link", "at least two sizes"}));
  CHECK(refused({{ring, 2, 100, 1}}, {"at least two sizes"}));
  CHECK(refused({{ring, 2, 100, 1}, {ring, 2, 100, 1.1}}, {"at least two sizes"}));
  CHECK(refused({{ring, 3, 300, 1}, {ring, 7, 900, 3}}, {"at least two sizes"}));
  CHECK(refused({{ring, 2, 0, 1}, {ring, 4, 0, 3}}, {"at least two sizes"}));
  CHECK(refused({{ring, 1, 0, 1}, {ring, 2, 100, 1}}, {"fewer than two ranks"}));
  CHECK(refused({{ring, 2, 10, 0}, {ring, 2, 100, 1}}, {"time is not a positive"}));
  CHECK(refused({{ring, 2, 10, nan}, {ring, 2, 100, 1}}, {"time is not a positive"}));
  CHECK(refused({{ring, 2, -1, 1}, {ring, 2, 100, 1}}, {"bytes are not"}));
  CHECK(refused({{ring, 2, 0, 1e170}, {ring, 2, 1e170, 1e170}}, {"cannot tell"}));
}

TEST_CASE("a calibration gives every rank the same positive figures") {
  for (int const ranks : {2, 3}) {
    calibration_options const options{.repetitions = 5, .algorithm = exchange_algorithm::direct};
    std::vector<link_cost> links(at(ranks));
    scape::run_threads(ranks, [&](scape::thread_communicator& comm) {
      scape::host_buffer const scratch(scape::calibration_bytes(options, ranks));
      scape::testing::counting_communicator counted(comm);
      links[at(comm.rank())] = scape::calibrate({scratch.bytes()}, counted, options);
      CHECK(counted.reduce_scatters.calls == 4 * 5);
      CHECK(counted.gathers.calls == 4 * 5);
      CHECK(counted.all_reduces.calls == 2 * 4 * (5 + 1));
    });
    CHECK(links[0].latency > 0);
    CHECK(links[0].inverse_bandwidth > 1e-13);  // no core moves 10 TB/s
    for (auto const& link : links) {
      CHECK(link.latency == links[0].latency);
      CHECK(link.inverse_bandwidth == links[0].inverse_bandwidth);
    }
  }
}

TEST_CASE("a lone rank has no link") {
  scape::self_communicator comm;
  scape::host_buffer const scratch(scape::calibration_bytes({}, 1));
  auto const link = scape::calibrate({scratch.bytes()}, comm);
  CHECK(link.latency == 0);
  CHECK(link.inverse_bandwidth == 0);
}

TEST_CASE("calibrations that cannot be fitted are refused before they start") {
  scape::self_communicator inner;
  scape::testing::counting_communicator comm(inner);
  scape::host_buffer const scratch(scape::calibration_bytes({}, 1));
  scape::host_context const ctx{scratch.bytes()};
  auto const refused = [&](calibration_options const& options,
                           std::initializer_list<std::string_view> parts) {
    return rejects([&] { (void)scape::calibrate(ctx, comm, options); }, parts);
  };
  CHECK(refused({.sizes = {}}, {"calibrate", "at least two"}));
  CHECK(refused({.sizes = {64}}, {"at least two"}));
  CHECK(refused({.sizes = {61, 64}}, {"equal blocks"}));  // 16 floats both
  CHECK(refused({.sizes = {0, 64}}, {"below 1 byte"}));
  CHECK(refused({.repetitions = 0}, {"repetitions is below 1"}));
  CHECK(refused({.sizes = {64, std::int64_t{1} << 23}}, {"workspace", "are needed"}));
  CHECK(
      rejects([] { (void)scape::calibration_bytes({}, 0); }, {"calibration_bytes", "ranks is 0"}));
  CHECK(comm.all_reduces.calls + comm.gathers.calls + comm.reduce_scatters.calls == 0);
}
