// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Running on the calling thread, or on it and the workers of a pool.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <scape/error.hpp>

namespace scape {

//! `threads - 1` waiting workers; the caller of `run` is the last one. Not for concurrent callers.
class host_pool {
 public:
  explicit host_pool(int threads) : threads_(threads) {
    detail::expect(threads >= 1, "host_pool", "at least one thread is needed");
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {
      stop();
      throw;
    }
  }
  host_pool(host_pool const&) = delete;
  host_pool& operator=(host_pool const&) = delete;
  ~host_pool() { stop(); }

  [[nodiscard]] int threads() const noexcept { return threads_; }

  //! Calls f(0) ... f(threads-1), one on each thread, and returns when all have. f must not throw.
  template <class F>
  void run(F& f) {
    {
      std::lock_guard const lock(mutex_);
      call_ = [](void* callee, int i) { (*static_cast<F*>(callee))(i); };
      callee_ = &f;
      pending_ = threads_ - 1;
      ++round_;
    }
    start_.notify_all();
    [&]() noexcept { f(0); }();  // an exception must not leave while workers use f
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
  }

 private:
  void stop() noexcept {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    start_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  void work(int i) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      start_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
      lock.unlock();
      call_(callee_, i);
      lock.lock();
      if (--pending_ == 0) done_.notify_one();
    }
  }

  int threads_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  void (*call_)(void*, int) = nullptr;
  void* callee_ = nullptr;
  std::uint64_t round_ = 0;
  int pending_ = 0;
  bool stopping_ = false;
};

//! A host execution context: scratch memory and, optionally, a pool. Primitives return when done.
//! One context serves one thread at a time.
struct host_context {
  std::span<std::byte> scratch;
  host_pool* pool = nullptr;

  [[nodiscard]] int threads() const noexcept { return pool == nullptr ? 1 : pool->threads(); }

  //! Calls f(part, parts) for part = 0 ... parts-1; parts is 1 without a pool. f must not throw.
  template <class F>
  void parallel(F&& f) const {
    int const parts = threads();
    if (parts == 1) {
      f(0, 1);
    } else {
      auto call = [&](int part) { f(part, parts); };
      pool->run(call);
    }
  }
};

namespace detail {

//! Part `part` of [0, n) cut into `parts` nearly equal ranges.
constexpr std::pair<std::int64_t, std::int64_t> part_of(std::int64_t n, int part,
                                                        int parts) noexcept {
  auto const at = [&](int i) { return n / parts * i + (n % parts) * i / parts; };
  return {at(part), at(part + 1)};
}

}  // namespace detail
}  // namespace scape
