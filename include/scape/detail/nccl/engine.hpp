// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One rank of an NCCL communicator: its deadline, its failure, its end.
//!
//! The communicators that scape makes do not block: NCCL takes a call up in the background, and
//! whoever made it asks, with the deadline, until that is done. So no call hangs on a peer that
//! never comes.
//!
//! The first failure ends a communicator. It sets the failure word in device memory, so that
//! kernels behind a collective learn that its result is not there, and only then aborts an owned
//! communicator, so that collectives that run give up. Every later call throws it again.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <scape/context/cuda.hpp>
#include <scape/detail/nccl/support.hpp>
#include <scape/error.hpp>

namespace scape {

struct nccl_options {
  //! How long a rank waits for the others to come or to do their part of an operation. To end a
  //! failed communicator takes up to twice as long again if its device does not respond.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
};

namespace detail {

class nccl_engine {
 public:
  //! Begins to make rank `rank` of `size` on the current device; `await_peers` completes it.
  nccl_engine(ncclUniqueId const& id, int rank, int size, nccl_options const& options)
      : nccl_engine(caller("nccl_communicator", rank, size), nullptr, true, options) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check_nccl(ncclCommInitRankConfig(&comm_, size, id, rank, &config), name("nccl_communicator"),
               "ncclCommInitRankConfig");
  }

  //! Uses somebody else's communicator of the current device.
  nccl_engine(ncclComm_t comm, nccl_options const& options)
      : nccl_engine(describe(comm), comm, false, options) {
    caller const who = name("nccl_communicator_ref");
    int device = 0;
    check_nccl(ncclCommCuDevice(comm, &device), who, "ncclCommCuDevice");
    expect_device(who, device_, device);
  }

  nccl_engine(nccl_engine const&) = delete;
  nccl_engine& operator=(nccl_engine const&) = delete;

  ~nccl_engine() {
    if (!owner_) return;
    try {
      if (std::uncaught_exceptions() > exceptions_) abort("an exception destroyed it");
      close();
    } catch (...) {  // it is aborted by now
    }
    if (aborted_.valid()) aborted_.wait_for(deadline_);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] caller name(std::string_view operation) const noexcept {
    return {operation, rank_, size_};
  }
  [[nodiscard]] int const* failure_flag() const noexcept {
    return reinterpret_cast<int const*>(flag_.bytes().data());
  }
  [[nodiscard]] ncclComm_t native_handle() const {
    std::lock_guard const lock(mutex_);
    return comm_;
  }

  //! Returns when all ranks have come.
  void await_peers() {
    await_taken_up(name("nccl_communicator"), [&] {
      return late("1 or more of the " + std::to_string(size_) + " ranks did not come");
    });
  }

  //! Throws unless the current device and the stream's are the communicator's.
  void expect_here(caller who, cuda_context const& ctx) {
    try {
      int current = 0;
      check_cuda(cudaGetDevice(&current), who, "cudaGetDevice");
      expect_device(who, current, device_);
      expect_current_device(who, ctx);
    } catch (cuda_error const&) {
      auto const own = stream_state(flag_stream_.get());
      if (own == cudaSuccess || own == cudaErrorNotReady) throw;
      fail_and_throw(who, {who.operation, "the device failed", ncclSuccess, own});
    }
  }

  //! Makes the NCCL calls of call(ncclComm_t) -> ncclResult_t, after `await_taken_up`; returns when
  //! they are taken up.
  template <class Call>
  void start(caller who, Call const& call,
             std::string_view suspicion = "1 or more ranks are late or gone") {
    std::unique_lock lock(mutex_);
    expect_usable(who);
    auto const comm = comm_;
    if (!owner_) lock.unlock();  // it may block, and nobody takes it away
    auto const code = call(comm);
    if (lock) lock.unlock();
    if (code != ncclSuccess && code != ncclInProgress) fail_and_throw(who, code);
    await_taken_up(who,
                   [&] { return late("NCCL did not take it up") + "; " + std::string(suspicion); });
  }

  //! Returns when NCCL has enqueued everything that was started.
  void await_taken_up(caller who) {
    await_taken_up(who, [&] { return late("NCCL did not take up earlier operations"); });
  }

  //! Work on `second` from now on runs after all that is on `first` now.
  void order(caller who, cudaStream_t first, cudaStream_t second) {
    await_taken_up(who);
    if (first == second) return;
    std::lock_guard const lock(mutex_);
    expect_usable(who);
    event_->order(who, first, second);
  }

  //! Whether NCCL has enqueued everything and the stream's work is done.
  [[nodiscard]] bool ready(cudaStream_t stream) {
    caller const who = name("ready");
    expect_no_capture(who, stream);
    auto const code = state(who);
    expect_success(who, code);
    if (code == ncclInProgress) return false;
    auto const work = stream_state(stream);
    if (work != cudaSuccess && work != cudaErrorNotReady) {
      fail_and_throw(who, {who.operation, "the work on the stream failed", ncclSuccess, work});
    }
    return work == cudaSuccess;
  }

  void check() {
    caller const who = name("check");
    expect_success(who, state(who));
  }

  void synchronize(cuda_context const& ctx) {
    caller const who = name("synchronize");
    expect_here(who, ctx);
    expect_no_capture(who, ctx.stream);
    try {
      await_taken_up(who);
      auto work = cudaErrorNotReady;
      bool const over = poll([&] {
        work = stream_state(ctx.stream);
        expect_success(who, state(who));
        return work != cudaErrorNotReady;
      });
      if (!over) {
        fail_and_throw(who, {who.operation, late("the stream is not done"), ncclRemoteError});
      } else if (work != cudaSuccess) {
        fail_and_throw(who, {who.operation, "the work on the stream failed", ncclSuccess, work});
      }
    } catch (error const&) {
      if (owner_) poll([&] { return stream_state(ctx.stream) != cudaErrorNotReady; });
      throw;
    }
  }

  void abort(std::string const& why) {
    try {
      fail({"abort", why, ncclInvalidUsage});
    } catch (error const&) {  // it has failed already, or is closed
    }
  }

  void close() {
    if (!owner_) return;
    caller const who = name("close");
    if (closed()) return;
    await_taken_up(who);
    start(who, ncclCommFinalize,
          "1 or more ranks are late or gone, or a graph still holds operations");
    std::lock_guard const lock(mutex_);
    expect_usable(who);
    check_nccl(ncclCommDestroy(give_up()), who, "ncclCommDestroy");
  }

 private:
  using clock = std::chrono::steady_clock;

  struct failure {
    std::string_view operation;
    std::string text;
    ncclResult_t nccl = ncclSuccess;
    cudaError_t cuda = cudaSuccess;
  };

  nccl_engine(caller who, ncclComm_t comm, bool owner, nccl_options const& options)
      : comm_(comm),
        owner_(owner),
        rank_(who.rank),
        size_(who.size),
        deadline_(
            std::min<std::chrono::milliseconds>(options.deadline, std::chrono::hours(24 * 365))),
        event_(who) {
    expect(rank_ >= 0 && rank_ < size_, "nccl_communicator", [&] {
      return "rank " + std::to_string(rank_) + " is not in a communicator of " +
             std::to_string(size_);
    });
    expect(deadline_.count() >= 0, who, "the deadline is negative");
    check_cuda(cudaGetDevice(&device_), who, "cudaGetDevice");
  }

  static caller describe(ncclComm_t comm) {
    caller who = "nccl_communicator_ref";
    expect(comm != nullptr, who, "the communicator is null");
    check_nccl(ncclCommUserRank(comm, &who.rank), who, "ncclCommUserRank");
    check_nccl(ncclCommCount(comm, &who.size), who, "ncclCommCount");
    return who;
  }

  static void expect_device(caller who, int current, int own) {
    expect_equal(who, "the current device", current, own,
                 "that is the communicator's device; call cudaSetDevice first");
  }

  //! Asks until done() or the deadline; false if that came first.
  template <class Done>
  bool poll(Done const& done) const {
    auto const until = clock::now() + deadline_;
    for (int round = 0; !done(); ++round) {
      if (clock::now() >= until) return false;
      if (round < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    return true;
  }

  [[nodiscard]] std::string late(std::string_view what) const {
    return std::string(what) + " within " + std::to_string(deadline_.count()) + " ms";
  }

  [[nodiscard]] bool closed() const {
    std::lock_guard const lock(mutex_);
    return !failure_ && comm_ == nullptr;
  }

  template <class Text>
  void await_taken_up(caller who, Text const& text) {
    auto code = ncclInProgress;
    if (!poll([&] { return (code = state(who)) != ncclInProgress; })) {
      fail_and_throw(who, {who.operation, text(), ncclRemoteError});
    }
    expect_success(who, code);
  }

  //! What NCCL says of the communicator.
  ncclResult_t state(caller who) {
    std::lock_guard const lock(mutex_);
    expect_usable(who);
    auto state = ncclInternalError;
    auto const code = ncclCommGetAsyncError(comm_, &state);
    return code == ncclSuccess ? state : code;
  }

  void expect_success(caller who, ncclResult_t code) {
    if (code != ncclSuccess && code != ncclInProgress) fail_and_throw(who, code);
  }

  //! With the mutex.
  void expect_usable(caller who) const {
    if (failure_) {
      throw_failure(who, *failure_,
                    "an earlier operation failed: " + std::string(failure_->operation) + ": ");
    }
    if (comm_ == nullptr) throw nccl_error(who, ncclInvalidUsage, "the communicator is closed");
  }

  [[noreturn]] static void throw_failure(caller who, failure const& what, std::string text) {
    text += what.text;
    if (what.cuda != cudaSuccess) throw cuda_error(who, what.cuda, text);
    if (what.nccl != ncclRemoteError) throw nccl_error(who, what.nccl, text);
    throw peer_error(std::string(who.operation), text, -1, who.rank, who.size);
  }

  [[noreturn]] void fail_and_throw(caller who, ncclResult_t code) {
    fail_and_throw(who, {who.operation, nccl_text(code, native_handle()), code});
  }
  [[noreturn]] void fail_and_throw(caller who, failure const& what) {
    fail(what);
    throw_failure(who, what, "");
  }

  //! Throws the earlier failure if there is one.
  void fail(failure const& what) {
    std::lock_guard const lock(mutex_);
    expect_usable(name(what.operation));
    failure_ = what;
    set_flag();
    if (owner_) abort_native(give_up());
  }

  //! With the mutex. The event may hold captured operations of the communicator: it goes first.
  ncclComm_t give_up() noexcept {
    event_.reset();
    return std::exchange(comm_, nullptr);
  }

  void set_flag() noexcept {
    try {
      device_scope const device("nccl_communicator", device_);
      // The lowest byte of a little-endian int.
      check_cuda(cudaMemsetAsync(flag_.bytes().data(), 1, 1, flag_stream_.get()),
                 "nccl_communicator", "cudaMemsetAsync");
      poll([&] { return stream_state(flag_stream_.get()) != cudaErrorNotReady; });
    } catch (error const&) {  // the device is lost, and its kernels with it
    }
  }

  //! ncclCommAbort returns when no graph holds operations any more, but only the caller can destroy
  //! those: hence the thread.
  void abort_native(ncclComm_t comm) {
    auto const abort = [comm, device = device_] {
      cudaSetDevice(device);
      ncclCommAbort(comm);
    };
    try {
      std::packaged_task<void()> task(abort);
      aborted_ = task.get_future();
      std::thread(std::move(task)).detach();
    } catch (std::exception const&) {
      abort();
    }
  }

  mutable std::mutex mutex_;  // of comm_, failure_, event_ and aborted_
  ncclComm_t comm_;
  std::optional<failure> failure_;
  std::future<void> aborted_;
  bool owner_;
  int rank_;
  int size_;
  int device_ = 0;
  int exceptions_ = std::uncaught_exceptions();
  std::chrono::milliseconds deadline_;
  std::optional<cuda_event> event_;
  cuda_stream flag_stream_;
  device_buffer flag_{sizeof(int)};
};

}  // namespace detail
}  // namespace scape
