// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One table as text, HTML and CSV.

#include <string>
#include <vector>

namespace bench {

struct table {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

//! Columns with numbers to the right, the others and the first to the left.
[[nodiscard]] std::string text(table const& t);
[[nodiscard]] std::string html(table const& t);
//! Without the caption. Cells hold neither commas nor quotes.
[[nodiscard]] std::string csv(table const& t);

}  // namespace bench
