// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Runs boiled down to numbers: the table on stdout and the CSV files.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "run_result.hpp"

namespace train_gpt {

//! Means over the runs that differ only in the seed. Bytes are those one rank receives per step.
struct summary_row {
  std::string label = {};
  std::int64_t seeds = 0;
  bool finished = true;
  std::optional<double> validation = {};  //!< the last one; none before the first
  double validation_spread = 0;           //!< largest minus smallest over the seeds
  std::optional<double> difference = {};  //!< to dense runs of the same rule, steps and seeds
  double values = 0, parameters = 0, mask = 0, control = 0;
  std::optional<double> ratio = {};        //!< all bytes, as a share of the dense run's
  std::optional<double> final_ratio = {};  //!< the same in the last step
  phase_times milliseconds = {};           //!< per step

  [[nodiscard]] double bytes() const noexcept { return values + parameters + mask + control; }
  [[nodiscard]] double step_milliseconds() const noexcept;
};

[[nodiscard]] std::vector<summary_row> summarise(std::span<run_result const> results);

//! Places in phase_names of the phases that were measured in some row.
[[nodiscard]] std::vector<std::size_t> measured_phases(std::span<summary_row const> rows);

//! Two tables for a terminal: losses and bytes, then step times by phase.
[[nodiscard]] std::string text_table(std::span<summary_row const> rows);

//! One line per run.
[[nodiscard]] std::string summary_csv(std::span<run_result const> results);

//! One line per step.
[[nodiscard]] std::string steps_csv(run_result const& result);

}  // namespace train_gpt
