// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What every operation of a hierarchical communicator must make of data whose sums are exact.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <scape/context/host.hpp>

#include "rank_data.hpp"

namespace scape::testing {

using counts_t = std::vector<std::int64_t>;

inline counts_t equal_counts(int ranks, std::int64_t count) { return counts_t(at(ranks), count); }
inline counts_t uneven_counts(int ranks) {
  counts_t counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(r % 3 == 1 ? 0 : 40 * r + r % 5);
  return counts;
}
inline std::int64_t sum_of(counts_t const& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

//! Sums of these are exact in every type.
template <class T>
std::vector<T> exact_values(int rank, std::int64_t n) {
  return make_vector(n,
                     [&](auto j) { return static_cast<T>(small_integer(7, rank, 0, j, 3) + 3); });
}

//! What every operation gives this rank, in place and not.
template <class T, class Op, class Comm>
std::vector<std::vector<T>> everything(Comm& comm, counts_t const& counts) {
  host_context const ctx;
  using in = std::span<T const>;
  auto const me = at(comm.rank());
  auto const n = sum_of(counts);
  auto const begin = std::accumulate(counts.begin(), counts.begin() + comm.rank(), std::int64_t{0});
  auto const own_of = [&](std::vector<T>& whole) {
    return std::span(whole).subspan(at(begin), at(counts[me]));
  };
  auto const mine = exact_values<T>(comm.rank(), n);
  std::vector<std::vector<T>> results;

  auto input = mine;
  std::vector<T> gathered(at(n));
  comm.all_gather(ctx, in(own_of(input)), std::span(gathered), counts).wait(ctx);
  results.push_back(gathered);
  comm.all_gather(ctx, in(own_of(input)), std::span(input), counts).wait(ctx);
  results.push_back(input);

  input = mine;
  std::vector<T> block(at(counts[me]));
  comm.reduce_scatter(ctx, in(input), std::span(block), counts, Op()).wait(ctx);
  CHECK(same_bits(input, mine));
  results.push_back(block);
  comm.reduce_scatter(ctx, in(input), own_of(input), counts, Op()).wait(ctx);
  results.push_back(input);

  input = mine;
  std::vector<T> reduced(at(n));
  comm.all_reduce(ctx, in(input), std::span(reduced), Op()).wait(ctx);
  CHECK(same_bits(input, mine));
  results.push_back(reduced);
  comm.all_reduce(ctx, in(input), std::span(input), Op()).wait(ctx);
  results.push_back(input);

  for (int root = 0; root < comm.size(); ++root) {
    input = mine;
    comm.broadcast(ctx, std::span(input), root).wait(ctx);
    results.push_back(input);
  }
  return results;
}

//! One operation of a random list and what it must give.
template <class Comm>
struct random_operation {
  int kind;
  counts_t counts;
  std::int64_t n;
  std::vector<float> send, recv, want;
  std::optional<typename Comm::handle_type> handle;

  random_operation(std::uint64_t seed, int i, int rank, int ranks)
      : kind(static_cast<int>(scramble(seed, at(i)) % 5)) {
    for (int r = 0; r < ranks; ++r) {
      counts.push_back(static_cast<std::int64_t>(scramble(seed, at(i), at(r)) % 9));
    }
    n = sum_of(counts);
    auto const value = [&](int r, std::int64_t j) {
      return small_integer(seed + at(i), r, 1, j, 9);
    };
    auto const sum = [&](std::int64_t j) {
      float s = 0;
      for (int r = 0; r < ranks; ++r) s += value(r, j);
      return s;
    };
    std::int64_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += counts[at(r)];
    auto const own = counts[at(rank)];
    if (kind == 0) {
      send = make_vector(own, [&](auto j) { return value(rank, j); });
      recv.resize(at(n));
      for (int r = 0; r < ranks; ++r) {
        for (std::int64_t j = 0; j < counts[at(r)]; ++j) want.push_back(value(r, j));
      }
    } else {
      send = make_vector(n, [&](auto j) { return value(rank, j); });
      recv.resize(at(kind == 1 ? own : n));
      if (kind == 1) want = make_vector(own, [&](auto j) { return sum(begin + j); });
      if (kind == 2) want = make_vector(n, sum);
      if (kind == 3) {
        auto const root = static_cast<int>(n % ranks);
        recv = send;
        want = make_vector(n, [&](auto j) { return value(root, j); });
      }
      if (kind == 4) want = recv;
    }
  }

  void start(Comm& comm) {
    host_context const ctx;
    std::span const out(recv);
    if (kind == 0) handle = comm.all_gather(ctx, send, out, counts);
    if (kind == 1) handle = comm.reduce_scatter(ctx, send, out, counts);
    if (kind == 2) handle = comm.all_reduce(ctx, send, out);
    if (kind == 3) handle = comm.broadcast(ctx, out, static_cast<int>(n % comm.size()));
    if (kind == 4) handle = comm.barrier(ctx);
    std::ranges::fill(counts, -1);  // they may change now
  }
};

//! Of a communicator for check_random_waits.
inline int random_in_flight(std::uint64_t seed) {
  return std::vector<int>{1, 2, 3, 16}[at(seed % 4)];
}

//! Ranks start the same operations and wait for them in orders of their own.
template <class Comm>
void check_random_waits(Comm& comm, std::uint64_t seed) {
  constexpr int operations = 24;
  host_context const ctx;
  std::vector<random_operation<Comm>> list;
  for (int i = 0; i < operations; ++i) list.emplace_back(seed, i, comm.rank(), comm.size());
  auto random = [&, draws = std::uint64_t{0}](std::uint64_t n) mutable {
    return scramble(seed, at(comm.rank()), 77, ++draws) % n;
  };
  std::vector<int> open;
  auto const end_one = [&] {
    auto const which = open.begin() + static_cast<std::ptrdiff_t>(random(open.size()));
    auto& op = list[at(*which)];
    open.erase(which);
    if (random(4) == 0) {
      op.handle.reset();
    } else {
      auto moved = std::move(*op.handle);
      moved.wait(ctx);
      moved.wait(ctx);
    }
  };
  for (int i = 0; i < operations; ++i) {
    if (random(8) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random(200)));
    list[at(i)].start(comm);
    open.push_back(i);
    while (!open.empty() && random(3) == 0) end_one();
  }
  while (!open.empty()) end_one();
  for (auto const& op : list) {
    CAPTURE(op.kind);
    CHECK(same_bits(op.recv, op.want));
  }
}

}  // namespace scape::testing
