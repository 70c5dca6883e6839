// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line, and the runs it asks for.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train_gpt/options.hpp"

namespace paci {

enum class workload_kind { gpt, sleep };

//! One run of the pipeline.
struct run_spec {
  bool flush = false;
  std::int64_t window = 1;  //!< backwards per optimizer step
  std::uint64_t seed = 1;

  friend bool operator==(run_spec const&, run_spec const&) = default;
  [[nodiscard]] std::string name() const;   //!< without the seed, for files
  [[nodiscard]] std::string label() const;  //!< without the seed, for people
};

struct options {
  workload_kind workload = workload_kind::gpt;
  int stages = 8;
  int replicas = 1;
  std::int64_t micro_batches = 3200;  //!< per replica and run
  double forward_ms = 0;              //!< least time of a stage's forward
  double backward_ms = 0;
  double jitter = 0;             //!< every pass takes 1 - jitter to 1 + jitter of its time
  std::vector<double> slower;    //!< by stage: factors of these times; those left out are 1
  std::optional<double> target;  //!< the loss whose time is looked for
  std::vector<run_spec> runs;
  //! Model, corpus, output, and what the optimizers of all stages have in common. `steps` is that
  //! of a run: micro_batches / window.
  train_gpt::options training;
  train_gpt::run_spec optimizer;

  [[nodiscard]] bool paced() const noexcept { return forward_ms + backward_ms > 0; }
  //! Of the times of this stage's passes.
  [[nodiscard]] double factor(int stage) const noexcept;
};

//! Reads and checks the command line. `processes`: how many there are over MPI; none: the stages
//! are threads. Throws train_gpt::usage_error, and train_gpt::help_request.
[[nodiscard]] options parse_options(int argc, char const* const* argv,
                                    std::optional<int> processes = {});

}  // namespace paci
