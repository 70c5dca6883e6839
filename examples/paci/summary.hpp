// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Runs boiled down to numbers: the table on stdout and the CSV files.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paci/options.hpp"
#include "paci/run.hpp"
#include "support/table.hpp"

namespace paci {

//! One run, or the means over the runs that differ in the seed alone.
struct summary_row {
  run_spec spec = {};
  std::int64_t seeds = 1;
  double seconds = 0;      //!< from the first pass to the last
  double utilisation = 0;  //!< see full_seconds()
  //! What equal stages without communication would reach.
  double ideal = 0;
  std::int64_t max_drift = 0;              //!< of the stage with the largest one
  std::int64_t drift_bound = 0;            //!< the same
  std::int64_t activation_bytes = 0;       //!< largest of a stage
  std::int64_t skipped = 0;                //!< steps, of the stage with most
  std::optional<double> loss = {};         //!< on the held-out text, at the end, if finite
  std::optional<double> loss_spread = {};  //!< largest minus smallest over the seeds
  std::optional<double> to_target = {};    //!< seconds until the target loss
};

//! The time a run would take if the slowest stage never waited: its passes' nominal times, or, if
//! they have none, the time they took.
[[nodiscard]] double full_seconds(options const& o, run_result const& result);

//! When the held-out loss falls below `target`, between its points by a straight line.
[[nodiscard]] std::optional<double> seconds_to(double target,
                                               std::vector<validation_point> const& points);

//! The target loss of a seed: options::target, or the highest final loss of its runs with a flush
//! and of PACI; none without finite losses.
[[nodiscard]] std::optional<double> target_of(options const& o, std::uint64_t seed,
                                              std::span<run_result const> results);

//! A row for each run; runs that differ in the seed alone together.
[[nodiscard]] std::vector<summary_row> summarise(options const& o,
                                                 std::span<run_result const> results);

//! `what` of the best run with a flush; none without one.
[[nodiscard]] std::optional<double> best_flush(std::span<summary_row const> rows,
                                               std::optional<double> summary_row::*what);

[[nodiscard]] bench::table summary_table(options const& o, std::span<summary_row const> rows);

//! One line per run.
[[nodiscard]] std::string summary_csv(options const& o, std::span<run_result const> results);
//! One line per look at the weights.
[[nodiscard]] std::string curve_csv(run_result const& result);
//! One line per pass and step of all stages.
[[nodiscard]] std::string events_csv(options const& o, run_result const& result);

}  // namespace paci
