// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The results as tables of text and as CSV.

#include <string>
#include <vector>

#include "experiments.hpp"
#include "settings.hpp"

namespace basis_rotation {

//! A header and rows of cells.
struct table {
  std::string title, note;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows = {};
};

//! One table per part that was run.
[[nodiscard]] std::vector<table> make_tables(settings const& s, results const& r);

[[nodiscard]] std::string text_of(table const& t);

//! One line per training to the target, and one per validation.
[[nodiscard]] std::string runs_csv(results const& r);
[[nodiscard]] std::string curves_csv(results const& r);
[[nodiscard]] std::string energy_csv(results const& r);
[[nodiscard]] std::string sync_csv(results const& r);

}  // namespace basis_rotation
