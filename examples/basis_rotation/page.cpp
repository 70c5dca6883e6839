// SPDX-License-Identifier: Apache-2.0
#include "page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "chart.hpp"
#include "gpt.hpp"
#include "report.hpp"
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

chart sync_chart(std::vector<tuned<sync_result>> const& sync, method how) {
  std::vector<series> curves;
  for (auto const& [r, all] : sync) {
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
    auto const how = sync.best.run.how;
    if (std::ranges::find(shown, how) != shown.end()) continue;
    shown.push_back(how);
    charts.push_back(sync_chart(r.sync, how));
  }
  return charts;
}

}  // namespace

std::string page_html(settings const& s, results const& r) {
  auto out = fmt::format(
      "<p>A GPT of {} layers, width {}, {} heads and context {} ({} parameters) on bytes of "
      "<code>{}</code>, {} sequences a step. With P pipeline stages, the gradient of stage k comes "
      "P − k steps late.</p>\n",
      s.shape.layers, s.shape.width, s.shape.heads, s.shape.context,
      train_gpt::parameter_count(s.shape), escape_html(s.corpus.string()), s.batch);
  for (auto const& [table, note] : make_tables(s, r)) {
    out += html(table) + fmt::format("<p class=\"note\">{}</p>\n", escape_html(note));
  }
  for (auto const& c : charts_of(r)) out += figure_html(c);
  return html(train_gpt::page{.program = "basis_rotation",
                              .heading = "basis_rotation",
                              .body = std::move(out),
                              .command = s.command,
                              .machine = train_gpt::machine(),
                              .css = std::string(more_colours)});
}

}  // namespace basis_rotation
