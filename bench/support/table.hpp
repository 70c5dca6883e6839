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

//! Numbers to the right, words to the left; at least one row.
[[nodiscard]] std::string text(table const& t);
[[nodiscard]] std::string html(table const& t);
//! Without the caption. Cells hold neither commas nor quotes.
[[nodiscard]] std::string csv(table const& t);

}  // namespace bench
