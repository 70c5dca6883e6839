// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line, and the training runs it asks for.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gpt_shape.hpp"

namespace train_gpt {

enum class update_rule { adams, adamw };
enum class sparse_preset { staleness_aware, literal };
enum class wire_type { fp32, bf16, fp16 };
enum class device_kind { host, cuda };
enum class comm_kind { threads, mpi };

//! One training run.
struct run_spec {
  std::string name = {};   //!< without the seed: runs of one name differ in nothing else
  std::string label = {};  //!< for people
  bool sparse = false;
  update_rule rule = update_rule::adams;
  sparse_preset preset = sparse_preset::staleness_aware;
  double density = 1;
  std::int64_t ramp = 0;  //!< steps until `density` is reached
  double lr = 0;          //!< peak learning rate
  std::uint64_t seed = 1;

  //! The stem of the run's files.
  [[nodiscard]] std::string stem() const { return name + "-seed" + std::to_string(seed); }
};

struct options {
  gpt_shape shape;
  int ranks = 4;
  std::int64_t batch = 4;  //!< rows per rank
  std::int64_t steps = 4000;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.1;
  double clip = 1;       //!< of every rank's own gradient norm; 0: none
  double warmup = 0.08;  //!< share of the steps
  int lag = 1;
  wire_type wire = wire_type::fp32;
  comm_kind comm = comm_kind::threads;
  device_kind device = device_kind::host;  //!< where the optimizers run
  std::filesystem::path corpus;
  std::filesystem::path out = "train_gpt_out";
  std::int64_t checkpoint_every = 0;  //!< steps; 0: only at the end of a run
  bool resume = false;
  bool quiet = false;
  std::vector<run_spec> runs;
  std::string command;  //!< as typed

  //! Linear warm-up, then a cosine down to a tenth; `step` counts from 0.
  [[nodiscard]] double learning_rate(run_spec const& run, std::int64_t step) const;
};

//! What --comm says; without it, mpi where a launcher of MPI has started several processes.
[[nodiscard]] comm_kind requested_comm(int argc, char const* const* argv);

//! Reads and checks the command line. `processes`: how many train together over MPI; none: the
//! ranks are threads. Throws usage_error, and help_request.
[[nodiscard]] options parse_options(int argc, char const* const* argv,
                                    std::optional<int> processes = {});

}  // namespace train_gpt
