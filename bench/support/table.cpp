// SPDX-License-Identifier: Apache-2.0
#include "table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "chart.hpp"

namespace bench {
namespace {

// A sign, a bracket or a limit may come first.
bool is_number(std::string const& cell) {
  auto const first = cell.find_first_not_of("+-(<> ");
  return first != std::string::npos && cell[first] >= '0' && cell[first] <= '9';
}

// The first column is the rows' names.
bool has_numbers(table const& t, std::size_t column) {
  return column > 0 &&
         std::ranges::any_of(t.rows, [&](auto const& row) { return is_number(row[column]); });
}

}  // namespace

std::string text(table const& t) {
  std::vector<std::size_t> widths;
  for (auto const& column : t.columns) widths.push_back(column.size());
  for (auto const& row : t.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out = t.caption + '\n';
  auto const add = [&](std::vector<std::string> const& row) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string const space(widths[i] - row[i].size(), ' ');
      line += "  " + (has_numbers(t, i) ? space + row[i] : row[i] + space);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  };
  add(t.columns);
  for (auto const& row : t.rows) add(row);
  return out;
}

std::string html(table const& t) {
  std::string out = fmt::format("<h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr>",
                                train_gpt::escape_html(t.caption));
  auto const add = [&](char const* tag, std::size_t i, std::string const& cell) {
    auto const* style = i == 0 || has_numbers(t, i) ? "" : " style=\"text-align: left\"";
    out += fmt::format("<{0}{1}>{2}</{0}>", tag, style, train_gpt::escape_html(cell));
  };
  for (std::size_t i = 0; i < t.columns.size(); ++i) add("th", i, t.columns[i]);
  out += "</tr></thead><tbody>\n";
  for (auto const& row : t.rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) add(i == 0 ? "th" : "td", i, row[i]);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string csv(table const& t) {
  std::string out;
  auto const add = [&](std::vector<std::string> const& row) {
    out += fmt::format("{}\n", fmt::join(row, ","));
  };
  add(t.columns);
  for (auto const& row : t.rows) add(row);
  return out;
}

}  // namespace bench
