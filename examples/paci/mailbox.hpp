// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A row of equally long messages between neighbouring stages.

#include <array>
#include <cstddef>
#include <cstdint>
#include <scape/concepts.hpp>
#include <span>
#include <vector>

namespace paci {

//! Without a neighbour every message is there, and empty.
inline constexpr int nobody = -1;

//! The receiving end. Two messages are asked for ahead, so that one can arrive while another is
//! used.
template <scape::communicator Comm>
class inbox {
 public:
  inbox(Comm& comm, int from, std::int64_t length, std::int64_t messages)
      : comm_(comm), from_(from), messages_(from == nobody ? 0 : messages) {
    if (from_ == nobody) return;
    for (auto& buffer : buffers_) buffer.resize(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < buffers_.size(); ++i) ask();
  }

  //! Whether the next message is there.
  [[nodiscard]] bool ready() { return from_ == nobody || handles_[slot(used_)].ready(context_); }
  void wait() { handles_[slot(used_)].wait(context_); }
  [[nodiscard]] std::span<float const> message() const { return buffers_[slot(used_)]; }
  //! Done with this message: its memory takes another one.
  void next() {
    ++used_;
    ask();
  }

 private:
  [[nodiscard]] std::size_t slot(std::int64_t message) const noexcept {
    return static_cast<std::size_t>(message) % buffers_.size();
  }
  void ask() {
    if (asked_ == messages_) return;
    auto const i = slot(asked_++);
    handles_[i] = comm_.recv(context_, std::span(buffers_[i]), from_);
  }

  Comm& comm_;
  typename Comm::context_type context_;
  int from_;
  std::int64_t messages_;
  std::int64_t asked_ = 0;
  std::int64_t used_ = 0;
  std::array<std::vector<float>, 2> buffers_;
  std::array<typename Comm::handle_type, 2> handles_;
};

//! The sending end, with room for `slots` messages under way.
template <scape::communicator Comm>
class outbox {
 public:
  outbox(Comm& comm, int to, std::int64_t length, std::int64_t slots)
      : comm_(comm),
        to_(to),
        buffers_(static_cast<std::size_t>(slots)),
        handles_(static_cast<std::size_t>(slots)) {
    if (to_ == nobody) return;
    for (auto& buffer : buffers_) buffer.resize(static_cast<std::size_t>(length));
  }

  //! Memory for the next message. Waits until the one that was there has arrived.
  [[nodiscard]] std::span<float> message() {
    handles_[next_].wait(context_);
    return buffers_[next_];
  }
  void send() {
    if (to_ == nobody) return;
    handles_[next_] = comm_.send(context_, std::span<float const>(buffers_[next_]), to_);
    next_ = (next_ + 1) % buffers_.size();
  }
  //! Waits until all have arrived.
  void finish() {
    for (auto& handle : handles_) handle.wait(context_);
  }

 private:
  Comm& comm_;
  typename Comm::context_type context_;
  int to_;
  std::size_t next_ = 0;
  std::vector<std::vector<float>> buffers_;
  std::vector<typename Comm::handle_type> handles_;
};

}  // namespace paci
