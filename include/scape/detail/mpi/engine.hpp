// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One rank of an MPI communicator: its operations in flight, its deadline, its failure, its end.
//!
//! Whoever waits moves all operations in flight on, so that none depends on the order in which they
//! are waited for. (Messages need no more for that than any call of MPI.)
//! A rank that cannot go on tells all others (mpi_roll_call), which look for that every few
//! milliseconds. What MPI may still touch after a failure is never freed.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <scape/context/host.hpp>
#include <scape/detail/mpi/operation.hpp>
#include <scape/detail/mpi/roll_call.hpp>
#include <scape/detail/mpi/support.hpp>
#include <scape/error.hpp>

namespace scape {

//! Who moves operations on between their start and their wait.
enum class mpi_progress {
  caller,  //!< who waits, and MPI where it does so by itself
  thread,  //!< a thread of the communicator's own; needs MPI_THREAD_MULTIPLE
};

struct mpi_options {
  //! How long a rank waits for others to do their part of an operation.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  //! The most elements handed to one call of MPI; more go in pieces.
  std::int64_t count_limit = std::numeric_limits<int>::max();
  mpi_progress progress = mpi_progress::caller;
};

namespace detail {

class mpi_engine {
 public:
  //! A rank of `comm`, or of a duplicate, which all ranks make together.
  mpi_engine(std::string_view name, MPI_Comm comm, bool owner, mpi_options const& options)
      : who_(describe(name, comm)),
        owner_(owner),
        limit_(options.count_limit),
        deadline_(
            std::min<std::chrono::milliseconds>(options.deadline, std::chrono::hours(24 * 365))),
        grace_(std::clamp<std::chrono::milliseconds>(deadline_, std::chrono::milliseconds(500),
                                                     std::chrono::milliseconds(2000))) {
    expect(deadline_.count() >= 0, who_, "the deadline is negative");
    expect(limit_ >= 1 && limit_ <= std::numeric_limits<int>::max(), who_, [&] {
      return "count_limit is " + std::to_string(limit_) + ", expected 1 to " +
             std::to_string(std::numeric_limits<int>::max());
    });
    check_mpi(MPI_Query_thread(&thread_level_), who_, "MPI_Query_thread");
    bool const threaded = options.progress == mpi_progress::thread;
    if (threaded && thread_level_ < MPI_THREAD_MULTIPLE) {
      who_.fail("mpi_progress::thread needs MPI_THREAD_MULTIPLE, but MPI was initialised with " +
                std::string(mpi_thread_name(thread_level_)));
    }
    expect_thread(who_);
    comm_ = owner ? duplicate(comm) : comm;
    if (!owner)
      check_mpi(MPI_Comm_get_errhandler(comm, &callers_), who_, "MPI_Comm_get_errhandler");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), who_, "MPI_Comm_set_errhandler");
    int* largest_tag = nullptr;
    int found = 0;
    check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &found), who_,
              "MPI_Comm_get_attr");
    tags_ = ((found != 0 ? *largest_tag : 32767) - first_tag + 1) / tag_step;
    sent_.resize(static_cast<std::size_t>(size()));
    received_.resize(sent_.size());
    roll_.emplace(comm_, rank(), size(), notice_tag);
    if (threaded) worker_ = std::thread([this] { work(); });
  }
  mpi_engine(mpi_engine const&) = delete;
  mpi_engine& operator=(mpi_engine const&) = delete;
  ~mpi_engine() = default;

  [[nodiscard]] int rank() const noexcept { return who_.rank; }
  [[nodiscard]] int size() const noexcept { return who_.size; }
  [[nodiscard]] MPI_Comm native_handle() const noexcept { return comm_; }

  //! Calls post(operation) to start it.
  template <class Post>
  mpi_operation& start(mpi_call const& call, Post const& post) {
    caller const who{call.name.operation, rank(), size()};
    expect_thread(who);
    std::lock_guard const lock(mutex_);
    if (failure_) throw_failure(who);
    if (listen_if_due() && roll_->any([](mpi_notice const& n) {
          return n.ending == mpi_ending::failed || n.ending == mpi_ending::gave_up;
        })) {
      give_up(nullptr);
      throw_failure(who);
    }
    auto& operation = call.message ? unused_message() : unused();
    auto& number = call.message ? count_of(call) : started_;
    auto const tag = first_tag + (call.message ? numbers : 0) + static_cast<int>(number % numbers);
    operation.begin(
        number, call,
        {comm_, rank(), size(), limit_, tag, tag_step, tags_, type_of(call.element_size)});
    post(operation);
    operation.launch();
    ++number;
    wake_.notify_one();
    return operation;
  }

  //! Returns when the operation is complete; throws if it never will be.
  void wait(mpi_operation& operation, host_context const& ctx) {
    caller const who{operation.call.name.operation, rank(), size()};
    std::unique_lock lock(mutex_);
    if (!finish(lock, operation, ctx)) throw_failure(who);
  }

  //! Whether the operation is complete by now; moves all on. Throws if it never will be.
  bool ready(mpi_operation& operation, host_context const& ctx) {
    std::unique_lock lock(mutex_);
    bool const complete = advance(lock, operation, ctx);
    if (complete) {
      release(operation);
    } else if (operation.at != mpi_operation::stage::folding) {
      if (!failure_) watch(operation);
      if (failure_) throw_failure({operation.call.name.operation, rank(), size()});
    }
    return complete;
  }

  //! The same as `wait` without telling: a failure shows at the rank's next operation.
  void settle(mpi_operation& operation) noexcept {
    std::unique_lock lock(mutex_);
    finish(lock, operation, {});
  }

  //! Ends the communicator because an exception destroys the operation's handle.
  void abandon(mpi_operation& operation) noexcept {
    std::unique_lock lock(mutex_);
    if (!failure_) {
      fail("it abandoned " + std::string(operation.call.name.operation) + numbered(operation) +
           " because of an exception");
    }
    for (backoff pause; operation.at == mpi_operation::stage::folding; pause(lock)) {
    }
  }

  void abort(std::string const& why) {
    expect_thread({"abort", rank(), size()});
    std::lock_guard const lock(mutex_);
    if (!failure_) fail(why);
  }

  //! Throws unless MPI lets this thread call it.
  void expect_thread(caller who) const {
    if (thread_level_ >= MPI_THREAD_SERIALIZED) return;
    int main = 0;
    MPI_Is_thread_main(&main);
    expect(main != 0, who, [&] {
      return "called from a thread that did not initialise MPI, which needs MPI_THREAD_SERIALIZED "
             "or more, but MPI was initialised with " +
             std::string(mpi_thread_name(thread_level_));
    });
  }

  //! Ends this rank. Returns whether MPI no longer uses anything of it.
  [[nodiscard]] bool close() noexcept {
    if (worker_.joinable()) {
      {
        std::lock_guard const lock(mutex_);
        stopping_ = true;
      }
      wake_.notify_one();
      worker_.join();
    }
    if (mpi_finalized()) return false;
    std::lock_guard const lock(mutex_);
    if (!failure_ && std::uncaught_exceptions() > exceptions_) {
      fail("an exception destroyed its communicator");
    } else if (!failure_ && done() < started_) {
      fail("it destroyed its communicator before operation " + std::to_string(done()) +
           " was complete");
    } else if (!failure_ && unused_messages_.size() < messages_.size()) {
      fail("it destroyed its communicator before its messages were complete");
    }
    if (!owner_) MPI_Comm_set_errhandler(comm_, callers_), MPI_Errhandler_free(&callers_);
    if (failure_ || (owner_ && !leave())) return false;
    for (auto& known : types_) MPI_Type_free(&known.type);
    if (owner_) MPI_Comm_free(&comm_);
    return true;
  }

 private:
  using clock = std::chrono::steady_clock;

  // The communicator may be shared with its owner's messages. MPI guarantees tags up to 32767.
  static constexpr int notice_tag = 16384, first_tag = 16385, numbers = 512, tag_step = 2 * numbers;

  struct element_type {
    std::size_t size;
    MPI_Datatype type;
  };

  //! Longer and longer pauses without the lock.
  class backoff {
   public:
    template <class Lock>
    void operator()(Lock& lock) {
      lock.unlock();
      (*this)();
      lock.lock();
    }
    void operator()() {
      ++round_;
      if (round_ < 100) return;
      if (round_ < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(round_ / 50, 200)));
      }
    }

   private:
    int round_ = 0;
  };

  static caller describe(std::string_view name, MPI_Comm comm) {
    expect_mpi(name);
    expect(comm != MPI_COMM_NULL, name, "the communicator is MPI_COMM_NULL");
    int inter = 0, rank = 0, size = 0;
    check_mpi(MPI_Comm_test_inter(comm, &inter), name, "MPI_Comm_test_inter");
    expect(inter == 0, name, "an intercommunicator will not do");
    check_mpi(MPI_Comm_rank(comm, &rank), name, "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm, &size), name, "MPI_Comm_size");
    return {name, rank, size};
  }

  [[nodiscard]] MPI_Comm duplicate(MPI_Comm comm) const {
    auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);  // MPI writes it even after a failure
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Comm_idup(comm, copy.get(), &request), who_, "MPI_Comm_idup");
    auto const until = clock::now() + deadline_;
    int here = 0;
    for (backoff pause;; pause()) {
      check_mpi(MPI_Test(&request, &here, MPI_STATUS_IGNORE), who_, "MPI_Test");
      if (here != 0) return *copy;
      if (clock::now() < until) continue;
      static_cast<void>(copy.release());
      mpi_has_failed() = true;
      throw peer_error(
          std::string(who_.operation),
          "1 or more of the " + std::to_string(size()) + " ranks did not come" + within_deadline(),
          -1, rank(), size());
    }
  }

  [[nodiscard]] std::string within_deadline() const {
    return " within " + std::to_string(deadline_.count()) + " ms";
  }

  [[nodiscard]] mpi_operation& unused() {
    for (auto const& operation : operations_) {
      if (operation->at == mpi_operation::stage::unused) return *operation;
    }
    return *operations_.emplace_back(std::make_unique<mpi_operation>());
  }

  [[nodiscard]] mpi_operation& unused_message() {
    if (unused_messages_.empty()) {
      unused_messages_.reserve(messages_.size() + 1);
      return *messages_.emplace_back(std::make_unique<mpi_operation>());
    }
    auto& message = *unused_messages_.back();
    unused_messages_.pop_back();
    return message;
  }
  void release(mpi_operation& operation) noexcept {
    operation.at = mpi_operation::stage::unused;
    if (operation.call.message) unused_messages_.push_back(&operation);
  }

  //! How many messages to, or from, the call's peer have been started.
  [[nodiscard]] std::int64_t& count_of(mpi_call const& call) noexcept {
    return (is_send(call) ? sent_ : received_)[static_cast<std::size_t>(call.name.root)];
  }

  //! What has to be started for this: the same on all ranks, or the other side of a message.
  [[nodiscard]] std::string awaited(mpi_operation const& operation) const {
    auto name = operation.call.name;
    if (operation.call.message) {
      name.operation = is_send(operation.call) ? "recv" : "send";
      name.root = rank();
    }
    return detail::describe(name) + numbered(operation);
  }
  [[nodiscard]] static std::string numbered(mpi_operation const& operation) {
    return (operation.call.message ? " (message " : " (operation ") +
           std::to_string(operation.sequence) + ")";
  }

  [[nodiscard]] MPI_Datatype type_of(std::size_t size) {
    if (size == 1) return MPI_BYTE;
    for (auto const& known : types_) {
      if (known.size == size) return known.type;
    }
    MPI_Datatype type = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(size), MPI_BYTE, &type), who_,
              "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type), who_, "MPI_Type_commit");
    types_.push_back({size, type});
    return type;
  }

  [[nodiscard]] static bool complete(mpi_operation const& operation) noexcept {
    return operation.at == mpi_operation::stage::unused ||
           operation.at == mpi_operation::stage::done ||
           (operation.at == mpi_operation::stage::fold && !operation.has_second_exchange());
  }
  //! Operations before this one need nothing of MPI any more.
  [[nodiscard]] std::int64_t done() const noexcept {
    auto first = started_;
    for (auto const& operation : operations_) {
      if (!complete(*operation)) first = std::min(first, operation->sequence);
    }
    return first;
  }

  //! Does what there is to do without waiting. Returns whether the operation is complete then.
  bool advance(std::unique_lock<std::mutex>& lock, mpi_operation& operation,
               host_context const& ctx) {
    if (operation.call.message && !failure_) operation.test();
    advance(lock, ctx);
    if (operation.at == mpi_operation::stage::fold && !operation.has_second_exchange()) {
      fold(lock, operation, ctx);
    }
    return operation.at == mpi_operation::stage::done;
  }

  //! Moves all collective operations on.
  void advance(std::unique_lock<std::mutex>& lock, host_context const& ctx) {
    for (std::size_t i = 0; i < operations_.size() && !failure_; ++i) {
      auto& operation = *operations_[i];
      using stage = mpi_operation::stage;
      operation.test();
      if (operation.at == stage::fold && operation.has_second_exchange()) {
        fold(lock, operation, ctx);
      }
      if (operation.at == stage::half && !failure_) operation.second_exchange();
    }
  }

  //! Without the lock.
  static void fold(std::unique_lock<std::mutex>& lock, mpi_operation& operation,
                   host_context const& ctx) {
    operation.at = mpi_operation::stage::folding;
    lock.unlock();
    operation.fold(ctx);
    lock.lock();
    operation.at = operation.after_fold();
  }

  //! False: the operation failed, and nobody but MPI touches its buffers any more.
  bool finish(std::unique_lock<std::mutex>& lock, mpi_operation& operation,
              host_context const& ctx) {
    auto const now = clock::now();
    operation.until =
        std::min(operation.until, waits_for_itself(operation) ? now : now + deadline_);
    for (backoff pause; !advance(lock, operation, ctx); pause(lock)) {
      if (operation.at == mpi_operation::stage::folding) continue;
      if (failure_) return false;
      watch(operation);
    }
    release(operation);
    return true;
  }

  //! Gives up when it is time to.
  void watch(mpi_operation& operation) {
    if (listen_if_due()) operation.until = std::min(operation.until, last_moment(operation));
    if (operation.at == mpi_operation::stage::failed || clock::now() >= operation.until) {
      give_up(&operation);
    }
  }

  //! Nobody else starts the other side of a message to oneself.
  [[nodiscard]] bool waits_for_itself(mpi_operation const& operation) const {
    auto const& call = operation.call;
    if (!call.message || call.name.root != rank()) return false;
    auto const r = static_cast<std::size_t>(rank());
    return (is_send(call) ? received_ : sent_)[r] <= operation.sequence;
  }

  //! Looks for notices of the peers at most every 10 ms. Returns whether there are any by now.
  bool listen_if_due() {
    auto const now = clock::now();
    if (now - listened_ >= std::chrono::milliseconds(10)) {
      listened_ = now;
      roll_->listen();
    }
    return roll_->heard();
  }

  //! Whether a rank that has sent this will not do what the operation needs of it.
  [[nodiscard]] static bool hopeless(mpi_notice const& n, mpi_operation const& operation) {
    auto const& call = operation.call;
    if (call.message) {
      return n.rank == call.name.root &&
             (is_send(call) ? n.in : n.out).started <= operation.sequence;
    }
    return (n.ending == mpi_ending::left ? n.started : n.done) <= operation.sequence;
  }

  //! How long the operation may take after the notices that have come. Who gave up waits twice as
  //! long for what this rank has to say.
  [[nodiscard]] clock::time_point last_moment(mpi_operation const& operation) const {
    if (roll_->any([&](auto const& n) { return hopeless(n, operation); })) {
      return clock::time_point::min();
    }
    auto const ends = [](mpi_notice const& n) { return n.ending != mpi_ending::left; };
    return roll_->any(ends) ? listened_ + grace_ / 2 : clock::time_point::max();
  }

  //! Tells the peers that this rank waits no longer, for `operation` if there is one, hears what
  //! they have to say, and draws the conclusion.
  void give_up(mpi_operation const* operation) {
    mpi_notice notice = about(mpi_ending::gave_up);
    if (operation != nullptr) {
      auto const& call = operation->call;
      notice.waiting = operation->sequence;
      notice.hash = operation->hash;
      mpi_notice::set(notice.call, detail::describe(call.name));
      if (call.message) notice.peer = call.name.root;
      notice.sends = is_send(call);
      if (operation->code != MPI_SUCCESS) mpi_notice::set(notice.why, mpi_text(operation->code));
    }
    tell(notice);
    auto const until = clock::now() + grace_;
    auto const explains = [&](mpi_notice const& n) {
      return n.ending == mpi_ending::failed ||
             (n.ending == mpi_ending::left &&
              (operation == nullptr ? n.started <= started_ : hopeless(n, *operation)));
    };
    while (roll_->listen(), !roll_->complete() && !roll_->any(explains) && clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    flush();
    auto failure = roll_->blame(
        operation == nullptr ? "operation " + std::to_string(started_) : awaited(*operation),
        within_deadline());
    if (failure.peer == rank() && operation != nullptr && operation->code != MPI_SUCCESS) {
      failure = {rank(), mpi_text(operation->code), operation->code};
    }
    end(std::move(failure));
  }

  //! Ends the communicator by this rank's own fault.
  void fail(std::string const& why) noexcept {
    auto notice = about(mpi_ending::failed);
    mpi_notice::set(notice.why, why);
    tell(notice);
    flush();
    end({rank(), "rank " + std::to_string(rank()) + " failed: " + why});
  }

  //! From now on nothing is started, and what can be taken back is.
  void end(mpi_failure failure) noexcept {
    failure_ = std::move(failure);
    mpi_has_failed() = true;
    for (auto const& message : messages_) message->test();
    auto const is_withdrawn = [](auto const& o) { return o->withdrawn(); };
    for (auto const* all : {&operations_, &messages_}) {
      for (auto const& operation : *all) operation->withdraw();
    }
    auto const withdrawn = [&] {
      return std::ranges::all_of(operations_, is_withdrawn) &&
             std::ranges::all_of(messages_, is_withdrawn);
    };
    auto const until = clock::now() + std::chrono::milliseconds(200);
    for (backoff pause; !withdrawn() && clock::now() < until; pause()) {
    }
  }

  //! The destructor's part of an orderly end: all ranks leave, or the deadline is over.
  [[nodiscard]] bool leave() noexcept {
    tell(about(mpi_ending::left));
    auto const until = clock::now() + deadline_;
    auto const ends = [](mpi_notice const& n) { return n.ending != mpi_ending::left; };
    for (backoff pause; !(roll_->listen(), roll_->complete()) || !roll_->sent(); pause()) {
      if (clock::now() >= until || roll_->any(ends)) break;
    }
    if (roll_->any(ends)) mpi_has_failed() = true;
    return roll_->complete() && roll_->sent() && !roll_->any(ends);
  }

  //! Gives the notice a moment to go out.
  void flush() noexcept {
    auto const until = clock::now() + std::chrono::milliseconds(200);
    for (backoff pause; !roll_->sent() && clock::now() < until; pause()) {
    }
  }

  //! Tells every peer this, and about the messages with it.
  void tell(mpi_notice const& notice) noexcept {
    roll_->tell([&](int r) {
      auto told = notice;
      told.out.started = sent_[static_cast<std::size_t>(r)];
      told.in.started = received_[static_cast<std::size_t>(r)];
      for (auto const& message : messages_) {
        auto const& call = message->call;
        if (call.name.root != r || complete(*message)) continue;
        auto& sides = is_send(call) ? told.out : told.in;
        if (sides.open >= 0 && sides.open < message->sequence) continue;
        sides.open = message->sequence;
        sides.hash = message->hash;
        sides.call = {};
        mpi_notice::set(sides.call, detail::describe(call.name));
      }
      return told;
    });
  }

  [[nodiscard]] mpi_notice about(mpi_ending ending) const noexcept {
    mpi_notice notice;
    notice.rank = rank();
    notice.ending = ending;
    notice.started = started_;
    notice.done = done();
    return notice;
  }

  [[noreturn]] void throw_failure(caller who) const {
    if (failure_->code != MPI_SUCCESS) throw mpi_error(who, failure_->code, failure_->message);
    throw peer_error(std::string(who.operation), failure_->message, failure_->peer, who.rank,
                     who.size);
  }

  //! The progress thread.
  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      bool const idle = done() == started_ && unused_messages_.size() == messages_.size();
      if (failure_ || idle) {
        wake_.wait(lock);
      } else {
        advance(lock, {});
        for (auto const& message : messages_) message->test();
        wake_.wait_for(lock, std::chrono::microseconds(50));
      }
    }
  }

  caller who_;
  bool owner_;
  std::int64_t limit_;
  std::chrono::milliseconds deadline_, grace_;
  int thread_level_ = MPI_THREAD_SINGLE;
  int tags_ = 1;
  int exceptions_ = std::uncaught_exceptions();
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Errhandler callers_ = MPI_ERRHANDLER_NULL;

  std::mutex mutex_;  // of what follows
  std::vector<element_type> types_;
  std::vector<std::unique_ptr<mpi_operation>> operations_;
  std::int64_t started_ = 0;  // collective operations
  std::vector<std::unique_ptr<mpi_operation>> messages_;
  std::vector<mpi_operation*> unused_messages_;
  std::vector<std::int64_t> sent_, received_;  // messages, by peer
  std::optional<mpi_roll_call> roll_;
  std::optional<mpi_failure> failure_;
  clock::time_point listened_ = {};
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace detail
}  // namespace scape
