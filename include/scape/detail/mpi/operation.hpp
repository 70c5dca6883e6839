// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One operation in flight over MPI: its messages, and the memory that MPI uses meanwhile.
//!
//! A send or recv is one message, every other operation is one or two exchanges of them. MPI's own
//! nonblocking collectives would bring the same bytes, but on lengths that differ they end the
//! program (Open MPI, by MPI_COMM_WORLD's error handler) or say nothing (MPICH), cannot be taken
//! back, and have to be started in the same order everywhere, which the second exchange of an
//! all_reduce is not.
//!
//! A message's tag holds the number of the operation, or of the message in its direction, and a
//! hash of all that ranks must agree on, as long as MPI's tags allow (18 bits or more in usual
//! ones): what disagrees does not match, and both sides name it at the deadline.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <scape/context/host.hpp>
#include <scape/detail/collective_name.hpp>
#include <scape/detail/host/ordered_fold.hpp>
#include <scape/detail/mpi/support.hpp>
#include <scape/workspace.hpp>

namespace scape::detail {

//! What one rank asks for.
struct mpi_call {
  collective_name name;
  std::string_view op = {};
  std::span<std::int64_t const> counts = {};  //!< only until the operation is started
  std::size_t element_size = 1;
  std::byte const* send = nullptr;
  std::byte* recv = nullptr;
  bool message = false;  //!< "send" or "recv"; the root is the peer
  //! to[i] = from[0][i] op from[1][i] ... for elements i of [begin, end). Null: no reduction.
  void (*fold)(std::span<std::byte const* const> from, std::byte* to, std::int64_t begin,
               std::int64_t end) noexcept = nullptr;
};

template <class T, class Op>
void fold_blocks(std::span<std::byte const* const> from, std::byte* to, std::int64_t begin,
                 std::int64_t end) noexcept {
  fold<T, Op>(
      from.size(), [&](std::size_t r) { return reinterpret_cast<T const*>(from[r]); }, begin, end,
      [&](std::int64_t i, auto const* block, std::int64_t n) {
        store_elements<T>(to, i, block, n);
      });
}

[[nodiscard]] inline bool is_send(mpi_call const& call) noexcept {
  return call.message && call.name.operation == "send";
}

//! A hash of all that ranks must agree on.
inline std::uint64_t fingerprint(mpi_call const& call, std::int64_t limit) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  auto const add = [&](auto value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
    hash ^= hash >> 32;
  };
  auto const operation = call.message ? "message" : call.name.operation;
  for (auto const text : {operation, call.name.element, call.op}) {
    for (char const c : text) add(c);
    add(0);
  }
  add(call.name.total);
  if (!call.message) add(call.name.root);
  add(call.element_size);
  add(limit);
  for (auto const count : call.counts) add(count);
  return hash;
}

//! Where an operation's messages go: one communicator, one element type, one tag.
struct mpi_wire {
  MPI_Comm comm;
  int rank;
  int size;
  std::int64_t limit;       //!< the most elements of a message
  int tag, tag_step, tags;  //!< an operation uses one of tag + i tag_step, i < tags
  MPI_Datatype type;
};

//! Serves one operation after the other and keeps its memory for the next.
class mpi_operation {
 public:
  enum class stage {
    unused,
    exchange,  //!< messages under way
    fold,      //!< all blocks here, to be combined by whoever waits
    folding,   //!< somebody does
    half,      //!< the second exchange is due
    gather,    //!< its messages under way
    done,
    failed,
  };

  stage at = stage::unused;
  std::int64_t sequence = 0;
  mpi_call call;
  std::uint64_t hash = 0;
  int code = MPI_SUCCESS;                       //!< of the call of MPI that failed
  std::chrono::steady_clock::time_point until;  //!< when whoever waits gives up

  [[nodiscard]] bool has_second_exchange() const noexcept { return second_; }

  //! Followed by one of the operations, then `launch`.
  void begin(std::int64_t number, mpi_call const& what, mpi_wire const& wire) {
    sequence = number;
    call = what;
    hash = fingerprint(call, wire.limit);
    wire_ = wire;
    wire_.tag += static_cast<int>(hash % static_cast<std::uint64_t>(wire.tags)) * wire.tag_step;
    code = MPI_SUCCESS;
    until = std::chrono::steady_clock::time_point::max();
    second_ = false;
    from_.clear();
    clear();
  }
  void launch() noexcept { at = code == MPI_SUCCESS ? stage::exchange : stage::failed; }

  void all_gather() {
    set_blocks([&](int r) { return call.counts[static_cast<std::size_t>(r)]; });
    gather(call.send, call.recv);
  }

  void reduce_scatter() {
    set_blocks([&](int r) { return call.counts[static_cast<std::size_t>(r)]; });
    to_ = call.recv;
    exchange_blocks();
  }

  //! Few bytes are gathered whole and combined by everybody; more are combined by blocks, which are
  //! then gathered.
  void all_reduce() {
    auto const n = call.name.total;
    if (is_short()) {
      set_blocks([&](int) { return n; });
      reserve(n * wire_.size);
      for (int r = 0; r < wire_.size; ++r) from_.push_back(staging() + bytes(n * r));
      to_ = call.recv;
      gather(call.send, staging());
    } else {
      cut();
      to_ = block(call.recv, wire_.rank).data;
      exchange_blocks();
    }
  }

  //! Few bytes go from the root to everybody; of more everybody gets a block, which are gathered
  //! then.
  void broadcast() {
    auto const root = call.name.root;
    bool const whole = is_short();
    if (!whole) cut();
    auto const part = [&](int r) {
      return whole ? range<std::byte>{call.recv, call.name.total} : block(call.recv, r);
    };
    post_messages([&](int r) { return wire_.rank == root ? part(r) : range<std::byte>{}; },
                  [&](int r) { return r == root ? part(wire_.rank) : range<std::byte>{}; });
  }

  //! A byte from everybody to everybody.
  void barrier() {
    set_blocks([](int) { return 1; });
    reserve(wire_.size);
    gather(block(staging(), wire_.rank).data, staging());
  }

  //! Complete when its receive has been started, as with other communicators.
  void send() {
    in_pieces(
        range<std::byte const>{call.send, call.name.total}, true,
        [&](std::byte const* from, int n) {
          note(MPI_Issend(from, n, wire_.type, call.name.root, wire_.tag, wire_.comm, next()));
        });
  }

  void recv() {
    in_pieces(range<std::byte>{call.recv, call.name.total}, true,
              [&](std::byte* to, int n) { receive(to, n, call.name.root); });
  }

  //! Goes on as far as it can without a fold or a second exchange. Never waits.
  void test() {
    if (at != stage::exchange && at != stage::gather) return;
    for (; tested_ < requests_.size() && code == MPI_SUCCESS; ++tested_) {
      int complete = 0;
      note(MPI_Test(&requests_[tested_], &complete, MPI_STATUS_IGNORE));
      if (code == MPI_SUCCESS && complete == 0) return;
    }
    if (code != MPI_SUCCESS) {
      at = stage::failed;
    } else if (at == stage::gather) {
      at = stage::done;
    } else {
      at = call.fold != nullptr ? stage::fold : after_fold();
    }
  }

  [[nodiscard]] stage after_fold() const noexcept { return second_ ? stage::half : stage::done; }

  void fold(host_context const& ctx) noexcept {
    ctx.parallel([&](int part, int parts) {
      auto const [first, last] = part_of(count_of(wire_.rank), part, parts);
      call.fold(from_, to_, first, last);
    });
  }

  //! The ranks' own blocks of recv go to all but the root of a broadcast, which has them.
  void second_exchange() {
    clear();
    auto const root = call.name.root;
    auto const unless_root = [&](int to, range<std::byte> const& part) {
      return to == root ? range<std::byte>{} : part;
    };
    post_messages([&](int r) { return unless_root(r, block(call.recv, wire_.rank)); },
                  [&](int r) { return unless_root(wire_.rank, block(call.recv, r)); });
    at = code == MPI_SUCCESS ? stage::gather : stage::failed;
  }

  //! Takes the receives back that no message has come for.
  void withdraw() noexcept {
    if (at != stage::exchange && at != stage::gather && at != stage::failed) return;
    for (std::size_t i = 0; i < receives_; ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
    }
  }
  //! Whether MPI writes no more to the memory of this operation.
  [[nodiscard]] bool withdrawn() noexcept {
    return all_complete(std::span(requests_).first(receives_));
  }

 private:
  template <class Byte>
  struct range {
    Byte* data = nullptr;
    std::int64_t count = 0;
  };

  [[nodiscard]] std::size_t bytes(std::int64_t elements) const noexcept {
    return static_cast<std::size_t>(elements) * call.element_size;
  }
  [[nodiscard]] std::int64_t begin_of(int rank) const noexcept {
    return begins_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::int64_t count_of(int rank) const noexcept {
    return begin_of(rank + 1) - begin_of(rank);
  }
  template <class Byte>
  [[nodiscard]] range<Byte> block(Byte* whole, int rank) const noexcept {
    return {whole + bytes(begin_of(rank)), count_of(rank)};
  }
  [[nodiscard]] std::byte* staging() const noexcept { return staging_->bytes().data(); }

  [[nodiscard]] bool is_short() const noexcept {
    constexpr std::int64_t few = 65536;  // bytes that arrive
    return call.name.total <= few / wire_.size / static_cast<std::int64_t>(call.element_size);
  }

  //! Rank r has counts(r) elements.
  template <class Counts>
  void set_blocks(Counts const& counts) {
    begins_.assign(1, 0);
    for (int r = 0; r < wire_.size; ++r) begins_.push_back(begins_.back() + counts(r));
  }
  //! Nearly equal blocks, to be gathered by a second exchange.
  void cut() {
    second_ = true;
    set_blocks([&](int r) {
      auto const [first, last] = part_of(call.name.total, r, wire_.size);
      return last - first;
    });
  }

  void reserve(std::int64_t elements) {
    if (staging_ && staging_->bytes().size() >= bytes(elements)) return;
    staging_.reset();
    staging_.emplace(bytes(elements));
  }

  //! Every rank's block of `to` comes from there; the own one is `own`.
  void gather(std::byte const* own, std::byte* to) {
    copy_bytes(block(to, wire_.rank).data, own, bytes(count_of(wire_.rank)));
    post_messages(
        [&](int) {
          return range<std::byte const>{own, count_of(wire_.rank)};
        },
        [&](int r) { return block(to, r); });
  }

  //! Brings this rank's blocks of the peers' `send` into the staging memory, to be folded with the
  //! own one.
  void exchange_blocks() {
    auto const mine = count_of(wire_.rank);
    reserve(mine * (wire_.size - 1));
    auto const place = [&](int r) {
      return staging() + bytes(mine * (r < wire_.rank ? r : r - 1));
    };
    for (int r = 0; r < wire_.size; ++r) {
      from_.push_back(r == wire_.rank ? block(call.send, r).data : place(r));
    }
    post_messages([&](int r) { return block(call.send, r); },
                  [&](int r) {
                    return range<std::byte>{place(r), mine};
                  });
  }

  //! Sends out(r) to every peer and receives in(r) from there, by as many messages as the limit
  //! wants.
  template <class Out, class In>
  void post_messages(Out const& out, In const& in) {
    for (int shift = 1; shift < wire_.size; ++shift) {
      auto const r = (wire_.rank + wire_.size - shift) % wire_.size;
      in_pieces(in(r), false, [&](std::byte* to, int n) { receive(to, n, r); });
    }
    for (int shift = 1; shift < wire_.size; ++shift) {
      auto const r = (wire_.rank + shift) % wire_.size;
      in_pieces(out(r), false, [&](std::byte const* from, int n) {
        note(MPI_Isend(from, n, wire_.type, r, wire_.tag, wire_.comm, next()));
      });
    }
  }

  //! `always`: in one empty piece if there is nothing.
  template <class Byte, class Start>
  void in_pieces(range<Byte> const& whole, bool always, Start const& start) {
    if (always && whole.count == 0) start(whole.data, 0);
    for (std::int64_t i = 0; i < whole.count; i += wire_.limit) {
      start(whole.data + bytes(i), static_cast<int>(std::min(wire_.limit, whole.count - i)));
    }
  }
  void receive(std::byte* to, int n, int from) {
    ++receives_;
    note(MPI_Irecv(to, n, wire_.type, from, wire_.tag, wire_.comm, next()));
  }

  void clear() noexcept {
    requests_.clear();
    receives_ = 0;
    tested_ = 0;
  }
  MPI_Request* next() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  void note(int result) noexcept {
    if (result != MPI_SUCCESS) code = result;
  }

  mpi_wire wire_{};
  bool second_ = false;
  std::vector<std::int64_t> begins_;    // of the ranks' blocks, and the total
  std::vector<std::byte const*> from_;  // by rank, what to fold ...
  std::byte* to_ = nullptr;             // ... and where to
  std::optional<host_buffer> staging_;
  std::vector<MPI_Request> requests_;
  std::size_t receives_ = 0;  // come first among them
  std::size_t tested_ = 0;    // those before this one are complete
};

}  // namespace scape::detail
