// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks as processes, over MPI 3.1 or later.
//!
//!     int main(int argc, char** argv) {
//!       scape::mpi_environment mpi(argc, argv);
//!       scape::mpi_communicator comm;  // all of MPI_COMM_WORLD
//!       comm.all_reduce(ctx, std::span<float const>(mine), sum, std::plus<>()).wait(ctx);
//!     }
//!
//! Elements travel as bytes, and reductions are an exchange of blocks that every owner combines
//! itself, in rank order, 16-bit floats in float with one rounding at the end: the same bits as
//! thread_communicator's on any data, for any element type, and (size - 1) own blocks per rank on
//! the wire, which is the least. (MPI's own nonblocking reduce-scatter may bring the whole vector
//! to one rank, and its order of additions is its own.) The blocks arrive in memory of the
//! communicator, which grows at the first operations of a size and is used again, so that a
//! training step allocates nothing.
//!
//! Ranks must start the same collective operations in the same order, with equal counts, types and
//! roots, and the two sides of a message with equal lengths and types; what disagrees does not
//! meet, and is named at the deadline. A rank that throws, leaves or does not do its part within
//! the deadline ends the communicator: every other rank gets a peer_error that names it, now and
//! from every later call. A rank that receives nothing from its peers in a collective operation
//! does not wait for them there; that sends a message does. After a failure MPI may go on reading
//! what unfinished operations send, and writing what was half received: let these buffers live
//! until the process ends, which is best ended then; mpi_environment calls MPI_Abort.

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/collective_arguments.hpp>
#include <scape/detail/mpi/engine.hpp>
#include <scape/error.hpp>

namespace scape {

//! MPI from here to the end of the scope: make it first in main. Catch exceptions within the scope
//! and print them there: the destructor calls MPI_Finalize, but, a second later, MPI_Abort with
//! code 1, which ends all processes, if an exception destroys it or a communicator has failed,
//! because MPI_Finalize could then wait for ever.
class mpi_environment {
 public:
  //! Throws argument_error if MPI is initialised already or does not provide `thread_level`, one of
  //! MPI_THREAD_SINGLE ... MPI_THREAD_MULTIPLE.
  mpi_environment(int& argc, char**& argv, int thread_level = MPI_THREAD_FUNNELED) {
    detail::caller const who("mpi_environment");
    detail::expect(!detail::mpi_initialized(), who, "MPI is initialised already");
    int provided = MPI_THREAD_SINGLE;
    detail::check_mpi(MPI_Init_thread(&argc, &argv, thread_level, &provided), who,
                      "MPI_Init_thread");
    if (provided >= thread_level) return;
    MPI_Finalize();
    who.fail("this MPI provides " + std::string(detail::mpi_thread_name(provided)) + ", but " +
             std::string(detail::mpi_thread_name(thread_level)) +
             " is asked for; ask for less or use an MPI that is built with it");
  }
  mpi_environment(mpi_environment const&) = delete;
  mpi_environment& operator=(mpi_environment const&) = delete;
  ~mpi_environment() {
    if (detail::mpi_finalized()) return;
    if (std::uncaught_exceptions() > exceptions_ || detail::mpi_has_failed()) {
      std::fflush(nullptr);
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the others may have more to tell
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
  }

 private:
  int exceptions_ = std::uncaught_exceptions();
};

//! A started operation. Refers to its communicator, which must outlive it.
class [[nodiscard]] mpi_handle {
 public:
  //! Nothing to wait for.
  mpi_handle() noexcept = default;
  mpi_handle(mpi_handle&& other) noexcept { swap(other); }
  mpi_handle& operator=(mpi_handle&& other) noexcept {
    mpi_handle(std::move(other)).swap(*this);
    return *this;
  }
  //! Waits. If an exception is what destroys it, ends the communicator and waits a moment only.
  ~mpi_handle() {
    if (operation_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_) {
      engine_->abandon(*operation_);
    } else {
      engine_->settle(*operation_);
    }
  }

  //! Returns when the result is there and the caller's buffers are free again; meanwhile all
  //! operations of the communicator move on. Reduces with ctx.pool where there is one. Throws
  //! peer_error or mpi_error; waiting twice is nothing.
  void wait(host_context const& ctx) {
    if (operation_ == nullptr) return;
    expect_thread();
    engine_->wait(*std::exchange(operation_, nullptr), ctx);
  }

  //! Whether the operation is complete, as after `wait`. Moves all operations of the communicator
  //! on, but never waits. Throws what `wait` would throw, but does not look at the deadline.
  bool ready(host_context const& ctx) {
    if (operation_ == nullptr) return true;
    expect_thread();
    auto* const operation = std::exchange(operation_, nullptr);
    if (engine_->ready(*operation, ctx)) return true;
    operation_ = operation;
    return false;
  }

 private:
  friend class mpi_operations;
  mpi_handle(detail::mpi_engine& engine, detail::mpi_operation& operation) noexcept
      : exceptions_(std::uncaught_exceptions()), engine_(&engine), operation_(&operation) {}
  void expect_thread() const {
    engine_->expect_thread({operation_->call.name.operation, engine_->rank(), engine_->size()});
  }
  void swap(mpi_handle& other) noexcept {
    std::swap(exceptions_, other.exceptions_);
    std::swap(engine_, other.engine_);
    std::swap(operation_, other.operation_);
  }

  int exceptions_ = 0;
  detail::mpi_engine* engine_ = nullptr;
  detail::mpi_operation* operation_ = nullptr;
};

//! What owning and other MPI communicators have in common. For one thread at a time.
//!
//! Operations check their arguments first (argument_error, nothing started) and return at once.
//! `counts` may change after the call, buffers must stay until wait returns. Without
//! mpi_progress::thread, long messages and reductions move on only while somebody waits or asks
//! whether an operation is ready, and a `send` may be complete only after its receiver does.
class mpi_operations {
 public:
  using context_type = host_context;
  using handle_type = mpi_handle;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] MPI_Comm native_handle() const {
    return engine(caller("native_handle")).native_handle();
  }

  //! recv = the ranks' sends one after the other; send: counts[rank()], recv: sum of counts.
  template <detail::element T>
  mpi_handle all_gather(host_context const&, std::type_identity_t<std::span<T const>> send,
                        std::span<T> recv, std::span<std::int64_t const> counts) {
    auto call = describe<T>("all_gather", send.data(), recv.data());
    call.name.total =
        detail::expect_blocks(caller(call), {"send", send}, {"recv", recv}, counts, sizeof(T));
    call.counts = counts;
    return start(call, [](auto& operation) { operation.all_gather(); });
  }

  //! recv = block rank() of the combined sends; send: sum of counts, recv: counts[rank()].
  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  mpi_handle reduce_scatter(host_context const&, std::type_identity_t<std::span<T const>> send,
                            std::span<T> recv, std::span<std::int64_t const> counts, Op = {}) {
    auto call = describe<T, Op>("reduce_scatter", send.data(), recv.data());
    call.name.total =
        detail::expect_blocks(caller(call), {"recv", recv}, {"send", send}, counts, sizeof(T));
    call.fold = detail::fold_blocks<T, Op>;
    call.counts = counts;
    return start(call, [](auto& operation) { operation.reduce_scatter(); });
  }

  //! recv = the combined sends, equally long on all ranks.
  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  mpi_handle all_reduce(host_context const&, std::type_identity_t<std::span<T const>> send,
                        std::span<T> recv, Op = {}) {
    auto call = describe<T, Op>("all_reduce", send.data(), recv.data());
    detail::expect_alike(caller(call), {"send", send}, {"recv", recv}, sizeof(T));
    call.name.total = std::ssize(recv);
    call.fold = detail::fold_blocks<T, Op>;
    return start(call, [](auto& operation) { operation.all_reduce(); });
  }

  //! data = root's data, equally long on all ranks.
  template <detail::element T>
  mpi_handle broadcast(host_context const&, std::span<T> data, int root) {
    auto call = describe<T>("broadcast", data.data(), data.data());
    detail::expect_root(caller(call), root);
    call.name.total = std::ssize(data);
    call.name.root = root;
    return start(call, [](auto& operation) { operation.broadcast(); });
  }

  //! Its wait returns when every rank has started the barrier.
  mpi_handle barrier(host_context const&) {
    return start({.name = {.operation = "barrier"}}, [](auto& operation) { operation.barrier(); });
  }

  //! A message to rank `to`, which receives it by `recv`; see concepts.hpp.
  template <detail::element T>
  mpi_handle send(host_context const&, std::span<T const> data, int to) {
    auto call = describe<T>("send", data.data(), nullptr);
    detail::expect_message(caller(call), {"data", data}, "to", to);
    call.name.total = std::ssize(data);
    call.name.root = to;
    call.message = true;
    return start(call, [](auto& operation) { operation.send(); });
  }

  //! data = what rank `from` sends.
  template <detail::element T>
  mpi_handle recv(host_context const&, std::span<T> data, int from) {
    auto call = describe<T>("recv", nullptr, data.data());
    detail::expect_message(caller(call), {"data", data}, "from", from);
    call.name.total = std::ssize(data);
    call.name.root = from;
    call.message = true;
    return start(call, [](auto& operation) { operation.recv(); });
  }

  //! Ends the communicator: the peers get a peer_error with this message.
  void abort(std::string const& why) {
    if (engine_ != nullptr) engine_->abort(why);
  }

 protected:
  mpi_operations(std::string_view name, MPI_Comm comm, bool owner, mpi_options const& options)
      : engine_(new detail::mpi_engine(name, comm, owner, options)),
        rank_(engine_->rank()),
        size_(engine_->size()) {}
  mpi_operations(mpi_operations&&) noexcept = default;
  mpi_operations& operator=(mpi_operations&&) noexcept = default;
  ~mpi_operations() = default;

 private:
  //! Leaks, on purpose, what MPI may still use.
  struct closer {
    void operator()(detail::mpi_engine* engine) const noexcept {
      if (engine->close()) delete engine;
    }
  };

  template <class T, class Op = void>
  static detail::mpi_call describe(std::string_view operation, T const* send, T* recv) noexcept {
    return {.name = {.operation = operation, .element = detail::type_name<T>()},
            .op = detail::type_name<Op>(),
            .element_size = sizeof(T),
            .send = reinterpret_cast<std::byte const*>(send),
            .recv = reinterpret_cast<std::byte*>(recv)};
  }
  [[nodiscard]] detail::caller caller(std::string_view operation) const noexcept {
    return {operation, rank_, size_};
  }
  [[nodiscard]] detail::caller caller(detail::mpi_call const& call) const noexcept {
    return caller(call.name.operation);
  }
  [[nodiscard]] detail::mpi_engine& engine(detail::caller who) const {
    detail::expect(engine_ != nullptr, who, "the communicator has been moved from");
    return *engine_;
  }

  template <class Post>
  mpi_handle start(detail::mpi_call const& call, Post const& post) {
    auto& own = engine(caller(call));
    return {own, own.start(call, post)};
  }

  std::unique_ptr<detail::mpi_engine, closer> engine_;
  int rank_;
  int size_;
};

//! A rank with a communicator of its own. All ranks make it together, and destroy their
//! communicators in the same order. The destructor tells the peers that this rank leaves, so that
//! an operation it did not start fails there, and waits, no longer than the deadline, until all
//! have left.
class mpi_communicator : public mpi_operations {
 public:
  //! On a duplicate of `comm`. Throws peer_error if a rank does not come within the deadline.
  explicit mpi_communicator(MPI_Comm comm = MPI_COMM_WORLD, mpi_options const& options = {})
      : mpi_operations("mpi_communicator", comm, true, options) {}
};

//! A rank that uses a communicator which somebody else owns, without a duplicate. While it lives,
//! errors of MPI on `comm` are returned, not fatal; the destructor puts the owner's error handler
//! back and does not wait. Its messages have tags of 16384 and above, which the owner leaves alone,
//! MPI_ANY_TAG included. A rank that destroys it in order tells nobody: the others notice at their
//! deadline.
class mpi_communicator_ref : public mpi_operations {
 public:
  explicit mpi_communicator_ref(MPI_Comm comm, mpi_options const& options = {})
      : mpi_operations("mpi_communicator_ref", comm, false, options) {}
};

}  // namespace scape
