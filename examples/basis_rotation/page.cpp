// SPDX-License-Identifier: Apache-2.0
#include "page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "chart.hpp"
#include "gpt.hpp"
#include "report_style.hpp"
#include "tables.hpp"

namespace basis_rotation {
namespace {

using train_gpt::chart;
using train_gpt::escape_html;
using train_gpt::series;

// The report's style has five colours; there are seven methods.
constexpr std::string_view more_colours = R"css(
:root { --series-5: #a16207; --series-6: #be123c; }
@media (prefers-color-scheme: dark) { :root { --series-5: #e0b050; --series-6: #ff7d92; } }
)css";
constexpr std::size_t colours = 7;

series curve_of(std::string label, std::size_t colour, std::vector<loss_point> const& points) {
  series curve{std::move(label), colour, {}, {}};
  for (auto const& p : points) curve.line.push_back({static_cast<double>(p.step), p.loss});
  return curve;
}

std::size_t colour_of(method how) { return static_cast<std::size_t>(how) % colours; }

chart loss_chart(std::string title, std::string note, std::vector<series> curves) {
  return {std::move(title),  "step",      "nats per byte", std::move(note), false,
          std::move(curves), std::nullopt};
}

chart chart_of_stages(std::vector<tuned_row> const& rows, std::int64_t stages) {
  std::vector<series> curves;
  for (auto const& row : rows) {
    if (row.run().stages != stages) continue;
    curves.push_back(curve_of(std::string(traits(row.run().how).label), colour_of(row.run().how),
                              row.seeds.front().best.validation));
  }
  return loss_chart(fmt::format("Loss by step, P = {}", stages),
                    "Validation loss at each method's fastest learning rate, until the target.",
                    std::move(curves));
}

chart slowdown_chart(std::vector<tuned_row> const& rows) {
  std::vector<series> curves;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    series curve{std::string(methods[i].label), i, {}, {}};
    std::optional<double> base;
    for (auto const& row : rows) {
      auto const steps = row.steps();
      if (row.run().how != static_cast<method>(i)) continue;
      if (!steps) break;
      if (!base) base = steps;
      train_gpt::point const p{static_cast<double>(row.run().stages), *steps / *base};
      curve.line.push_back(p);
      curve.dots.push_back(p);
    }
    if (!curve.line.empty()) curves.push_back(std::move(curve));
  }
  return {"Slowdown by number of stages",
          "stages, log scale",
          "steps to the target, over those of the fewest stages",
          "A line ends where the target was not reached.",
          true,
          std::move(curves),
          std::nullopt};
}

chart budget_chart(std::vector<tuned_row> const& rows) {
  std::vector<series> curves;
  for (auto const& row : rows) {
    if (row.run().how != rows.front().run().how) continue;
    auto const budget = static_cast<std::size_t>(row.run().budget);
    static constexpr char const* names[] = {"uniform", "stage-aware", "inverse"};
    curves.push_back(curve_of(names[budget], budget + 1, row.seeds.front().best.validation));
  }
  return loss_chart("Loss by step at the same budget of refreshes",
                    std::string(traits(rows.front().run().how).label), std::move(curves));
}

chart energy_chart(energy_result const& e) {
  series parts[] = {{"1 %, original", 1, {}, {}},
                    {"1 %, rotated", 2, {}, {}},
                    {"10 %, original", 3, {}, {}},
                    {"10 %, rotated", 4, {}, {}}};
  for (auto const& p : e.points) {
    double const values[] = {p.original_1, p.rotated_1, p.original_10, p.rotated_10};
    for (std::size_t i = 0; i < 4; ++i) {
      parts[i].line.push_back({static_cast<double>(p.step), values[i]});
    }
  }
  return {fmt::format("Energy of M in its largest elements: {}", traits(e.how).label),
          "step",
          "share",
          "",
          false,
          {parts, parts + 4},
          std::nullopt};
}

chart sync_chart(std::vector<sync_result> const& sync, method how) {
  std::vector<series> curves;
  for (auto const& r : sync) {
    if (r.run.how != how) continue;
    auto const label =
        r.run.density == 1
            ? std::string("dense")
            : fmt::format("density {:g}, mask {}", r.run.density,
                          r.run.basis == mask_basis::original ? "original" : "rotated");
    curves.push_back(curve_of(label, curves.size(), r.validation));
  }
  return loss_chart(fmt::format("Sparse sync: {}", traits(how).label), "", std::move(curves));
}

std::string table_html(table const& t) {
  auto out =
      fmt::format("<h2>{}</h2>\n<div class=\"scroll\"><table><thead><tr>", escape_html(t.title));
  for (auto const& name : t.header) out += fmt::format("<th>{}</th>", escape_html(name));
  out += "</tr></thead><tbody>\n";
  for (auto const& row : t.rows) {
    out += fmt::format("<tr><th scope=row>{}</th>", escape_html(row[0]));
    for (std::size_t i = 1; i < row.size(); ++i) {
      out += fmt::format("<td>{}</td>", escape_html(row[i]));
    }
    out += "</tr>\n";
  }
  return out +
         fmt::format("</tbody></table></div>\n<p class=\"note\">{}</p>\n", escape_html(t.note));
}

std::vector<chart> charts_of(results const& r) {
  std::vector<chart> charts;
  if (!r.delay.empty()) {
    charts.push_back(slowdown_chart(r.delay));
    charts.push_back(chart_of_stages(r.delay, r.delay.front().run().stages));
    charts.push_back(chart_of_stages(r.delay, r.delay.back().run().stages));
  }
  if (!r.budget.empty()) charts.push_back(budget_chart(r.budget));
  if (!r.energy.empty()) charts.push_back(energy_chart(r.energy.back()));
  std::vector<method> shown;
  for (auto const& sync : r.sync) {
    if (std::ranges::find(shown, sync.run.how) != shown.end()) continue;
    shown.push_back(sync.run.how);
    charts.push_back(sync_chart(r.sync, sync.run.how));
  }
  return charts;
}

}  // namespace

std::string page_html(settings const& s, results const& r) {
  auto out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>scape: basis_rotation</title>"
      "<style>{}{}</style></head><body>\n<h1>basis_rotation</h1>\n",
      train_gpt::report_css, more_colours);
  out += fmt::format(
      "<p>A GPT of {} layers, width {}, {} heads and context {} ({} parameters) on bytes of "
      "<code>{}</code>, {} sequences a step. With P pipeline stages, the gradient of stage k comes "
      "P − k steps late.</p>\n",
      s.shape.layers, s.shape.width, s.shape.heads, s.shape.context,
      train_gpt::parameter_count(s.shape), escape_html(s.corpus.string()), s.batch);
  for (auto const& t : make_tables(s, r)) out += table_html(t);
  for (auto const& c : charts_of(r)) out += figure_html(c);
  out +=
      fmt::format("<h2>How it was made</h2>\n<pre>{}</pre>\n<script>{}</script>\n</body></html>\n",
                  escape_html(s.command), train_gpt::report_script);
  return out;
}

}  // namespace basis_rotation
