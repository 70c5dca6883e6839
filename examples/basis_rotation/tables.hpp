// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The results as tables of text and as CSV.

#include <string>
#include <vector>

#include "experiments.hpp"
#include "settings.hpp"
#include "support/table.hpp"

namespace basis_rotation {

//! A table and how to read it.
struct noted_table {
  bench::table table;
  std::string note;
};

//! Of all parts that were run.
[[nodiscard]] std::vector<noted_table> make_tables(settings const& s, results const& r);

//! One line per training to the target, and one per validation.
[[nodiscard]] std::string runs_csv(results const& r);
[[nodiscard]] std::string curves_csv(results const& r);
[[nodiscard]] std::string energy_csv(results const& r);
[[nodiscard]] std::string sync_csv(results const& r);

}  // namespace basis_rotation
