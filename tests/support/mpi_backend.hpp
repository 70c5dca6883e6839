// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Templated test cases on several ranks that are the processes of an mpirun.

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include <scape/comm/mpi.hpp>
#include <scape/error.hpp>

#include "backend.hpp"

namespace scape::testing {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

inline int world_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

//! Calls f() in all processes and throws in all of them if f throws in one or a communicator fails:
//! the own exception, or a runtime_error.
template <class F>
void in_all_processes(F const& f) {
  detail::mpi_has_failed() = false;
  std::exception_ptr own;
  try {
    f();
  } catch (...) {
    own = std::current_exception();
  }
  int failed = own != nullptr || detail::mpi_has_failed() ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (own) std::rethrow_exception(own);
  if (failed != 0) throw std::runtime_error("a peer failed");
}

//! How this rank ended, and when.
struct ending {
  std::string kind = "none", what;
  int peer = -1;
  std::chrono::milliseconds elapsed{};
};

//! Calls f(communicator&) in all processes.
template <class F>
ending ending_of(mpi_options const& options, F const& f) {
  using clock = std::chrono::steady_clock;
  ending end;
  {
    mpi_communicator comm(MPI_COMM_WORLD, options);
    auto const start = clock::now();
    try {
      f(comm);
    } catch (peer_error const& e) {
      end = {"peer_error", e.what(), e.peer()};
    } catch (mpi_error const& e) {
      end = {"mpi_error", e.what()};
    } catch (argument_error const& e) {
      end = {"argument_error", e.what()};
      comm.abort(e.what());
    } catch (std::exception const& e) {
      end = {"other", e.what()};
      comm.abort(e.what());
    }
    end.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(clock::now() - start);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return end;
}

struct mpi_backend : host_backend {
  using communicator = mpi_communicator;
  static constexpr bool receivers_of_nothing_wait_for_nobody = true;

  //! A case with another number of ranks is the matter of another run.
  static bool has_ranks(int size) { return size == world_size(); }

  //! Calls f(communicator&) in all `size` processes and throws in all of them if one throws or the
  //! communicator fails: the own exception, or a runtime_error. Does nothing if there are not
  //! `size` processes. A rank waits for its peers no longer than the deadline.
  template <class F>
  static void ranks(int size, F const& f,
                    std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    if (!has_ranks(size)) return;
    in_all_processes([&] {
      mpi_communicator comm(MPI_COMM_WORLD, {.deadline = deadline});
      try {
        f(comm);
      } catch (peer_error const&) {
        throw;
      } catch (std::exception const& e) {
        comm.abort(e.what());
        throw;
      } catch (...) {
        comm.abort("not a std::exception");
        throw;
      }
    });
  }

  //! Every process has filled its rank's entry with as many equally long vectors; gives all to all.
  static void share(std::vector<std::vector<std::vector<char>>>& by_rank) {
    auto const shape = by_rank[static_cast<std::size_t>(world_rank())];
    for (int r = 0; r < world_size(); ++r) {
      auto& entry = by_rank[static_cast<std::size_t>(r)];
      entry.resize(shape.size());
      for (std::size_t i = 0; i < shape.size(); ++i) {
        entry[i].resize(shape[i].size());
        MPI_Bcast(entry[i].data(), static_cast<int>(entry[i].size()), MPI_CHAR, r, MPI_COMM_WORLD);
      }
    }
  }
};

}  // namespace scape::testing
