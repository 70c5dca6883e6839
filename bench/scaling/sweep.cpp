// SPDX-License-Identifier: Apache-2.0
#include "sweep.hpp"

#include <fmt/format.h>

#include <utility>

#include "chart.hpp"

namespace scaling {
namespace {

constexpr std::pair<char const*, double scape::step_prediction::*> phases[] = {
    {"compute", &scape::step_prediction::compute},
    {"pack", &scape::step_prediction::pack},
    {"control", &scape::step_prediction::control},
    {"reduce_scatter", &scape::step_prediction::reduce_scatter},
    {"rebuild", &scape::step_prediction::rebuild},
    {"all_gather", &scape::step_prediction::all_gather},
    {"scatter", &scape::step_prediction::scatter},
    {"select", &scape::step_prediction::select},
    {"mask", &scape::step_prediction::mask}};

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }

// f(run, its index, its step, the step of as many ranks of the dense run) for all steps.
template <class F>
void for_each_step(std::vector<run> const& runs, F const& f) {
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (std::size_t i = 0; i < runs[r].steps.size(); ++i) {
      f(runs[r], r, runs[r].steps[i], runs[0].steps[i]);
    }
  }
}

}  // namespace

std::vector<int> rank_counts(int from, int to) {
  std::vector<int> ranks;
  for (int p = from; p < to; p *= 2) ranks.push_back(p);
  ranks.push_back(to);
  return ranks;
}

std::vector<run> sweep(options const& o, std::vector<int> const& ranks) {
  scape::cost_model const one(o.cost);
  std::vector<run> runs{{"dense", {}}};
  for (int const p : ranks) runs[0].steps.push_back(one.strong_scaled(1, p).dense(o.elements, p));
  for (double const density : o.densities) {
    run sparse{fmt::format("SCAPE {:.6g} %", 100 * (1 - density)), {}};
    for (int const p : ranks) {
      sparse.steps.push_back(one.strong_scaled(1, p).sparse(o.elements, p, density));
    }
    runs.push_back(std::move(sparse));
  }
  return runs;
}

table step_table(std::vector<run> const& runs) {
  table t{"Model of a step; efficiency against the first row of the same run",
          {"run", "ranks", "step, ms", "efficiency", "over dense", "not compute", "MB received"},
          {}};
  for_each_step(runs, [&](run const& r, std::size_t, auto const& step, auto const& dense) {
    t.rows.push_back({r.label, std::to_string(step.ranks), milliseconds(step.total()),
                      fmt::format("{:.2f} %", 100 * scape::scaling_efficiency(r.steps[0], step)),
                      fmt::format("{:.2f}x", scape::speedup(dense, step)),
                      fmt::format("{:.1f} %", 100 * step.sync_share()),
                      fmt::format("{:.1f}", 1e-6 * static_cast<double>(step.bytes.total()))});
  });
  return t;
}

table phase_table(std::vector<run> const& runs) {
  table t{fmt::format("Model of the phases of a step on {} ranks, in ms; mask: what compute does "
                      "not hide",
                      runs[0].steps.back().ranks),
          {"run"},
          {}};
  for (auto const& [name, member] : phases) t.columns.push_back(name);
  for (auto const& r : runs) {
    t.rows.push_back({r.label});
    for (auto const& [name, member] : phases) {
      t.rows.back().push_back(milliseconds(r.steps.back().*member));
    }
  }
  return t;
}

table raw_table(std::vector<run> const& runs) {
  table t{"", {"run", "density", "ranks"}, {}};
  for (auto const& [name, member] : phases) t.columns.push_back(std::string(name) + "_s");
  for (auto const* name : {"total_s", "efficiency", "speedup", "value_bytes", "parameter_bytes",
                           "mask_bytes", "control_bytes"}) {
    t.columns.emplace_back(name);
  }
  for_each_step(runs, [&](run const& r, std::size_t, auto const& step, auto const& dense) {
    t.rows.push_back({r.label, fmt::format("{:.9g}", step.density), std::to_string(step.ranks)});
    auto& row = t.rows.back();
    for (auto const& [name, member] : phases) row.push_back(fmt::format("{:.9g}", step.*member));
    for (double const value :
         {step.total(), scape::scaling_efficiency(r.steps[0], step), scape::speedup(dense, step)}) {
      row.push_back(fmt::format("{:.9g}", value));
    }
    for (auto const bytes :
         {step.bytes.values, step.bytes.parameters, step.bytes.mask, step.bytes.control}) {
      row.push_back(std::to_string(bytes));
    }
  });
  return t;
}

std::string charts_html(std::vector<run> const& runs) {
  train_gpt::chart efficiency{
      "Predicted strong-scaling efficiency",
      "ranks, log scale",
      "percent",
      fmt::format("A model. Each run against its own step on {} ranks; the global batch stays.",
                  runs[0].steps[0].ranks),
      true,
      {},
      std::nullopt};
  train_gpt::chart speedup{"Predicted speedup over dense",
                           "ranks, log scale",
                           "times faster",
                           "A model. Below 1 the dense optimizer is the faster one.",
                           true,
                           {},
                           std::nullopt};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    efficiency.curves.push_back({runs[i].label, i, {}, {}});
    if (i > 0) speedup.curves.push_back({runs[i].label, i, {}, {}});
  }
  for_each_step(runs, [&](run const& r, std::size_t index, auto const& step, auto const& dense) {
    double const ranks = step.ranks;
    efficiency.curves[index].line.push_back(
        {ranks, 100 * scape::scaling_efficiency(r.steps[0], step)});
    if (index > 0) speedup.curves[index - 1].line.push_back({ranks, scape::speedup(dense, step)});
  });
  for (auto* c : {&efficiency, &speedup}) {
    for (auto& curve : c->curves) curve.dots = curve.line;
  }
  return train_gpt::figure_html(efficiency) +
         (speedup.curves.empty() ? "" : train_gpt::figure_html(speedup));
}

}  // namespace scaling
