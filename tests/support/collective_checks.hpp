// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What every operation of a host communicator must make of data whose sums round.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "rank_data.hpp"

namespace scape::testing {

//! Elements between two canary words.
template <class T>
class fenced {
 public:
  explicit fenced(std::int64_t count)
      : bytes_(at(count) * sizeof(T)), memory_(bytes_ + 2 * sizeof canary) {
    std::memcpy(memory_.data(), &canary, sizeof canary);
    std::memcpy(memory_.data() + sizeof canary + bytes_, &canary, sizeof canary);
  }
  [[nodiscard]] std::span<T> span() {
    return {reinterpret_cast<T*>(memory_.data() + sizeof canary), bytes_ / sizeof(T)};
  }
  [[nodiscard]] bool intact() const {
    return std::memcmp(memory_.data(), &canary, sizeof canary) == 0 &&
           std::memcmp(memory_.data() + sizeof canary + bytes_, &canary, sizeof canary) == 0;
  }

 private:
  static constexpr std::uint64_t canary = 0x5ca9e5ca9e5ca9e5U;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

//! Element i of rank r: sums of these round, so their order shows.
template <class T>
T value(int r, std::int64_t i) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(1000 * r + i % 997);
  } else if constexpr (std::is_same_v<T, double>) {
    return 0.1 * (r + 1) * static_cast<double>(i % 97 + 1) - 3;
  } else {
    return static_cast<T>(0.1F * static_cast<float>(r + 1) * static_cast<float>(i % 97 + 1) - 3);
  }
}

template <class T, class Op>
T combined(int ranks, std::int64_t i, Op op) {
  if constexpr (sizeof(T) == 2) {
    auto sum = static_cast<float>(value<T>(0, i));
    for (int r = 1; r < ranks; ++r) sum = op(sum, static_cast<float>(value<T>(r, i)));
    return T(sum);
  } else {
    auto sum = value<T>(0, i);
    for (int r = 1; r < ranks; ++r) sum = op(sum, value<T>(r, i));
    return sum;
  }
}

template <class T>
bool same(std::span<T const> got, std::function<T(std::int64_t)> const& want) {
  for (std::int64_t i = 0; i < std::ssize(got); ++i) {
    auto const expected = want(i);
    if (std::memcmp(&got[at(i)], &expected, sizeof(T)) != 0) return false;
  }
  return true;
}

template <class T>
void fill(std::span<T> data, int rank, std::int64_t first = 0) {
  for (std::int64_t i = 0; i < std::ssize(data); ++i) data[at(i)] = value<T>(rank, first + i);
}

//! Every operation on blocks of `counts`, in place and not; counts what is wrong.
template <class T, class Comm, class Op>
int errors_of(Comm& comm, std::vector<std::int64_t> const& counts, Op op) {
  int errors = 0;
  typename Comm::context_type const ctx;
  int const ranks = comm.size(), me = comm.rank();
  auto const n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  auto const begin = std::accumulate(counts.begin(), counts.begin() + me, std::int64_t{0});
  auto const mine = counts[at(me)];
  auto const owner_of = [&](std::int64_t i) {
    int r = 0;
    for (auto left = i; left >= counts[at(r)]; ++r) left -= counts[at(r)];
    return r;
  };
  std::function<T(std::int64_t)> const gathered = [&](std::int64_t i) {
    return value<T>(owner_of(i), i);
  };
  std::function<T(std::int64_t)> const own = [&](std::int64_t i) { return value<T>(me, i); };
  std::function<T(std::int64_t)> const own_block = [&](std::int64_t i) {
    return value<T>(me, begin + i);
  };
  std::function<T(std::int64_t)> const sum = [&](std::int64_t i) {
    return combined<T>(ranks, i, op);
  };
  std::function<T(std::int64_t)> const sum_block = [&](std::int64_t i) { return sum(begin + i); };
  using in = std::span<T const>;

  fenced<T> part(mine), whole(n), other(n);
  fill(part.span(), me, begin);
  comm.all_gather(ctx, part.span(), whole.span(), counts).wait(ctx);
  errors += !same(in(whole.span()), gathered) + !same(in(part.span()), own_block);

  fenced<T> in_place(n);
  auto const block = in_place.span().subspan(at(begin), at(mine));
  fill(block, me, begin);
  comm.all_gather(ctx, block, in_place.span(), counts).wait(ctx);
  errors += !same(in(in_place.span()), gathered);

  fill(whole.span(), me);
  comm.reduce_scatter(ctx, whole.span(), part.span(), counts, op).wait(ctx);
  errors += !same(in(part.span()), sum_block) + !same(in(whole.span()), own);

  fill(in_place.span(), me);
  comm.reduce_scatter(ctx, in_place.span(), block, counts, op).wait(ctx);
  errors += !same(in(block), sum_block);
  for (std::int64_t i = 0; i < n; ++i) {  // the other blocks are input only
    if (i >= begin && i < begin + mine) continue;
    auto const expected = own(i);
    errors += std::memcmp(&in_place.span()[at(i)], &expected, sizeof(T)) != 0;
  }

  comm.all_reduce(ctx, whole.span(), other.span(), op).wait(ctx);
  errors += !same(in(other.span()), sum) + !same(in(whole.span()), own);
  comm.all_reduce(ctx, whole.span(), whole.span(), op).wait(ctx);
  errors += !same(in(whole.span()), sum);

  for (int root = 0; root < ranks; ++root) {
    fill(whole.span(), me);
    comm.broadcast(ctx, whole.span(), root).wait(ctx);
    errors += !same<T>(in(whole.span()), [&](std::int64_t i) { return value<T>(root, i); });
  }
  errors += !part.intact() + !whole.intact() + !other.intact() + !in_place.intact();
  return errors;
}

}  // namespace scape::testing
