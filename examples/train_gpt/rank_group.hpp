// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where the ranks are: threads of this process, or processes over MPI with one rank each.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace train_gpt {

struct shared_run;
class progress;

//! How long a rank waits for another: one that fails throws and ends them all, but one that was
//! only suspended must not.
inline constexpr std::chrono::hours patience(24);

class rank_group {
 public:
  virtual ~rank_group() = default;

  //! The number of this process. Process 0 prints and writes files.
  [[nodiscard]] virtual int process() const = 0;
  //! How many there are, and ranks; none: as many ranks as one likes, in this process.
  [[nodiscard]] virtual std::optional<int> processes() const = 0;
  //! Collective: the first process that passes true, if one does.
  [[nodiscard]] virtual std::optional<int> first_with(bool value) = 0;
  //! Collective: the first process whose value is not that of process 0, if there is one.
  [[nodiscard]] virtual std::optional<int> first_unlike(std::uint64_t value) = 0;
  //! Collective: runs this process's ranks. Rethrows their errors.
  virtual void train(shared_run const& shared, progress& line) = 0;
  //! Ends the other processes, now or when the group is destroyed.
  virtual void abort(std::string const& why) = 0;
};

[[nodiscard]] std::unique_ptr<rank_group> make_thread_ranks();

//! Initialises MPI, until the group is destroyed. Throws usage_error if the program was built
//! without MPI.
[[nodiscard]] std::unique_ptr<rank_group> make_mpi_ranks(int& argc, char**& argv);

}  // namespace train_gpt
