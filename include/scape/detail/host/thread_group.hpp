// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How rank threads of one process meet: a ring of operation slots under one mutex.
//!
//! Operation s of every rank goes into slot s mod R. Starting publishes the rank's buffers there.
//! Once all ranks have started an operation and agree, its parts may be computed by any thread that
//! waits for it, so no rank depends on another one's call of wait. A slot is free for operation
//! s + R as soon as all parts of s are done.
//!
//! Of the two ranks of a message, the one that starts its side first leaves it in the mail; the
//! other one copies, within its start, from buffer to buffer.
//!
//! After a failure no operation starts any more, so buffers published in a slot that is not ready
//! are never touched. Operations that were ready still complete, unless a rank takes its buffers
//! back (`revoked`): then no further part is begun and those that run are waited for.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <scape/detail/host/thread_call.hpp>
#include <scape/detail/host/thread_mail.hpp>
#include <scape/error.hpp>

namespace scape {

//! Why a thread group no longer works.
struct thread_failure {
  int rank;             //!< the rank to blame
  std::string message;  //!< what it did, with its rank
};

namespace detail {

//! What a rank waits for: operation `sequence`, or a message.
struct thread_ticket {
  int rank = -1;
  std::string_view operation = {};
  std::int64_t sequence = 0;
  thread_message* message = nullptr;
  unsigned seen = 0;  //!< the version of its state that was looked at
};

class thread_engine {
 public:
  thread_engine(int size, int slots, std::chrono::milliseconds deadline)
      : deadline_(std::min<std::chrono::milliseconds>(deadline, std::chrono::hours(24 * 365))),
        spins_(static_cast<unsigned>(size) <= std::thread::hardware_concurrency() ? 2000 : 0),
        ranks_(static_cast<std::size_t>(size)),
        mail_(size),
        slots_(static_cast<std::size_t>(slots)) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      auto& s = slots_[i];
      s.sequence = static_cast<std::int64_t>(i) - slots;
      s.calls.resize(ranks_.size());
      s.counts.resize(ranks_.size() * ranks_.size());
      s.started.assign(ranks_.size(), 0);
      s.claimed.assign(ranks_.size(), 0);
    }
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks_.size()); }

  //! False if somebody already is this rank.
  [[nodiscard]] bool join(int rank) {
    std::lock_guard const lock(mutex_);
    auto& mine = state(rank);
    if (mine.present) return false;
    mine.present = true;
    mine.left = false;
    return true;
  }

  void leave(int rank) noexcept {
    std::lock_guard const lock(mutex_);
    auto& mine = state(rank);
    mine.present = false;
    mine.left = true;
    if (failure_ && failure_->rank == rank) unexplained_ = false;
    notify_all();
  }

  //! Ends the group: `rank` failed because of `what`.
  void fail(int rank, std::string const& what) {
    std::lock_guard const lock(mutex_);
    blame(rank, -1, "rank " + std::to_string(rank) + " failed: " + what);
  }

  //! The same for an exception out of the rank's function, unless the group's failure was its
  //! cause.
  void fail(int rank, std::string const& what, std::exception_ptr exception) {
    std::lock_guard const lock(mutex_);
    if (state(rank).told) return;
    if (!cause_) cause_ = std::move(exception);
    if (failure_ && failure_->rank == rank) {
      failure_->message += "; it failed: " + what;
      unexplained_ = false;
      notify_all();
    } else {
      blame(rank, -1, "rank " + std::to_string(rank) + " failed: " + what);
    }
  }

  [[nodiscard]] std::optional<thread_failure> failure() const {
    std::lock_guard const lock(mutex_);
    return failure_;
  }

  //! The first exception given to `fail`.
  [[nodiscard]] std::exception_ptr cause() const {
    std::lock_guard const lock(mutex_);
    return cause_;
  }

  //! Publishes a call; waits, with the deadline, while the ring is full.
  thread_ticket start(int rank, thread_call const& call) {
    std::unique_lock lock(mutex_, std::defer_lock);
    acquire(lock);
    auto const sequence = state(rank).started;
    auto& s = slot_of(sequence);
    if (s.sequence != sequence) finish(lock, {.rank = rank, .sequence = s.sequence});
    if (failure_) throw_failure(lock, rank, call.operation);
    if (s.sequence != sequence) {
      s.sequence = sequence;
      s.arrived = s.claims = s.done = 0;
      s.parts = -1;
      std::fill(s.started.begin(), s.started.end(), char{0});
      std::fill(s.claimed.begin(), s.claimed.end(), char{0});
    }
    auto const r = static_cast<std::size_t>(rank);
    auto const counts = std::span(s.counts).subspan(r * ranks_.size(), call.counts.size());
    std::copy(call.counts.begin(), call.counts.end(), counts.begin());
    s.calls[r] = call;
    s.calls[r].counts = counts;
    s.started[r] = 1;
    ++state(rank).started;
    if (++s.arrived == size()) {
      if (blame_disagreement(s)) throw_failure(lock, rank, call.operation);
      s.parts = parts_of(call);
      notify(s.state);
    }
    return {.rank = rank, .operation = call.operation, .sequence = sequence};
  }

  //! Starts a rank's side of a message. Nothing to wait for if the other side was there.
  std::optional<thread_ticket> start_message(int rank, thread_call const& call) {
    std::unique_lock lock(mutex_, std::defer_lock);
    acquire(lock);
    if (failure_) throw_failure(lock, rank, call.operation);
    auto* const other = mail_.match(rank, call);
    if (other == nullptr) {
      auto& message = mail_.post(rank, call);
      return thread_ticket{.rank = rank, .operation = call.operation, .message = &message};
    }
    auto const& send = is_send(call) ? call : other->call;
    auto const& recv = is_send(call) ? other->call : call;
    if (auto const text = disagreement(send, recv); !text.empty()) {
      blame(send.root, recv.root,
            text + " as message " + std::to_string(other->number) +
                "; messages from one rank to another are received in the order they are sent");
      throw_failure(lock, rank, call.operation);
    }
    other->matched = true;
    lock.unlock();
    copy_bytes(recv.recv, send.send, static_cast<std::size_t>(send.total) * send.element_size);
    acquire(lock);
    other->done = true;
    notify(state(other->rank).mail);
    return std::nullopt;
  }

  //! Returns when the operation is complete; throws peer_error if it never will be.
  void wait(thread_ticket const& ticket) {
    std::unique_lock lock(mutex_, std::defer_lock);
    acquire(lock);
    if (!finish(lock, ticket)) throw_failure(lock, ticket.rank, ticket.operation);
  }

  //! Whether it is complete by now, with this thread's help, but without waiting. Then, or if it
  //! throws, the ticket is used up.
  bool ready(thread_ticket& ticket) {
    if (state_of(ticket).version.load(std::memory_order_acquire) == ticket.seen) return false;
    std::unique_lock lock(mutex_, std::defer_lock);
    acquire(lock);
    auto const at = advance(lock, ticket, false);
    ticket.seen = state_of(ticket).version.load(std::memory_order_relaxed);
    if (at == progress::complete || at == progress::failed) release(ticket);
    if (at == progress::failed) throw_failure(lock, ticket.rank, ticket.operation);
    return at == progress::complete;
  }

  //! Waits without telling: a failure shows at the rank's next operation.
  void settle(thread_ticket const& ticket) noexcept {
    std::unique_lock lock(mutex_);
    finish(lock, ticket);
  }

  //! Takes the rank's buffers back, which ends the group. Returns when no thread touches them.
  void abandon(thread_ticket const& ticket) noexcept {
    std::unique_lock lock(mutex_);
    if (!failure_) unexplained_ = true;
    auto* const message = ticket.message;
    blame(ticket.rank, -1,
          "rank " + std::to_string(ticket.rank) + " abandoned " + std::string(ticket.operation) +
              (message != nullptr ? numbered(*message) : numbered(ticket.sequence)) +
              " because of an exception");
    if (message != nullptr) {
      while (message->matched && !message->done) pause(lock, state_of(ticket), std::nullopt);
      return mail_.release(*message);
    }
    auto& s = slot_of(ticket.sequence);
    if (s.sequence != ticket.sequence) return;
    s.revoked = true;
    while (s.running > 0) pause(lock, s.state, std::nullopt);
  }

 private:
  using clock = std::chrono::steady_clock;

  //! Something that threads wait for a change of.
  struct changing {
    std::condition_variable changed;
    std::atomic<unsigned> version = 1;  // for those who look without the mutex
  };

  enum class progress { complete, running, waiting, failed };

  struct rank_state {
    std::int64_t started = 0;  // operations
    bool present = false;      // a communicator of this rank lives
    bool left = false;         // it lived once
    bool told = false;         // the failure was thrown at it
    changing mail;             // messages that it started first
    thread_ticket const* waits = nullptr;
  };

  struct slot {
    std::int64_t sequence = 0;
    std::vector<thread_call> calls;    // by rank
    std::vector<std::int64_t> counts;  // by rank and rank: what calls[r].counts refers to
    std::vector<char> started;         // by rank
    std::vector<char> claimed;         // by part
    int arrived = 0;                   // ranks that started
    int parts = 0;                     // -1 until all have started and agree
    int claims = 0;
    int running = 0;
    int done = 0;
    bool revoked = false;
    changing state;
  };

  [[nodiscard]] rank_state& state(int rank) noexcept {
    return ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] slot& slot_of(std::int64_t sequence) noexcept {
    return slots_[static_cast<std::size_t>(sequence) % slots_.size()];
  }
  [[nodiscard]] changing& state_of(thread_ticket const& ticket) noexcept {
    return ticket.message != nullptr ? state(ticket.rank).mail : slot_of(ticket.sequence).state;
  }

  static std::string numbered(std::int64_t sequence) {
    return " (operation " + std::to_string(sequence) + ")";
  }
  static std::string numbered(thread_message const& message) {
    return " (message " + std::to_string(message.number) + ")";
  }

  //! One part per rank, but a small operation is done whole: waking a thread would take longer.
  [[nodiscard]] int parts_of(thread_call const& call) const noexcept {
    if (call.produce == nullptr || call.total == 0) return 0;
    constexpr double small = 16384;  // bytes
    return static_cast<double>(call.total) * static_cast<double>(call.element_size) < small
               ? 1
               : size();
  }

  static void notify(changing& state) noexcept {
    state.version.fetch_add(1, std::memory_order_release);
    state.changed.notify_all();
  }
  void notify_all() noexcept {
    for (auto& s : slots_) notify(s.state);
    for (auto& r : ranks_) notify(r.mail);
  }

  //! Gives up the lock until the state has changed or the time is over, or for no reason.
  void pause(std::unique_lock<std::mutex>& lock, changing& state,
             std::optional<clock::time_point> until) const {
    if (spins_ > 0) {
      auto const seen = state.version.load(std::memory_order_relaxed);
      lock.unlock();
      for (int i = 0; i < spins_ && state.version.load(std::memory_order_acquire) == seen; ++i)
        relax();
      acquire(lock);
      if (state.version.load(std::memory_order_relaxed) != seen) return;
    }
    if (until) {
      state.changed.wait_until(lock, *until);
    } else {
      state.changed.wait(lock);
    }
  }

  void acquire(std::unique_lock<std::mutex>& lock) const {
    for (int i = 0; i < spins_; ++i) {
      if (lock.try_lock()) return;
      relax();
    }
    lock.lock();
  }

  static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  //! Works on what the ticket is for and waits for it. True: complete. False: it failed, and nobody
  //! touches its buffers any more.
  bool finish(std::unique_lock<std::mutex>& lock, thread_ticket const& ticket) {
    // Nobody else starts the other side of a message to oneself.
    bool const alone = ticket.message != nullptr && ticket.message->call.root == ticket.rank;
    std::optional<clock::time_point> until;
    state(ticket.rank).waits = &ticket;
    auto at = progress::waiting;
    while (at = advance(lock, ticket, until && clock::now() >= *until),
           at == progress::waiting || at == progress::running) {
      if (at == progress::waiting && !until) {
        until = clock::now() + (alone ? std::chrono::milliseconds(0) : deadline_);
      }
      pause(lock, state_of(ticket), at == progress::waiting ? until : std::nullopt);
    }
    state(ticket.rank).waits = nullptr;
    release(ticket);
    return at == progress::complete;
  }

  void release(thread_ticket const& ticket) noexcept {
    if (ticket.message != nullptr) mail_.release(*ticket.message);
  }

  //! Does what there is to do without waiting. `late`: ends the group if a rank is missing.
  progress advance(std::unique_lock<std::mutex>& lock, thread_ticket const& ticket, bool late) {
    if (ticket.message != nullptr) {
      auto const& message = *ticket.message;
      if (message.done) return progress::complete;
      if (message.matched) return progress::running;
      if (!failure_) blame_absent(message, late);
      return failure_ ? progress::failed : progress::waiting;
    }
    auto& s = slot_of(ticket.sequence);
    while (s.sequence == ticket.sequence && s.done != s.parts) {
      bool const agreed = s.parts > 0 && !s.revoked;
      if (agreed && s.claims < s.parts) {
        run_part(lock, s, ticket.rank);
      } else if (agreed || s.running > 0) {
        return progress::running;
      } else {
        if (!failure_) blame_absent(s, ticket.rank, late);
        return failure_ ? progress::failed : progress::waiting;
      }
    }
    return progress::complete;
  }

  void run_part(std::unique_lock<std::mutex>& lock, slot& s, int rank) noexcept {
    int part = rank % s.parts;
    while (s.claimed[static_cast<std::size_t>(part)] != 0) part = (part + 1) % s.parts;
    s.claimed[static_cast<std::size_t>(part)] = 1;
    ++s.claims;
    ++s.running;
    int const end = s.parts == 1 ? size() : part + 1;
    lock.unlock();
    for (int p = part; p < end; ++p) s.calls[0].produce(s.calls, p);
    acquire(lock);
    --s.running;
    if (++s.done == s.parts || (s.revoked && s.running == 0)) notify(s.state);
  }

  //! The group's failure is the first one. `other` is the peer to name to `rank` itself.
  void blame(int rank, int other, std::string message) {
    if (failure_) return;
    failure_ = thread_failure{rank, std::move(message)};
    other_ = other;
    notify_all();
  }

  bool blame_disagreement(slot const& s) {
    int first = -1;
    for (int r = 0; r < size(); ++r) {
      if (s.started[static_cast<std::size_t>(r)] == 0) continue;
      if (first < 0) first = r;
      auto const text = disagreement(first, s.calls[static_cast<std::size_t>(first)], r,
                                     s.calls[static_cast<std::size_t>(r)]);
      if (text.empty()) continue;
      blame(r, first,
            text + " as operation " + std::to_string(s.sequence) +
                "; every rank must start the same operations in the same order");
      return true;
    }
    return false;
  }

  //! Ends the group if a rank that has not started the slot's operation never will or is too late.
  void blame_absent(slot const& s, int rank, bool late) {
    std::string names;
    int first = -1, absent = 0;
    bool any_left = false;
    for (auto const& r : ranks_) any_left |= r.left && r.started <= s.sequence;
    if (!any_left && !late) return;
    if (blame_disagreement(s)) return;
    for (int r = 0; r < size(); ++r) {
      if (state(r).started > s.sequence || (any_left && !state(r).left)) continue;
      if (first < 0 || state(first).waits != nullptr) first = r;
      names += (absent++ == 0 ? " " : ", ") + std::to_string(r);
    }
    auto const what = describe(s.calls[static_cast<std::size_t>(rank)]) + numbered(s.sequence);
    blame_absent(first, rank, (absent == 1 ? "rank" : "ranks") + names, any_left, what);
  }

  //! The same for the other side of a message.
  void blame_absent(thread_message const& message, bool late) {
    int const peer = message.call.root;
    if (!state(peer).left && !late) return;
    auto awaited = message.call;
    awaited.operation = is_send(message.call) ? "recv" : "send";
    awaited.root = message.rank;
    blame_absent(peer, message.rank, "rank " + std::to_string(peer), state(peer).left,
                 describe(awaited) + numbered(message));
  }

  //! Blames `absent`, or the rank it waits for.
  void blame_absent(int absent, int rank, std::string text, bool left, std::string const& what) {
    text += left ? " left without starting " + what
            : absent == rank
                ? " waits without having started " + what
                : " did not start " + what + " within " + std::to_string(deadline_.count()) + " ms";
    int const cause = left ? absent : cause_of(absent, rank);
    if (cause != absent) {
      text += "; rank " + std::to_string(absent) + " waits for rank " + std::to_string(cause);
    }
    blame(cause, rank, std::move(text));
  }

  //! The rank that `absent` waits for, the one that this one waits for, and so on; `absent` itself
  //! if that comes back to it or to `rank`.
  [[nodiscard]] int cause_of(int absent, int rank) {
    int cause = absent;
    for (int step = 0; step < size(); ++step) {
      auto const* const ticket = state(cause).waits;
      if (ticket == nullptr) return cause;
      if (ticket->message != nullptr) {
        cause = ticket->message->call.root;
      } else {
        auto const late = std::ranges::find_if(
            ranks_, [&](rank_state const& r) { return r.started <= ticket->sequence; });
        if (late == ranks_.end()) return cause;
        cause = static_cast<int>(late - ranks_.begin());
      }
      if (cause == absent || cause == rank) break;
    }
    return absent;
  }

  //! A rank that unwinds reports its exception after it has abandoned its operations, which is
  //! worth a moment's wait.
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock, int rank,
                                  std::string_view operation) {
    auto const until = clock::now() + std::min(deadline_, std::chrono::milliseconds(1000));
    while (unexplained_ && failure_->rank != rank && clock::now() < until) {
      pause(lock, slots_[0].state, until);
    }
    state(rank).told = true;
    auto const peer = failure_->rank == rank && other_ >= 0 ? other_ : failure_->rank;
    throw peer_error(std::string(operation), failure_->message, peer, rank, size());
  }

  mutable std::mutex mutex_;
  std::chrono::milliseconds deadline_;
  int spins_;  // before sleeping; about as long as a wake-up takes, 0 with fewer cores than ranks
  std::vector<rank_state> ranks_;
  thread_mail mail_;
  std::vector<slot> slots_;
  std::optional<thread_failure> failure_;
  int other_ = -1;
  bool unexplained_ = false;  // the failure is an abandoned operation, why may still follow
  std::exception_ptr cause_;
};

}  // namespace detail
}  // namespace scape
