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

struct mpi_notice {
  mpi_ending ending = mpi_ending::none;
  std::int64_t started = 0;   //!< operations
  std::int64_t done = 0;      //!< operations before this one are complete
  std::int64_t waiting = -1;  //!< for this operation, named `call`
  std::uint64_t hash = 0;     //!< of that call
  std::array<char, 96> call{};
  std::array<char, 224> why{};

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
      : comm_(comm), rank_(rank), tag_(tag), notices_(static_cast<std::size_t>(size)) {
    sends_.reserve(notices_.size());
  }

  [[nodiscard]] bool told() const noexcept { return own().ending != mpi_ending::none; }

  //! Starts to send the notice to all peers. Only the first one is sent.
  void tell(mpi_notice const& notice) noexcept {
    if (told()) return;
    notices_[static_cast<std::size_t>(rank_)] = notice;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(&own(), sizeof(mpi_notice), MPI_BYTE, r, tag_, comm_, &request);
      sends_.push_back(request);
    }
  }

  //! Whether the notice needs no more memory.
  [[nodiscard]] bool sent() noexcept { return all_complete(sends_); }

  //! Takes the notices that have come. Returns whether there are any by now.
  bool listen() noexcept {
    while (true) {
      int here = 0;
      MPI_Status status;
      auto const code = MPI_Iprobe(MPI_ANY_SOURCE, tag_, comm_, &here, &status);
      if (code != MPI_SUCCESS || here == 0) return heard_ > 0;
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

  //! What has ended operation `own().waiting`, or the next one of a rank that waits for none.
  [[nodiscard]] mpi_failure blame(std::string const& late) const {
    auto const& mine = own();
    auto const operation = mine.waiting >= 0 ? mine.waiting : mine.started;
    auto const name = mine.waiting >= 0 ? named(mine) : "operation " + std::to_string(operation);
    auto r = first([](auto const& n) { return n.ending == mpi_ending::failed; });
    if (r >= 0) return {r, rank_name(r) + " failed: " + at(r).why.data()};
    r = first(
        [&](auto const& n) { return n.ending == mpi_ending::left && n.started <= operation; });
    if (r >= 0) return {r, rank_name(r) + " left without starting " + name};

    // Ranks that wait for different calls in the same place.
    auto const reference = first_of_all([&](auto const& n) { return n.waiting == operation; });
    r = first_of_all(
        [&](auto const& n) { return n.waiting == operation && n.hash != at(reference).hash; });
    if (r >= 0) {
      bool const same_text = at(r).call == at(reference).call;
      return {r == rank_ ? reference : r,
              rank_name(r) + " started " + at(r).call.data() + ", rank " +
                  std::to_string(reference) + " " + at(reference).call.data() +
                  (same_text ? ", with other counts or another reduction," : "") +
                  " as operation " + std::to_string(operation) +
                  "; every rank must start the same operations in the same order"};
    }
    r = mine.why[0] != 0 ? rank_ : first([](auto const& n) { return n.why[0] != 0; });
    if (r >= 0) return {r, rank_name(r) + " failed in " + named(at(r)) + ": " + at(r).why.data()};

    std::string names;
    int missing = 0, lowest = -1;
    for (int i = 0; i < size(); ++i) {
      if (at(i).ending != mpi_ending::none) continue;
      if (missing == 0) lowest = i;
      names += (missing++ == 0 ? " " : ", ") + std::to_string(i);
    }
    if (missing > 0) {
      return {lowest, (missing == 1 ? "rank" : "ranks") + names + " did not start or finish " +
                          name + late + ", nor answered since; look there for an error"};
    }
    r = first([&](auto const& n) { return n.started <= operation; });
    if (r >= 0) return {r, rank_name(r) + " did not start " + name + late};
    r = std::max(first([](auto const& n) { return n.ending == mpi_ending::gave_up; }), 0);
    auto const advice = at(r).waiting == operation
                            ? " too; raise the deadline"
                            : "; every rank must start the same operations in the same order";
    return {r, rank_name(r) + " gave up waiting for " + named(at(r)) + advice};
  }

 private:
  [[nodiscard]] int size() const noexcept { return static_cast<int>(notices_.size()); }
  [[nodiscard]] mpi_notice const& at(int rank) const noexcept {
    return notices_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] mpi_notice const& own() const noexcept { return at(rank_); }
  [[nodiscard]] static std::string rank_name(int rank) { return "rank " + std::to_string(rank); }
  [[nodiscard]] static std::string named(mpi_notice const& n) {
    return n.waiting < 0 ? "operation " + std::to_string(n.started)
                         : n.call.data() + (" (operation " + std::to_string(n.waiting) + ")");
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
  std::vector<MPI_Request> sends_;
};

}  // namespace scape::detail
