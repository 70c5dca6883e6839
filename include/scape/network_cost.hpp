// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What collectives cost on a network of known latency and bandwidth, and how to measure the two.

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/stopwatch.hpp>
#include <scape/error.hpp>
#include <scape/workspace.hpp>

namespace scape {

//! A message of b bytes takes latency + b * inverse_bandwidth.
struct link_cost {
  double latency = 0;            //!< alpha, in seconds
  double inverse_bandwidth = 0;  //!< beta, in seconds per byte
};

//! How the blocks of a reduce-scatter or an all-gather travel; the bytes are the same.
enum class exchange_algorithm : std::uint8_t {
  ring,    //!< P - 1 rounds of one block
  direct,  //!< one round: all blocks at once
  tree     //!< ceil(log2 P) rounds (Bruck, recursive halving, NCCL's PAT)
};

//! Messages that follow each other in an exchange among `ranks`.
[[nodiscard]] constexpr int exchange_rounds(exchange_algorithm algorithm, int ranks) noexcept {
  if (algorithm == exchange_algorithm::ring || ranks == 1) return ranks - 1;
  if (algorithm == exchange_algorithm::direct) return 1;
  return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
}

namespace detail {

inline void expect_valid(caller op, link_cost const& link) {
  expect(link.latency >= 0 && std::isfinite(link.latency), op,
         "a latency is not a finite number of seconds, 0 or more");
  expect(link.inverse_bandwidth >= 0 && std::isfinite(link.inverse_bandwidth), op,
         "an inverse bandwidth is not a finite number of seconds per byte, 0 or more");
}

}  // namespace detail

//! Equal ranks on equal nodes. Links carry both directions at once, and nobody else's messages.
struct network_cost {
  link_cost link = {};  //!< of one rank to other nodes
  exchange_algorithm algorithm = exchange_algorithm::ring;
  //! Above 1, collectives have two levels, one after the other: among the ranks of a node, and, in
  //! blocks smaller by their number, among those of equal place on all nodes.
  int ranks_per_node = 1;
  link_cost inside = {};  //!< of one rank to others of its node

  //! Seconds of a reduce-scatter or an all-gather that brings `bytes` to each rank; on one level,
  //! exchange_rounds() * latency + bytes * inverse_bandwidth. Throws argument_error if `ranks` or
  //! ranks_per_node is below 1, or `ranks` more than one node and not a multiple of it.
  [[nodiscard]] double exchange(int ranks, double bytes) const {
    auto const [nodes, within] = split("network_cost::exchange", ranks);
    if (ranks == 1) return 0;
    auto const seconds = [&](link_cost const& level, int members, int blocks) {
      return exchange_rounds(algorithm, members) * level.latency +
             bytes * blocks / (ranks - 1) * level.inverse_bandwidth;
    };
    return seconds(inside, within, nodes * (within - 1)) + seconds(link, nodes, nodes - 1);
  }

  //! Seconds of an all-reduce of a few bytes by recursive doubling: ceil(log2) rounds per level,
  //! each of all the bytes. Throws like exchange().
  [[nodiscard]] double all_reduce(int ranks, double bytes) const {
    auto const [nodes, within] = split("network_cost::all_reduce", ranks);
    auto const seconds = [&](link_cost const& level, int members) {
      auto const rounds = exchange_rounds(exchange_algorithm::tree, members);
      return rounds * level.latency + rounds * bytes * level.inverse_bandwidth;
    };
    return seconds(inside, within) + seconds(link, nodes);
  }

 private:
  struct levels {
    int nodes, within;
  };
  [[nodiscard]] levels split(detail::caller op, int ranks) const {
    detail::expect(ranks >= 1, op, [&] {
      return "the number of ranks is " + std::to_string(ranks) + ", expected at least 1";
    });
    detail::expect(ranks_per_node >= 1, op, "ranks_per_node is below 1");
    if (ranks <= ranks_per_node) return {1, ranks};
    detail::expect(ranks % ranks_per_node == 0, op, [&] {
      return std::to_string(ranks) + " ranks do not fill nodes of " +
             std::to_string(ranks_per_node) + "; give a multiple, or a single node";
    });
    return {ranks / ranks_per_node, ranks_per_node};
  }
};

//! A measured reduce-scatter or all-gather.
struct exchange_sample {
  exchange_algorithm algorithm = exchange_algorithm::ring;
  int ranks = 2;
  double bytes = 0;    //!< received by each rank
  double seconds = 0;  //!< until the last rank was done
};

//! The latency and inverse bandwidth, 0 or more, that minimise the sum of squared *relative* errors
//! of the predicted times, so that small messages count as much as large ones. Throws
//! argument_error unless there are samples of at least two sizes per round, all of two ranks or
//! more and of a positive time.
[[nodiscard]] inline link_cost fit_link(std::span<exchange_sample const> samples) {
  detail::caller const op = "fit_link";
  // Rows (a, b) with a * latency + b * inverse_bandwidth = 1; b is split into a part along a and a
  // rest across it, which loses fewer digits than the normal equations.
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  auto const for_each_row = [&](auto const& f) {
    for (auto const& s : samples) {
      f(exchange_rounds(s.algorithm, s.ranks) / s.seconds, s.bytes / s.seconds);
    }
  };
  for (auto const& s : samples) {
    detail::expect(s.ranks >= 2, op, "a sample of fewer than two ranks says nothing of a link");
    detail::expect(s.seconds > 0 && std::isfinite(s.seconds), op,
                   "a sample's time is not a positive number of seconds");
    detail::expect(s.bytes >= 0 && std::isfinite(s.bytes), op,
                   "a sample's bytes are not a finite number, 0 or more");
  }
  for_each_row([&](double a, double b) {
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  });
  double const along = aa > 0 ? ab / aa : 0;
  double across = 0, across1 = 0;
  for_each_row([&](double a, double b) {
    double const rest = b - along * a;
    across += rest * rest;
    across1 += rest;
  });
  detail::expect(aa > 0 && across > 1e-20 * bb, op,
                 "the samples cannot tell latency from bandwidth; give at least two sizes");
  double const inverse_bandwidth = across1 / across;
  double const latency = (a1 - ab * inverse_bandwidth) / aa;
  if (inverse_bandwidth < 0) return {a1 / aa, 0};
  if (latency < 0) return {0, b1 / bb};
  return {latency, inverse_bandwidth};
}

struct calibration_options {
  //! Bytes of the vectors that are scattered and gathered, rounded up to whole floats per rank.
  std::vector<std::int64_t> sizes = {std::int64_t{1} << 10, std::int64_t{1} << 14,
                                     std::int64_t{1} << 18, std::int64_t{1} << 22};
  int repetitions = 9;  //!< of every measurement; the median counts
  //! How the communicator's exchanges work, as far as is known: what the latency is charged to.
  exchange_algorithm algorithm = exchange_algorithm::ring;
};

namespace detail {

//! Floats of one rank's block of a vector of `size` bytes.
constexpr std::int64_t calibration_block(std::int64_t size, int ranks) noexcept {
  auto const bytes = std::int64_t{sizeof(float)} * ranks;
  return size / bytes + (size % bytes != 0 ? 1 : 0);
}

inline void expect_valid(caller op, calibration_options const& o) {
  expect(o.repetitions >= 1, op, "repetitions is below 1");
  expect(std::ranges::all_of(o.sizes, [](auto size) { return size >= 1; }), op,
         "a size is below 1 byte");
}

}  // namespace detail

//! Scratch of calibrate(). Throws argument_error if an option or `ranks` is below 1.
[[nodiscard]] inline std::size_t calibration_bytes(calibration_options const& options, int ranks) {
  detail::expect_valid("calibration_bytes", options);
  detail::expect(ranks >= 1, "calibration_bytes", [&] {
    return "the number of ranks is " + std::to_string(ranks) + ", expected at least 1";
  });
  auto const largest = options.sizes.empty() ? 0 : std::ranges::max(options.sizes);
  return workspace_size()
      .add<float>(detail::calibration_block(largest, ranks) * ranks)
      .add<std::int64_t>(ranks)
      .add<double>(2 * std::int64_t{options.repetitions})
      .bytes();
}

//! Times reduce-scatters and all-gathers of floats and fits a link to them. Every one starts behind
//! an all-reduce, and its time is that of the slowest rank, so the result is the same on all ranks.
//! A lone rank has no link: both numbers are 0. Collective; takes a fraction of a second on most
//! networks. Every rank passes the same options.
//!
//! @param ctx  scratch: calibration_bytes(options, ranks)
//! Throws argument_error, before anything is started, for options that fit_link() cannot use.
template <communicator C>
requires std::same_as<typename C::context_type, host_context> && has_reduce_scatter<C, float> &&
    has_all_gather<C, float> && has_all_reduce<C, double, maximum>
[[nodiscard]] link_cost calibrate(host_context const& ctx, C& comm,
                                  calibration_options const& options = {}) {
  detail::caller const op{"calibrate", comm.rank(), comm.size()};
  auto const ranks = comm.size();
  auto const block = [&](std::int64_t size) { return detail::calibration_block(size, ranks); };
  detail::expect_valid(op, options);
  detail::expect(!options.sizes.empty() && block(std::ranges::min(options.sizes)) !=
                                               block(std::ranges::max(options.sizes)),
                 op, "the sizes give equal blocks; give at least two that differ");
  carver scratch(ctx.scratch, op);
  auto const repetitions = std::int64_t{options.repetitions};
  auto const buffer = scratch.take<float>(block(std::ranges::max(options.sizes)) * ranks);
  auto const counts = scratch.take<std::int64_t>(ranks);
  auto const times = scratch.take<double>(repetitions);
  auto const slowest = scratch.take<double>(repetitions);
  if (ranks == 1) return {};

  std::ranges::fill(buffer, 0.0F);
  std::ranges::fill(slowest, 0.0);
  std::vector<exchange_sample> samples;
  auto const measure = [&](std::int64_t size, auto const& exchange) {
    for (auto& seconds : times) {
      comm.all_reduce(ctx, std::span<double const>(slowest), slowest, maximum{}).wait(ctx);
      detail::stopwatch watch;
      exchange();
      seconds = 1e-3 * watch.lap();
    }
    comm.all_reduce(ctx, std::span<double const>(times), slowest, maximum{}).wait(ctx);
    auto const median = slowest.begin() + repetitions / 2;
    std::nth_element(slowest.begin(), median, slowest.end());
    samples.push_back({options.algorithm, ranks,
                       static_cast<double>(block(size)) * sizeof(float) * (ranks - 1),
                       std::max(*median, 1e-9)});
  };
  auto sizes = options.sizes;  // largest first: it spends the bursts that a shaped link allows
  std::ranges::sort(sizes, std::greater<>());
  for (auto const size : sizes) {
    auto const length = static_cast<std::size_t>(block(size));
    auto const whole = buffer.first(length * counts.size());
    auto const own = whole.subspan(length * static_cast<std::size_t>(comm.rank()), length);
    std::ranges::fill(counts, block(size));
    measure(size, [&] {
      comm.reduce_scatter(ctx, std::span<float const>(whole), own, counts, std::plus<>()).wait(ctx);
    });
    measure(size,
            [&] { comm.all_gather(ctx, std::span<float const>(own), whole, counts).wait(ctx); });
  }
  return fit_link(samples);
}

}  // namespace scape
