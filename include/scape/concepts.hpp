// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What scape asks of communicators, contexts and functors.
//!
//! A communicator starts every operation without waiting for it and returns a handle;
//! `handle.wait(context)` completes it (threads, MPI) or orders the context's stream behind it
//! (NCCL). Buffers stay untouched by the caller until then. Every rank starts the same collective
//! operations in the same order.
//!
//! `counts` holds one element count per rank. Blocks lie in rank order without gaps, so rank r's
//! block starts at counts[0] + ... + counts[r-1]. In-place is allowed where an input is exactly
//! the place of its output: an all_gather's `send` may be rank r's block of `recv`, a
//! reduce_scatter's `recv` may be rank r's block of `send`, and an all_reduce's two spans may be
//! the same. Any other overlap is an error of the caller.
//!
//! `send` and `recv` are the two sides of a message, whose lengths and types are equal. Messages
//! from one rank to another meet in the order they are started; those of other pairs, or of the
//! other direction, and collective operations are independent of them. Any number may be in flight.
//! A rank may send to itself. `wait` of either side needs the other side to be started, and nothing
//! more of it: a rank that exchanges with another starts both before it waits for one.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

namespace scape {

//! Where a primitive runs and the scratch memory it may use.
template <class X>
concept execution_context = requires(X const& context) {
  { context.scratch } -> std::convertible_to<std::span<std::byte>>;
};

//! Larger of two; a reduction operator beside std::plus<>.
struct maximum {
  template <class T>
  constexpr T operator()(T a, T b) const noexcept {
    return a < b ? b : a;
  }
};

//! A started operation. Destroying an unfinished one is safe: it waits, or, if an exception
//! destroys it, gives the buffers back and fails the peers.
template <class H, class X>
concept operation_handle = std::movable<H> && requires(H& handle, X const& context) {
  { handle.wait(context) } -> std::same_as<void>;
};

//! The core of every communicator: who am I, how many are we, where do we run.
template <class C>
concept communicator = requires(C const& comm) {
  typename C::context_type;
  typename C::handle_type;
  requires execution_context<typename C::context_type>;
  requires operation_handle<typename C::handle_type, typename C::context_type>;
  { comm.rank() }
  noexcept->std::same_as<int>;
  { comm.size() }
  noexcept->std::same_as<int>;
};

//! Values a communicator may move: trivially copyable.
template <class T>
concept transportable = std::is_trivially_copyable_v<T>;

template <class C, class T>
concept has_all_gather = communicator<C> && transportable<T> &&
    requires(C& comm, typename C::context_type const& context, std::span<T const> send,
             std::span<T> recv, std::span<std::int64_t const> counts) {
  { comm.all_gather(context, send, recv, counts) } -> std::same_as<typename C::handle_type>;
};

template <class C, class T, class Op = std::plus<>>
concept has_reduce_scatter = communicator<C> && transportable<T> &&
    requires(C& comm, typename C::context_type const& context, std::span<T const> send,
             std::span<T> recv, std::span<std::int64_t const> counts, Op op) {
  { comm.reduce_scatter(context, send, recv, counts, op) } -> std::same_as<typename C::handle_type>;
};

template <class C, class T, class Op = std::plus<>>
concept has_all_reduce = communicator<C> && transportable<T> &&
    requires(C& comm, typename C::context_type const& context, std::span<T const> send,
             std::span<T> recv, Op op) {
  { comm.all_reduce(context, send, recv, op) } -> std::same_as<typename C::handle_type>;
};

template <class C, class T>
concept has_broadcast = communicator<C> && transportable<T> &&
    requires(C& comm, typename C::context_type const& context, std::span<T> data, int root) {
  { comm.broadcast(context, data, root) } -> std::same_as<typename C::handle_type>;
};

//! `handle.ready(context)` is for whoever has something else to do: it moves operations on without
//! waiting. Once it is true the operation is complete, as after `wait`. It throws what `wait` would
//! throw, but does not look at the deadline.
template <class C, class T>
concept has_send_recv = communicator<C> && transportable<T> &&
    requires(C& comm, typename C::context_type const& context, std::span<T const> out,
             std::span<T> in, int peer, typename C::handle_type& handle) {
  { comm.send(context, out, peer) } -> std::same_as<typename C::handle_type>;
  { comm.recv(context, in, peer) } -> std::same_as<typename C::handle_type>;
  { handle.ready(context) } -> std::same_as<bool>;
};

//! f(i) for i = 0 ... n-1 gives the score of element i of a shard. It must not throw.
template <class F>
concept statistic = requires(F const& f, std::int64_t i) {
  { f(i) } -> std::same_as<float>;
};

}  // namespace scape
