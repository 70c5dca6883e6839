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
#include <scape/error.hpp>

namespace scape {

//! Why a thread group no longer works.
struct thread_failure {
  int rank;             //!< the rank to blame
  std::string message;  //!< what it did, with its rank
};

namespace detail {

class thread_engine {
 public:
  thread_engine(int size, int slots, std::chrono::milliseconds deadline)
      : deadline_(std::min<std::chrono::milliseconds>(deadline, std::chrono::hours(24 * 365))),
        spins_(static_cast<unsigned>(size) <= std::thread::hardware_concurrency() ? 2000 : 0),
        ranks_(static_cast<std::size_t>(size)),
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
    for (auto& s : slots_) notify(s);
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
      for (auto& s : slots_) notify(s);
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

  //! Publishes a call and returns its number; waits, with the deadline, while the ring is full.
  std::int64_t start(int rank, thread_call const& call) {
    std::unique_lock lock(mutex_, std::defer_lock);
    acquire(lock);
    auto const sequence = state(rank).started;
    auto& s = slot_of(sequence);
    if (s.sequence != sequence) finish(lock, s, s.sequence, rank);
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
      notify(s);
    }
    return sequence;
  }

  //! Returns when operation `sequence` is complete; throws peer_error if it never will be.
  void wait(int rank, std::int64_t sequence, std::string_view operation) {
    std::unique_lock lock(mutex_, std::defer_lock);
    acquire(lock);
    if (!finish(lock, slot_of(sequence), sequence, rank)) throw_failure(lock, rank, operation);
  }

  //! The same without telling: a failure shows at the rank's next operation.
  void settle(int rank, std::int64_t sequence) noexcept {
    std::unique_lock lock(mutex_);
    finish(lock, slot_of(sequence), sequence, rank);
  }

  //! Takes the rank's buffers back, which ends the group. Returns when no thread touches them.
  void abandon(int rank, std::int64_t sequence, std::string_view operation) noexcept {
    std::unique_lock lock(mutex_);
    if (!failure_) unexplained_ = true;
    blame(rank, -1,
          "rank " + std::to_string(rank) + " abandoned " + std::string(operation) + " (operation " +
              std::to_string(sequence) + ") because of an exception");
    auto& s = slot_of(sequence);
    if (s.sequence != sequence) return;
    s.revoked = true;
    while (s.running > 0) pause(lock, s, std::nullopt);
  }

 private:
  using clock = std::chrono::steady_clock;

  struct rank_state {
    std::int64_t started = 0;  // operations
    bool present = false;      // a communicator of this rank lives
    bool left = false;         // it lived once
    bool told = false;         // the failure was thrown at it
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
    std::condition_variable changed;
    std::atomic<unsigned> version = 0;  // of the slot, for those who look without the mutex
  };

  [[nodiscard]] rank_state& state(int rank) noexcept {
    return ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] slot& slot_of(std::int64_t sequence) noexcept {
    return slots_[static_cast<std::size_t>(sequence) % slots_.size()];
  }

  //! One part per rank, but a small operation is done whole: waking a thread would take longer.
  [[nodiscard]] int parts_of(thread_call const& call) const noexcept {
    if (call.produce == nullptr || call.total == 0) return 0;
    constexpr double small = 16384;  // bytes
    return static_cast<double>(call.total) * static_cast<double>(call.element_size) < small
               ? 1
               : size();
  }

  static void notify(slot& s) noexcept {
    s.version.fetch_add(1, std::memory_order_release);
    s.changed.notify_all();
  }

  //! Gives up the lock until the slot has changed or the time is over, or for no reason.
  void pause(std::unique_lock<std::mutex>& lock, slot& s,
             std::optional<clock::time_point> until) const {
    if (spins_ > 0) {
      auto const seen = s.version.load(std::memory_order_relaxed);
      lock.unlock();
      for (int i = 0; i < spins_ && s.version.load(std::memory_order_acquire) == seen; ++i) relax();
      acquire(lock);
      if (s.version.load(std::memory_order_relaxed) != seen) return;
    }
    if (until) {
      s.changed.wait_until(lock, *until);
    } else {
      s.changed.wait(lock);
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

  //! Works on operation `sequence` and waits for it. True: complete. False: it failed, and nobody
  //! touches its buffers any more.
  bool finish(std::unique_lock<std::mutex>& lock, slot& s, std::int64_t sequence, int rank) {
    std::optional<clock::time_point> until;
    while (s.sequence == sequence && s.done != s.parts) {
      bool const ready = s.parts > 0 && !s.revoked;
      if (ready && s.claims < s.parts) {
        run_part(lock, s, rank);
      } else if (ready || s.running > 0) {
        pause(lock, s, std::nullopt);
      } else if (failure_) {
        return false;
      } else if (!until) {
        until = clock::now() + deadline_;
        blame_absent(s, rank, false);
        if (!failure_) pause(lock, s, until);
      } else {
        blame_absent(s, rank, clock::now() >= *until);
        if (!failure_) pause(lock, s, until);
      }
    }
    return true;
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
    if (++s.done == s.parts || (s.revoked && s.running == 0)) notify(s);
  }

  //! The group's failure is the first one. `other` is the peer to name to `rank` itself.
  void blame(int rank, int other, std::string message) {
    if (failure_) return;
    failure_ = thread_failure{rank, std::move(message)};
    other_ = other;
    for (auto& s : slots_) notify(s);
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
      if (first < 0) first = r;
      names += (absent++ == 0 ? " " : ", ") + std::to_string(r);
    }
    auto const what = describe(s.calls[static_cast<std::size_t>(rank)]) + " (operation " +
                      std::to_string(s.sequence) + ")";
    blame(first, rank,
          (absent == 1 ? "rank" : "ranks") + names +
              (any_left ? " left without starting " + what
                        : " did not start " + what + " within " +
                              std::to_string(deadline_.count()) + " ms"));
  }

  //! A rank that unwinds reports its exception after it has abandoned its operations, which is
  //! worth a moment's wait.
  [[noreturn]] void throw_failure(std::unique_lock<std::mutex>& lock, int rank,
                                  std::string_view operation) {
    auto const until = clock::now() + std::min(deadline_, std::chrono::milliseconds(1000));
    while (unexplained_ && failure_->rank != rank && clock::now() < until) {
      pause(lock, slots_[0], until);
    }
    state(rank).told = true;
    auto const peer = failure_->rank == rank && other_ >= 0 ? other_ : failure_->rank;
    throw peer_error(std::string(operation), failure_->message, peer, rank, size());
  }

  mutable std::mutex mutex_;
  std::chrono::milliseconds deadline_;
  int spins_;  // before sleeping; about as long as a wake-up takes, 0 with fewer cores than ranks
  std::vector<rank_state> ranks_;
  std::vector<slot> slots_;
  std::optional<thread_failure> failure_;
  int other_ = -1;
  bool unexplained_ = false;  // the failure is an abandoned operation, why may still follow
  std::exception_ptr cause_;
};

}  // namespace detail
}  // namespace scape
