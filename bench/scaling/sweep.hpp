// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Predictions over the number of ranks.

#include <string>
#include <vector>

#include "options.hpp"
#include "support/table.hpp"

namespace scaling {

using bench::table;

//! Dense, or sparse at one density, at every number of ranks.
struct run {
  std::string label;
  std::vector<scape::step_prediction> steps;
};

//! Doubling from `from` to `to`, and `to` itself.
[[nodiscard]] std::vector<int> rank_counts(int from, int to);

//! The dense run and one per density. Throws scape::argument_error for ranks that do not fill their
//! nodes.
[[nodiscard]] std::vector<run> sweep(options const& o, std::vector<int> const& ranks);

//! By ranks: step time, efficiency against the first number of ranks, speedup over dense.
[[nodiscard]] table step_table(std::vector<run> const& runs);
//! The phases of every run's last step.
[[nodiscard]] table phase_table(std::vector<run> const& runs);
//! Everything, in seconds and bytes.
[[nodiscard]] table raw_table(std::vector<run> const& runs);

//! Efficiency and speedup as figures of an HTML page.
[[nodiscard]] std::string charts_html(std::vector<run> const& runs);

}  // namespace scaling
