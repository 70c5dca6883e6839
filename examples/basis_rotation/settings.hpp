// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gpt_shape.hpp"

namespace basis_rotation {

struct settings {
  train_gpt::gpt_shape shape{.layers = 8, .width = 32, .heads = 2, .context = 64, .tied = false};
  std::int64_t batch = 8;  //!< sequences per step
  std::int64_t warmup = 50;
  std::int64_t interval = 10;         //!< steps between refreshes
  std::int64_t budget_interval = 50;  //!< the same where budgets are compared
  std::vector<std::int64_t> stages = {1, 4, 8, 16, 32};
  double target = 2.75;           //!< validation loss, nats per byte
  std::int64_t max_steps = 6000;  //!< of a run that does not get there
  std::int64_t validate_every = 10;
  std::int64_t validation_rows = 64;
  int ranks = 4;  //!< of the sparse sync
  std::int64_t sync_steps = 600;
  std::vector<double> learning_rates = {1e-2, 3e-3, 1e-3, 5e-4, 2.5e-4};
  std::vector<double> sync_learning_rates = {1e-2, 3e-2, 3e-3};
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1;
  int jobs = 1;  //!< runs at a time
  std::vector<std::string> parts = {"delay", "stashing", "budget", "sync"};
  std::vector<std::string> methods;  //!< names; empty: all
  std::filesystem::path corpus;
  std::filesystem::path out = "basis_rotation_out";
  bool quiet = false;
  std::string command;  //!< as typed

  [[nodiscard]] bool wants(std::string const& part) const;
};

//! Reads and checks the command line. Throws train_gpt::usage_error, and train_gpt::help_request.
[[nodiscard]] settings parse_settings(int argc, char const* const* argv);

}  // namespace basis_rotation
