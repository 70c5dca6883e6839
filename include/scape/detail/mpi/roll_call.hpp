// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The one message that every rank of an MPI communicator sends to every other when it ends its
//! part in it, in order or not, and what the survivors of a failure conclude from these.

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <scape/detail/mpi/support.hpp>

namespace scape::detail {

enum class mpi_ending : std::int32_t {
  none,     //!< nothing heard
  left,     //!< destroyed in order
  failed,   //!< by itself
  gave_up,  //!< on the others
};

//! A rank's sides of the messages of one direction between it and another rank.
struct mpi_sides {
  std::int64_t started = 0;
  std::int64_t open = -1;  //!< the first of them that is incomplete, named `call`
  std::uint64_t hash = 0;  //!< of that call
  std::array<char, 96> call{};
};

struct mpi_notice {
  int rank = -1;
  mpi_ending ending = mpi_ending::none;
  std::int64_t started = 0;   //!< collective operations
  std::int64_t done = 0;      //!< those before this one are complete
  std::int64_t waiting = -1;  //!< for this one, or this message, named `call`
  int peer = -1;              //!< the message's other rank ...
  bool sends = false;         //!< ... which receives it
  std::uint64_t hash = 0;     //!< of that call
  std::array<char, 96> call{};
  std::array<char, 224> why{};
  mpi_sides out, in;  //!< sends to and receives from the rank that gets the notice

  template <std::size_t n>
  static void set(std::array<char, n>& to, std::string_view text) noexcept {
    text.copy(to.data(), n - 1);
  }
};
static_assert(std::is_trivially_copyable_v<mpi_notice>);

//! Why a communicator no longer works.
struct mpi_failure {
  int peer;
  std::string message;
  int code = MPI_SUCCESS;  //!< if it is MPI's
};

class mpi_roll_call {
 public:
  mpi_roll_call(MPI_Comm comm, int rank, int size, int tag)
      : comm_(comm),
        rank_(rank),
        tag_(tag),
        notices_(static_cast<std::size_t>(size)),
        told_(notices_.size()) {
    sends_.reserve(notices_.size());
  }

  [[nodiscard]] bool told() const noexcept { return own().ending != mpi_ending::none; }

  //! Starts to send notice_for(r) to every peer r. Only the first one is sent.
  template <class NoticeFor>
  void tell(NoticeFor const& notice_for) noexcept {
    if (told()) return;
    for (int r = 0; r < size(); ++r) {
      auto& notice = told_[static_cast<std::size_t>(r)] = notice_for(r);
      if (r == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(&notice, sizeof(mpi_notice), MPI_BYTE, r, tag_, comm_, &request);
      sends_.push_back(request);
    }
    notices_[static_cast<std::size_t>(rank_)] = told_[static_cast<std::size_t>(rank_)];
  }

  //! Whether the notice needs no more memory.
  [[nodiscard]] bool sent() noexcept { return all_complete(sends_); }

  [[nodiscard]] bool heard() const noexcept { return heard_ > 0; }

  //! Takes the notices that have come.
  void listen() noexcept {
    while (true) {
      int here = 0;
      MPI_Status status;
      auto const code = MPI_Iprobe(MPI_ANY_SOURCE, tag_, comm_, &here, &status);
      if (code != MPI_SUCCESS || here == 0) return;
      mpi_notice notice;
      MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, tag_, comm_, MPI_STATUS_IGNORE);
      notices_[static_cast<std::size_t>(status.MPI_SOURCE)] = notice;
      ++heard_;
    }
  }

  [[nodiscard]] bool complete() const noexcept { return heard_ == size() - 1; }

  //! Whether a peer has sent such a notice.
  template <class Predicate>
  [[nodiscard]] bool any(Predicate const& is) const {
    return first(is) >= 0;
  }

  //! What has ended what own() waits for, or the next operation of a rank that waits for none.
  //! `awaited` names what is missing: the operation, or the other side of a message.
  [[nodiscard]] mpi_failure blame(std::string const& awaited, std::string const& late) const {
    auto const& mine = own();
    auto r = first([](auto const& n) { return n.ending == mpi_ending::failed; });
    if (r >= 0) return {r, rank_name(r) + " failed: " + at(r).why.data()};
    r = first([&](auto const& n) { return n.ending == mpi_ending::left && misses(n); });
    if (r >= 0) return {r, rank_name(r) + " left without starting " + awaited};
    if (mine.peer == rank_ && misses(mine)) {
      return {rank_, rank_name(rank_) + " waits without having started " + awaited};
    }
    if (auto const difference = disagreement()) return *difference;
    r = mine.why[0] != 0 ? rank_ : first([](auto const& n) { return n.why[0] != 0; });
    if (r >= 0) return {r, rank_name(r) + " failed in " + named(at(r)) + ": " + at(r).why.data()};

    bool const answered = mine.peer >= 0 && at(mine.peer).ending != mpi_ending::none;
    std::string names;
    int missing = 0, lowest = -1;
    for (int i = 0; i < size(); ++i) {
      if (at(i).ending != mpi_ending::none || (mine.peer >= 0 && !answered && i != mine.peer)) {
        continue;
      }
      if (missing == 0) lowest = i;
      names += (missing++ == 0 ? " " : ", ") + std::to_string(i);
    }
    names.insert(0, missing == 1 ? "rank" : "ranks");
    if (missing > 0 && answered) {
      return {lowest, rank_name(mine.peer) + " did not start or finish " + awaited + late +
                          ", and " + names + " did not answer since; look there for an error"};
    }
    if (missing > 0) {
      return {lowest, names + " did not start or finish " + awaited + late +
                          ", nor answered since; look there for an error"};
    }
    r = first([&](auto const& n) { return misses(n); });
    if (r >= 0) {
      auto const text = rank_name(r) + " did not start " + awaited + late;
      return {cause_of(r), at(r).waiting < 0 ? text : text + "; it waited for " + named(at(r))};
    }
    r = mine.peer >= 0
            ? mine.peer
            : std::max(first([](auto const& n) { return n.ending == mpi_ending::gave_up; }), 0);
    bool const alike =
        mine.peer >= 0 ? at(r).peer == rank_ : at(r).peer < 0 && at(r).waiting == operation();
    return {r, rank_name(r) + " gave up waiting for " + named(at(r)) +
                   (alike ? " too; raise the deadline"
                          : "; every rank must start the same operations in the same order")};
  }

 private:
  [[nodiscard]] int size() const noexcept { return static_cast<int>(notices_.size()); }
  [[nodiscard]] mpi_notice const& at(int rank) const noexcept {
    return notices_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] mpi_notice const& own() const noexcept { return at(rank_); }
  [[nodiscard]] static std::string rank_name(int rank) { return "rank " + std::to_string(rank); }
  [[nodiscard]] static std::string named(mpi_notice const& n) {
    if (n.waiting < 0) return "operation " + std::to_string(n.started);
    return n.call.data() + std::string(n.peer < 0 ? " (operation " : " (message ") +
           std::to_string(n.waiting) + ")";
  }

  //! The collective operation that own() waits for, or would start next.
  [[nodiscard]] std::int64_t operation() const noexcept {
    return own().waiting >= 0 ? own().waiting : own().started;
  }

  //! Whether a rank had not started what own() waits for.
  [[nodiscard]] bool misses(mpi_notice const& n) const {
    auto const& mine = own();
    if (mine.peer < 0) return n.started <= operation();
    return n.rank == mine.peer && (mine.sends ? n.in : n.out).started <= mine.waiting;
  }

  //! Ranks that wait for different calls in the same place, or differ in a message of this rank.
  [[nodiscard]] std::optional<mpi_failure> disagreement() const {
    auto const here = [&](mpi_notice const& n) {
      return own().peer < 0 && n.peer < 0 && n.waiting == operation();
    };
    auto const reference = first_of_all(here);
    auto r = first_of_all([&](auto const& n) { return here(n) && n.hash != at(reference).hash; });
    if (r >= 0) {
      return mpi_failure{r == rank_ ? reference : r,
                         differ(r, at(r).call, reference, at(reference).call,
                                ", with other counts or another reduction,") +
                             " as operation " + std::to_string(operation()) +
                             "; every rank must start the same operations in the same order"};
    }
    for (r = 0; r < size(); ++r) {
      auto const& said = told_[static_cast<std::size_t>(r)];
      for (bool const sends : {true, false}) {
        auto const& own_sides = sends ? said.out : said.in;
        auto const& others = sends ? at(r).in : at(r).out;
        if (own_sides.open < 0 || own_sides.open != others.open || own_sides.hash == others.hash) {
          continue;
        }
        return mpi_failure{
            r, (sends ? differ(r, others.call, rank_, own_sides.call, other_elements)
                      : differ(rank_, own_sides.call, r, others.call, other_elements)) +
                   " as message " + std::to_string(others.open) +
                   "; messages from one rank to another are received in the order they are sent"};
      }
    }
    return std::nullopt;
  }
  static constexpr char const* other_elements = ", of another size or with another count_limit,";

  //! "rank <a> started <call>, rank <b> <call>", with `unseen` if that looks alike.
  template <std::size_t n>
  [[nodiscard]] static std::string differ(int a, std::array<char, n> const& call_of_a, int b,
                                          std::array<char, n> const& call_of_b,
                                          std::string_view unseen) {
    auto text = rank_name(a) + " started " + call_of_a.data() + ", " + rank_name(b) + " " +
                call_of_b.data();
    return call_of_a == call_of_b ? text.append(unseen) : text;
  }

  //! The rank that `absent` waited for, the one that this one waited for, and so on; `absent`
  //! itself if that comes back to it or to this rank.
  [[nodiscard]] int cause_of(int absent) const {
    int cause = absent;
    for (int step = 0; step < size(); ++step) {
      auto const& n = at(cause);
      auto const next = n.waiting < 0 ? -1
                        : n.peer >= 0
                            ? n.peer
                            : first([&](auto const& m) { return m.started <= n.waiting; });
      if (next < 0) return cause;
      cause = next;
      if (cause == absent || cause == rank_) break;
    }
    return absent;
  }

  //! The lowest rank with such a notice, -1 if there is none.
  template <class Predicate>
  [[nodiscard]] int first_of_all(Predicate const& is) const {
    auto const found = std::ranges::find_if(notices_, is);
    return found == notices_.end() ? -1 : static_cast<int>(found - notices_.begin());
  }
  //! The same among the peers that were heard.
  template <class Predicate>
  [[nodiscard]] int first(Predicate const& is) const {
    return first_of_all(
        [&](mpi_notice const& n) { return &n != &own() && n.ending != mpi_ending::none && is(n); });
  }

  MPI_Comm comm_;
  int rank_;
  int tag_;
  int heard_ = 0;
  std::vector<mpi_notice> notices_;  // by rank, the own one among them
  std::vector<mpi_notice> told_;     // by rank, what it was sent
  std::vector<MPI_Request> sends_;
};

}  // namespace scape::detail
