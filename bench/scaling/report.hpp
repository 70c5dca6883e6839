// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A prediction as one HTML page that needs nothing but itself, and as text.

#include <string>
#include <vector>

#include "options.hpp"
#include "support/table.hpp"
#include "sweep.hpp"

namespace scaling {

struct report {
  std::string title;
  std::vector<std::string> notes;
  std::vector<table> tables;
  std::vector<run> runs;
};

[[nodiscard]] table parameter_table(std::vector<parameter> const& parameters);

[[nodiscard]] std::string text(report const& r);
[[nodiscard]] std::string html(report const& r, options const& o);

}  // namespace scaling
