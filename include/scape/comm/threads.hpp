// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks as threads of one process.
//!
//!     scape::run_threads(4, [&](scape::thread_communicator& comm) {
//!       comm.all_reduce(ctx, std::span<float const>(mine), sum, std::plus<>()).wait(ctx);
//!     });
//!
//! Operations are asynchronous without a helper thread: whoever waits also does the share of ranks
//! that are away computing. Reductions combine the ranks in rank order, 16-bit floats in float with
//! one rounding at the end, so results do not depend on timing.
//!
//! Ranks must start the same collective operations with equal counts, types and roots; this is
//! always checked, and so are lengths and types of the two sides of a message. Whoever starts its
//! side second copies the message at once, from buffer to buffer. A rank that throws, leaves,
//! disagrees, or does not start an operation within the deadline ends the group: every other rank
//! gets a peer_error that names it, now and from every later call.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/collective_arguments.hpp>
#include <scape/detail/host/run_ranks.hpp>
#include <scape/detail/host/thread_call.hpp>
#include <scape/detail/host/thread_group.hpp>
#include <scape/error.hpp>

namespace scape {

struct thread_options {
  //! How long a rank waits for others to start an operation.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  //! Collective operations that may be incomplete at a time; starting one more waits for the
  //! oldest.
  int in_flight = 16;
};

//! A started operation of one rank. Refers to the thread_group, which must outlive it.
class [[nodiscard]] thread_handle {
 public:
  //! Nothing to wait for.
  thread_handle() noexcept = default;
  thread_handle(thread_handle&& other) noexcept { swap(other); }
  thread_handle& operator=(thread_handle&& other) noexcept {
    thread_handle(std::move(other)).swap(*this);
    return *this;
  }
  //! Waits. If an exception is what destroys it, takes the buffers back at once and ends the group.
  ~thread_handle() {
    if (engine_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_) {
      engine_->abandon(ticket_);
    } else {
      engine_->settle(ticket_);
    }
  }

  //! Returns when the result is there and the caller's buffers are free again. Never waits for a
  //! peer that has started the operation and computes. Throws peer_error; waiting twice is nothing.
  void wait(host_context const&) {
    if (engine_ != nullptr) std::exchange(engine_, nullptr)->wait(ticket_);
  }

  //! Whether the operation is complete, as after `wait`. Does this rank's share of it if all ranks
  //! have started, but never waits; cheap while nothing changes. Throws what `wait` would throw,
  //! but does not look at the deadline.
  bool ready(host_context const&) {
    auto* const engine = std::exchange(engine_, nullptr);
    if (engine == nullptr || engine->ready(ticket_)) return true;
    engine_ = engine;
    return false;
  }

 private:
  friend class thread_communicator;
  thread_handle(detail::thread_engine& engine, detail::thread_ticket const& ticket) noexcept
      : engine_(&engine), ticket_(ticket) {}
  void swap(thread_handle& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(ticket_, other.ticket_);
    std::swap(exceptions_, other.exceptions_);
  }

  detail::thread_engine* engine_ = nullptr;
  detail::thread_ticket ticket_;
  int exceptions_ = std::uncaught_exceptions();
};

//! One rank of a thread_group, which must outlive it. For one thread at a time. Destroying it means
//! that the rank leaves: an operation it did not start fails on the others.
//!
//! Operations check their arguments first (argument_error, nothing started) and otherwise return at
//! once unless thread_options::in_flight collective ones are incomplete. They allocate nothing, but
//! for the memory of more messages in flight than ever before. `counts` may change after the call,
//! buffers must stay until wait returns.
class thread_communicator {
 public:
  using context_type = host_context;
  using handle_type = thread_handle;

  thread_communicator(thread_communicator&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), rank_(other.rank_), size_(other.size_) {}
  thread_communicator& operator=(thread_communicator&& other) noexcept {
    if (this == &other) return *this;
    if (engine_ != nullptr) engine_->leave(rank_);
    engine_ = std::exchange(other.engine_, nullptr);
    rank_ = other.rank_;
    size_ = other.size_;
    return *this;
  }
  ~thread_communicator() {
    if (engine_ != nullptr) engine_->leave(rank_);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  //! recv = the ranks' sends one after the other; send: counts[rank()], recv: sum of counts.
  template <detail::element T>
  thread_handle all_gather(host_context const&, std::type_identity_t<std::span<T const>> send,
                           std::span<T> recv, std::span<std::int64_t const> counts) {
    auto call = describe<T>("all_gather", send.data(), recv.data());
    call.total =
        detail::expect_blocks(caller(call), {"send", send}, {"recv", recv}, counts, sizeof(T));
    call.counts = counts;
    call.produce = detail::produce_all_gather;
    return start(call);
  }

  //! recv = block rank() of the combined sends; send: sum of counts, recv: counts[rank()].
  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  thread_handle reduce_scatter(host_context const&, std::type_identity_t<std::span<T const>> send,
                               std::span<T> recv, std::span<std::int64_t const> counts, Op = {}) {
    auto call = describe<T, Op>("reduce_scatter", send.data(), recv.data());
    call.total =
        detail::expect_blocks(caller(call), {"recv", recv}, {"send", send}, counts, sizeof(T));
    call.counts = counts;
    call.produce = detail::produce_reduce_scatter<T, Op>;
    return start(call);
  }

  //! recv = the combined sends, equally long on all ranks.
  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  thread_handle all_reduce(host_context const&, std::type_identity_t<std::span<T const>> send,
                           std::span<T> recv, Op = {}) {
    auto call = describe<T, Op>("all_reduce", send.data(), recv.data());
    detail::expect_alike(caller(call), {"send", send}, {"recv", recv}, sizeof(T));
    call.total = std::ssize(recv);
    call.produce = detail::produce_all_reduce<T, Op>;
    return start(call);
  }

  //! data = root's data, equally long on all ranks.
  template <detail::element T>
  thread_handle broadcast(host_context const&, std::span<T> data, int root) {
    auto call = describe<T>("broadcast", data.data(), data.data());
    detail::expect_root(caller(call), root);
    call.total = std::ssize(data);
    call.root = root;
    call.produce = detail::produce_broadcast;
    return start(call);
  }

  //! Its wait returns when every rank has started the barrier.
  thread_handle barrier(host_context const&) { return start({.operation = "barrier"}); }

  //! A message to rank `to`, which receives it by `recv`; see concepts.hpp.
  template <detail::element T>
  thread_handle send(host_context const&, std::span<T const> data, int to) {
    auto call = describe<T>("send", data.data(), nullptr);
    detail::expect_message(caller(call), {"data", data}, "to", to);
    return start_message(call, data.size(), to);
  }

  //! data = what rank `from` sends.
  template <detail::element T>
  thread_handle recv(host_context const&, std::span<T> data, int from) {
    auto call = describe<T>("recv", nullptr, data.data());
    detail::expect_message(caller(call), {"data", data}, "from", from);
    return start_message(call, data.size(), from);
  }

  //! Ends the group: the peers get a peer_error with this message.
  void abort(std::string const& why) {
    if (engine_ != nullptr) engine_->fail(rank_, why);
  }

 private:
  friend class thread_group;
  thread_communicator(detail::thread_engine& engine, int rank) noexcept
      : engine_(&engine), rank_(rank), size_(engine.size()) {}

  template <class T, class Op = void>
  static detail::thread_call describe(std::string_view operation, T const* send, T* recv) noexcept {
    return {.operation = operation,
            .element = detail::type_name<T>(),
            .op = detail::type_name<Op>(),
            .element_size = sizeof(T),
            .send = reinterpret_cast<std::byte const*>(send),
            .recv = reinterpret_cast<std::byte*>(recv)};
  }
  [[nodiscard]] detail::caller caller(detail::thread_call const& call) const noexcept {
    return {call.operation, rank_, size_};
  }
  thread_handle start(detail::thread_call const& call) {
    auto& own = engine(call);
    return {own, own.start(rank_, call)};
  }
  thread_handle start_message(detail::thread_call& call, std::size_t count, int peer) {
    call.total = static_cast<std::int64_t>(count);
    call.root = peer;
    auto& own = engine(call);
    auto const ticket = own.start_message(rank_, call);
    return ticket ? thread_handle(own, *ticket) : thread_handle();
  }
  [[nodiscard]] detail::thread_engine& engine(detail::thread_call const& call) const {
    detail::expect(engine_ != nullptr, caller(call), "the communicator has been moved from");
    return *engine_;
  }

  detail::thread_engine* engine_;
  int rank_;
  int size_;
};

//! The shared state of `size` rank threads. Make all communicators before the first is used.
class thread_group {
 public:
  explicit thread_group(int size, thread_options const& options = {})
      : engine_(expect_valid(size, options), options.in_flight, options.deadline) {}

  [[nodiscard]] int size() const noexcept { return engine_.size(); }

  //! The communicator of one rank, at most one at a time (argument_error).
  [[nodiscard]] thread_communicator communicator(int rank) {
    detail::expect(
        rank >= 0 && rank < size(), "thread_group",
        "rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size()));
    detail::expect(engine_.join(rank), "thread_group",
                   "rank " + std::to_string(rank) + " already has a communicator");
    return {engine_, rank};
  }

  //! What ended the group, if anything did.
  [[nodiscard]] std::optional<thread_failure> failure() const { return engine_.failure(); }

 private:
  template <class F>
  friend void run_threads(thread_group& group, F&& fn);

  static int expect_valid(int size, thread_options const& options) {
    detail::expect(size >= 1, "thread_group",
                   "the size is " + std::to_string(size) + ", expected 1 or more");
    detail::expect(options.in_flight >= 1, "thread_group",
                   "in_flight is " + std::to_string(options.in_flight) + ", expected 1 or more");
    detail::expect(options.deadline.count() >= 0, "thread_group", "the deadline is negative");
    return size;
  }

  detail::thread_engine engine_;
};

//! Runs fn(thread_communicator&) on one new thread per rank and joins them all. Rethrows the
//! exception that ended the group, not those it caused on other ranks; group.failure() names its
//! rank. If ranks only disagree or leave, throws peer_error.
template <class F>
void run_threads(thread_group& group, F&& fn) {
  static_assert(std::invocable<F&, thread_communicator&>);
  std::vector<thread_communicator> ranks;
  ranks.reserve(static_cast<std::size_t>(group.size()));
  for (int r = 0; r < group.size(); ++r) ranks.push_back(group.communicator(r));
  detail::run_ranks(group.engine_, std::move(ranks), fn);
}

//! The same with a group of its own.
template <class F>
void run_threads(int size, F&& fn, thread_options const& options = {}) {
  thread_group group(size, options);
  run_threads(group, fn);
}

}  // namespace scape
