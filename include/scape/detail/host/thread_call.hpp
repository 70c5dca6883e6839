// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What one rank thread asks of an operation, and the loops that produce a collective one's result.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <scape/context/host.hpp>
#include <scape/detail/collective_name.hpp>
#include <scape/detail/host/ordered_fold.hpp>

namespace scape::detail {

//! One rank's side of an operation. Everything up to `counts` must agree between the ranks.
struct thread_call {
  std::string_view operation;
  std::string_view element = {};
  std::string_view op = {};
  std::size_t element_size = 0;
  std::int64_t total = 0;  //!< elements of the operation's largest buffer
  int root = -1;           //!< or the peer of a message
  std::span<std::int64_t const> counts = {};
  std::byte const* send = nullptr;
  std::byte* recv = nullptr;
  //! Computes part `part` of calls.size() parts: no two parts write the same element, and none
  //! reads what another one writes. Null where nothing is to be done.
  void (*produce)(std::span<thread_call const> calls, int part) noexcept = nullptr;
};

inline std::string describe(thread_call const& call) {
  return describe(collective_name{call.operation, call.element, call.total, call.root});
}

//! "" if the calls agree, otherwise "rank <b> started <call>, rank <a> <call>".
inline std::string disagreement(int a, thread_call const& first, int b, thread_call const& second) {
  std::string more_first, more_second;
  bool const same_text = first.operation == second.operation && first.element == second.element &&
                         first.total == second.total && first.root == second.root;
  if (same_text) {
    if (first.element_size != second.element_size) {
      more_first = " of " + std::to_string(first.element_size) + " bytes each";
      more_second = " of " + std::to_string(second.element_size) + " bytes each";
    } else if (first.op != second.op) {
      more_first = " with " + std::string(first.op);
      more_second = " with " + std::string(second.op);
    } else {
      auto const [x, y] = std::mismatch(first.counts.begin(), first.counts.end(),
                                        second.counts.begin(), second.counts.end());
      if (x == first.counts.end()) return {};
      auto const where = " with counts[" + std::to_string(x - first.counts.begin()) + "] = ";
      more_first = where + std::to_string(*x);
      more_second = where + std::to_string(*y);
    }
  }
  return "rank " + std::to_string(b) + " started " + describe(second) + more_second + ", rank " +
         std::to_string(a) + " " + describe(first) + more_first;
}

inline void produce_all_gather(std::span<thread_call const> calls, int part) noexcept {
  auto to = calls[static_cast<std::size_t>(part)].recv;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    auto const bytes = static_cast<std::size_t>(calls[r].counts[r]) * calls[r].element_size;
    copy_bytes(to, calls[r].send, bytes);
    to += bytes;
  }
}

inline void produce_broadcast(std::span<thread_call const> calls, int part) noexcept {
  auto const& call = calls[static_cast<std::size_t>(part)];
  copy_bytes(call.recv, calls[static_cast<std::size_t>(call.root)].send,
             static_cast<std::size_t>(call.total) * call.element_size);
}

//! source(r) for fold.
template <class T>
auto sends_of(std::span<thread_call const> calls) noexcept {
  return [calls](std::size_t r) { return reinterpret_cast<T const*>(calls[r].send); };
}

template <class T, class Op>
void produce_reduce_scatter(std::span<thread_call const> calls, int part) noexcept {
  auto const& call = calls[static_cast<std::size_t>(part)];
  std::int64_t begin = 0;
  for (int r = 0; r < part; ++r) begin += call.counts[static_cast<std::size_t>(r)];
  fold<T, Op>(calls.size(), sends_of<T>(calls), begin,
              begin + call.counts[static_cast<std::size_t>(part)],
              [&](std::int64_t i, auto const* block, std::int64_t n) {
                store_elements<T>(call.recv, i - begin, block, n);
              });
}

template <class T, class Op>
void produce_all_reduce(std::span<thread_call const> calls, int part) noexcept {
  constexpr std::int64_t grain = 64;  // keeps two parts out of one cache line
  auto const total = calls[0].total;
  auto const [first, last] =
      part_of((total + grain - 1) / grain, part, static_cast<int>(calls.size()));
  fold<T, Op>(calls.size(), sends_of<T>(calls), first * grain, std::min(last * grain, total),
              [&](std::int64_t i, auto const* block, std::int64_t n) {
                for (auto const& call : calls) store_elements<T>(call.recv, i, block, n);
              });
}

}  // namespace scape::detail
