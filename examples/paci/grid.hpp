// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where the stages are: threads of this process, or processes over MPI with one stage each.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paci {

struct stage_job;
struct stage_result;

//! How long a stage waits for a neighbour, or for the other replicas.
inline constexpr std::chrono::minutes deadline(5);

class grid {
 public:
  virtual ~grid() = default;

  //! The number of this process. Process 0 prints and writes files.
  [[nodiscard]] virtual int process() const = 0;
  //! How many there are, and stages times replicas; none: as many places as one likes, in this
  //! process.
  [[nodiscard]] virtual std::optional<int> processes() const = 0;
  //! Collective: the first process that passes true, if one does.
  [[nodiscard]] virtual std::optional<int> first_with(bool value) = 0;
  //! Collective: runs this process's stages. All results on process 0, by number_of(); none
  //! elsewhere. Rethrows their errors.
  [[nodiscard]] virtual std::vector<stage_result> run(stage_job const& job) = 0;
  //! Ends the other processes, now or when the grid is destroyed.
  virtual void abort(std::string const& why) = 0;
};

[[nodiscard]] std::unique_ptr<grid> make_thread_grid();

//! Initialises MPI, until the grid is destroyed. Throws train_gpt::usage_error if the program was
//! built without MPI.
[[nodiscard]] std::unique_ptr<grid> make_mpi_grid(int& argc, char**& argv);

}  // namespace paci
