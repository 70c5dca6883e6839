// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A communicator of one rank: every collective operation is a copy, done when it returns, and a
//! message goes from its `send` to its `recv`.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>

#include <scape/comm/threads.hpp>
#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/collective_arguments.hpp>

namespace scape {

//! For messages alone: collective operations are complete, and `wait` does nothing.
using self_handle = thread_handle;

//! Rank 0 of 1; a copy is the same rank. Checks its arguments as the other communicators do
//! (argument_error). A call in place copies nothing. The other side of a message has to be started
//! before one waits (peer_error).
class self_communicator {
 public:
  using context_type = host_context;
  using handle_type = self_handle;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  template <detail::element T>
  self_handle all_gather(host_context const&, std::type_identity_t<std::span<T const>> send,
                         std::span<T> recv, std::span<std::int64_t const> counts) const {
    detail::expect_blocks({"all_gather", 0, 1}, {"send", send}, {"recv", recv}, counts, sizeof(T));
    return copy<T>(send, recv);
  }

  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  self_handle reduce_scatter(host_context const&, std::type_identity_t<std::span<T const>> send,
                             std::span<T> recv, std::span<std::int64_t const> counts,
                             Op = {}) const {
    detail::expect_blocks({"reduce_scatter", 0, 1}, {"recv", recv}, {"send", send}, counts,
                          sizeof(T));
    return copy<T>(send, recv);
  }

  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  self_handle all_reduce(host_context const&, std::type_identity_t<std::span<T const>> send,
                         std::span<T> recv, Op = {}) const {
    detail::expect_alike({"all_reduce", 0, 1}, {"send", send}, {"recv", recv}, sizeof(T));
    return copy<T>(send, recv);
  }

  template <detail::element T>
  self_handle broadcast(host_context const&, std::span<T>, int root) const {
    detail::expect_root({"broadcast", 0, 1}, root);
    return {};
  }

  self_handle barrier(host_context const&) const noexcept { return {}; }

  template <detail::element T>
  self_handle send(host_context const& ctx, std::span<T const> data, int to) const {
    return messages_->rank.send(ctx, data, to);
  }

  template <detail::element T>
  self_handle recv(host_context const& ctx, std::span<T> data, int from) const {
    return messages_->rank.recv(ctx, data, from);
  }

 private:
  struct messages {
    thread_group group{1, {.in_flight = 1}};
    thread_communicator rank = group.communicator(0);
  };

  template <class T>
  static self_handle copy(std::span<T const> send, std::span<T> recv) {
    if (send.data() != recv.data()) std::copy(send.begin(), send.end(), recv.begin());
    return {};
  }

  std::shared_ptr<messages> const messages_ = std::make_shared<messages>();
};

}  // namespace scape
