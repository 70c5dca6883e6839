// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Messages between rank threads whose sender or receiver has not come yet.
//!
//! Messages of one direction between two ranks meet in the order they are started. So those that
//! wait are all sends or all receives, and whoever comes second takes the oldest.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <scape/detail/host/thread_call.hpp>

namespace scape::detail {

//! A message's side that was started first. The call is "send" or "recv", its root is the peer.
struct thread_message {
  thread_call call;
  int rank = -1;            //!< whose side this is
  std::int64_t number = 0;  //!< among the messages of this direction between the two ranks
  bool matched = false;     //!< the other side has come and copies
  bool done = false;
  thread_message* next = nullptr;
};

[[nodiscard]] inline bool is_send(thread_call const& call) noexcept {
  return call.operation == "send";
}

//! "" if the sides agree, otherwise "rank <to> started <recv>, rank <from> <send>".
inline std::string disagreement(thread_call const& send, thread_call const& recv) {
  std::string more_send, more_recv;
  if (send.element == recv.element && send.total == recv.total) {
    if (send.element_size == recv.element_size) return {};
    more_send = " of " + std::to_string(send.element_size) + " bytes each";
    more_recv = " of " + std::to_string(recv.element_size) + " bytes each";
  }
  return "rank " + std::to_string(send.root) + " started " + describe(recv) + more_recv +
         ", rank " + std::to_string(recv.root) + " " + describe(send) + more_send;
}

class thread_mail {
 public:
  explicit thread_mail(int size)
      : size_(static_cast<std::size_t>(size)), directions_(size_ * size_) {}

  //! Takes out the other side of the call, if it has come.
  [[nodiscard]] thread_message* match(int rank, thread_call const& call) {
    auto& d = direction_of(rank, call);
    auto const ahead = is_send(call) ? d.received - d.sent : d.sent - d.received;
    if (ahead <= 0) return nullptr;
    auto* const other = d.first;
    d.first = other->next;
    ++(is_send(call) ? d.sent : d.received);
    return other;
  }

  //! Lets the call wait for its other side, which has not come.
  [[nodiscard]] thread_message& post(int rank, thread_call const& call) {
    auto& d = direction_of(rank, call);
    auto* message = free_;
    if (message == nullptr) {
      message = &messages_.emplace_back();
    } else {
      free_ = message->next;
    }
    *message = {.call = call, .rank = rank, .number = (is_send(call) ? d.sent : d.received)++};
    (d.first == nullptr ? d.first : d.last->next) = message;
    d.last = message;
    return *message;
  }

  //! Its memory may serve another message.
  void release(thread_message& message) noexcept {
    message.next = free_;
    free_ = &message;
  }

 private:
  struct direction {
    std::int64_t sent = 0;
    std::int64_t received = 0;
    thread_message* first = nullptr;  // of those that wait
    thread_message* last = nullptr;
  };

  [[nodiscard]] direction& direction_of(int rank, thread_call const& call) noexcept {
    auto const from = static_cast<std::size_t>(is_send(call) ? rank : call.root);
    auto const to = static_cast<std::size_t>(is_send(call) ? call.root : rank);
    return directions_[from * size_ + to];
  }

  std::size_t size_;
  std::vector<direction> directions_;    // by sender and receiver
  std::deque<thread_message> messages_;  // stay where they are
  thread_message* free_ = nullptr;
};

}  // namespace scape::detail
