// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "chart.hpp"
#include "gpt.hpp"
#include "summary.hpp"

namespace train_gpt {
namespace {

constexpr std::size_t curve_points = 400;

// The first run of every name; further seeds are in the table and the CSV files.
std::vector<run_result const*> shown_runs(std::span<run_result const> results) {
  std::vector<run_result const*> shown;
  for (auto const& r : results) {
    if (r.spec.seed == results[0].spec.seed && !r.steps.empty()) shown.push_back(&r);
  }
  return shown;
}

struct loss_curves {
  std::vector<series> by_step, by_bytes;
  double limit = 0;  // no curve is above it once a tenth of its steps are done
};

loss_curves make_loss_curves(std::vector<run_result const*> const& runs) {
  loss_curves curves;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const& steps = runs[i]->steps;
    std::vector<double> losses;
    for (auto const& s : steps) losses.push_back(s.loss);
    losses = smooth(losses);
    series by_step{runs[i]->spec.label, i, {}, {}}, by_bytes = by_step;
    double bytes = 0;
    auto validation = runs[i]->validation.begin();
    for (std::size_t t = 0; t < steps.size(); ++t) {
      auto const step = static_cast<double>(steps[t].step);
      bytes += static_cast<double>(steps[t].bytes());
      by_step.line.push_back({step, losses[t]});
      if (bytes > 0) by_bytes.line.push_back({bytes, losses[t]});
      if (validation != runs[i]->validation.end() && validation->step == steps[t].step) {
        by_step.dots.push_back({step, validation->loss});
        if (bytes > 0) by_bytes.dots.push_back({bytes, validation->loss});
        ++validation;
      }
      if (10 * (t + 1) >= steps.size()) curves.limit = std::max(curves.limit, losses[t]);
    }
    by_step.line = thin(by_step.line, curve_points);
    by_bytes.line = thin(by_bytes.line, curve_points);
    curves.by_step.push_back(std::move(by_step));
    curves.by_bytes.push_back(std::move(by_bytes));
  }
  return curves;
}

// One curve per sparse run, from the second step on: the first has no mask before it.
std::vector<series> curves_of(std::vector<run_result const*> const& runs,
                              double step_record::*member, bool smoothed) {
  std::vector<series> curves;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i]->spec.sparse) continue;
    std::vector<double> values;
    for (auto const& s : runs[i]->steps) values.push_back(s.*member);
    if (smoothed) values = smooth(values);
    series curve{runs[i]->spec.label, i, {}, {}};
    for (std::size_t t = 1; t < values.size(); ++t) {
      curve.line.push_back({static_cast<double>(runs[i]->steps[t].step), values[t]});
    }
    curve.line = thin(curve.line, curve_points);
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::string charts_html(std::vector<run_result const*> const& runs) {
  auto const losses = make_loss_curves(runs);
  bool const several_ranks = std::any_of(
      runs.begin(), runs.end(), [](run_result const* r) { return r->steps.back().bytes() > 0; });
  std::string out = figure_html({"Loss by step", "step", "nats per byte",
                                 "Line: training loss, smoothed. Dots: loss on held-out text.",
                                 false, losses.by_step, losses.limit});
  if (several_ranks) {
    out += figure_html({"Loss by bytes received", "bytes received by one rank, log scale",
                        "nats per byte", "The same curves over what each rank had to receive.",
                        true, losses.by_bytes, losses.limit});
  }
  auto overlap = curves_of(runs, &step_record::mask_overlap, false);
  if (overlap.empty()) return out;
  out += figure_html({"Mask overlap", "step", "share of the mask",
                      "How much of each mask was in the previous one. 1-D tensors are in all "
                      "masks. Among the rest the staleness-aware statistic goes round, so that "
                      "successive masks share little else.",
                      false, std::move(overlap), std::nullopt});
  out += figure_html({"Residual norm", "step", "norm on rank 0",
                      "What rank 0 has accumulated and not yet sent. It should stay bounded.",
                      false, curves_of(runs, &step_record::residual_norm, true), std::nullopt});
  return out;
}

std::string cell(std::optional<double> value, char const* format) {
  return fmt::format("<td>{}</td>", value ? fmt::format(fmt::runtime(format), *value) : "–");
}

std::string table_html(std::vector<summary_row> const& rows) {
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th rowspan=2>run</th><th rowspan=2>validation<br>"
      "loss</th><th rowspan=2>against<br>dense</th><th colspan=4>bytes per step, rank 0</th>"
      "<th colspan=2>of dense</th><th rowspan=2>ms per<br>step</th></tr>"
      "<tr><th>values</th><th>parameters</th><th>mask</th><th>all</th><th>mean</th><th>at the end"
      "</th></tr></thead><tbody>\n";
  for (auto const& r : rows) {
    out += fmt::format("<tr><th scope=row>{}{}</th>", escape_html(r.label),
                       r.finished ? "" : " <em>(interrupted)</em>");
    out += cell(r.validation, "{:.4f}") + cell(r.difference, "{:+.4f}") + cell(r.values, "{:.0f}") +
           cell(r.parameters, "{:.0f}") + cell(r.mask, "{:.0f}") + cell(r.bytes(), "{:.0f}") +
           cell(r.ratio, "{:.3f}") + cell(r.final_ratio, "{:.3f}") +
           cell(r.step_milliseconds(), "{:.2f}") + "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  if (!rows.empty() && rows[0].seeds > 1) {
    out += fmt::format("<p class=\"note\">Means of {} seeds; the curves show the first.</p>",
                       rows[0].seeds);
  }
  return out;
}

std::string phases_html(std::vector<summary_row> const& rows, comm_kind comm) {
  std::string out =
      "<h2>Time of a step on rank 0, in milliseconds</h2><div class=\"scroll\"><table><thead><tr>"
      "<th>run</th>";
  auto const phases = measured_phases(rows);
  for (auto const i : phases) out += fmt::format("<th>{}</th>", phase_names[i]);
  out += "</tr></thead><tbody>\n";
  for (auto const& r : rows) {
    out += fmt::format("<tr><th scope=row>{}</th>", escape_html(r.label));
    for (auto const i : phases) out += cell(r.milliseconds[i], "{:.3f}");
    out += "</tr>\n";
  }
  out +=
      "</tbody></table></div>\n<p class=\"note\">“ranks” is the wait for slower ranks after the "
      "gradient. “device” is a whole step on a GPU, with the copies to it and back.";
  if (comm == comm_kind::threads) {
    out += " All ranks share this machine's cores, so these times say nothing about a network.";
  }
  return out + "</p>\n";
}

}  // namespace

std::string machine() {
  std::string cpu = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  utsname system{};
  uname(&system);
  return fmt::format("{}, {} hardware threads, {} {} {}, compiler {}", cpu,
                     std::thread::hardware_concurrency(), system.sysname, system.release,
                     system.machine, __VERSION__);
}

std::string report_html(options const& o, std::span<run_result const> results) {
  auto const rows = summarise(results);
  auto const runs = shown_runs(results);
  auto out = fmt::format(
      "<p>A GPT of {} layers, width {}, {} heads and context {} ({} parameters) on bytes of "
      "<code>{}</code>; {} ranks with {} sequences each, {} steps. 1-D tensors are sent "
      "in every step; the stated sparsity is that of the others.</p>\n",
      o.shape.layers, o.shape.width, o.shape.heads, o.shape.context, parameter_count(o.shape),
      escape_html(o.corpus.string()), o.ranks, o.batch, o.steps);
  out += table_html(rows);
  if (!runs.empty()) out += charts_html(runs);
  out += phases_html(rows, o.comm);
  return html({.program = "train_gpt",
               .heading = "train_gpt",
               .body = std::move(out),
               .command = o.command,
               .machine = machine()});
}

}  // namespace train_gpt
