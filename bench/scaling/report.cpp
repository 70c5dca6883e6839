// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include "chart.hpp"

namespace scaling {

table parameter_table(std::vector<parameter> const& parameters) {
  table t{"Parameters", {"parameter", "value", "basis"}, {}};
  for (auto const& p : parameters) t.rows.push_back({p.name, p.value, p.basis});
  return t;
}

std::string text(report const& r) {
  std::string out = r.title + "\n\n";
  for (auto const& note : r.notes) out += note + "\n\n";
  for (auto const& t : r.tables) out += text(t) + '\n';
  return out;
}

std::string html(report const& r, options const& o) {
  std::string out;
  for (auto const& note : r.notes) {
    out += fmt::format("<p>{}</p>\n", train_gpt::escape_html(note));
  }
  out += charts_html(r.runs);
  for (auto const& t : r.tables) out += html(t);
  return html(train_gpt::page{
      .program = "scaling", .heading = r.title, .body = std::move(out), .command = o.command});
}

}  // namespace scaling
