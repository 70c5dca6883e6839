// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include "chart.hpp"
#include "report_style.hpp"

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
  auto out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>scape: scaling</title>"
      "<style>{}</style></head><body>\n<h1>{}</h1>\n",
      train_gpt::report_css, train_gpt::escape_html(r.title));
  for (auto const& note : r.notes) {
    out += fmt::format("<p>{}</p>\n", train_gpt::escape_html(note));
  }
  out += charts_html(r.runs);
  for (auto const& t : r.tables) out += html(t);
  return out + fmt::format(
                   "<h2>How it was made</h2>\n<pre>{}</pre>\n<script>{}</script>\n"
                   "</body></html>\n",
                   train_gpt::escape_html(o.command), train_gpt::report_script);
}

}  // namespace scaling
