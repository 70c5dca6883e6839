// SPDX-License-Identifier: Apache-2.0
#include "tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

namespace basis_rotation {
namespace {

std::string_view budget_name(scape::refresh_budget b) {
  if (b == scape::refresh_budget::uniform) return "uniform";
  return b == scape::refresh_budget::inverse ? "inverse" : "stage-aware";
}

std::string_view basis_name(mask_basis b) {
  return b == mask_basis::original ? "original" : "rotated";
}

// Steps, or the last loss in brackets.
std::string steps_cell(tuned_row const& row) {
  if (auto const steps = row.steps()) return fmt::format("{:.0f}", *steps);
  double loss = 0;
  for (auto const& seed : row.seeds) {
    auto const own = seed.best.validation.back().loss;
    if (std::isnan(own)) return "diverged";
    loss = std::max(loss, own);
  }
  return fmt::format("({:.3f})", loss);
}

// Mean steps of `row` over those of `base`. A seed that did not get there takes more than `most`.
std::string ratio_cell(tuned_row const* row, tuned_row const* base, std::int64_t most) {
  if (row == nullptr || base == nullptr || base->steps().value_or(0) == 0) return "-";
  double sum = 0;
  for (auto const& seed : row->seeds) {
    sum += seed.best.steps_to_target.value_or(static_cast<double>(most));
  }
  auto const ratio = sum / static_cast<double>(row->seeds.size()) / *base->steps();
  return row->steps() ? fmt::format("{:.2f}", ratio) : fmt::format("> {:.1f}", ratio);
}

std::vector<std::int64_t> stages_of(std::vector<tuned_row> const& rows) {
  std::vector<std::int64_t> stages;
  for (auto const& row : rows) stages.push_back(row.run().stages);
  std::ranges::sort(stages);
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

std::vector<method> methods_of(std::vector<tuned_row> const& rows) {
  std::vector<method> found;
  for (auto const& row : rows) {
    if (std::ranges::find(found, row.run().how) == found.end()) found.push_back(row.run().how);
  }
  return found;
}

// One row per method, one column per number of stages.
bench::table by_stages(std::string caption, std::vector<tuned_row> const& rows,
                       std::function<std::string(tuned_row const&)> const& cell) {
  bench::table t{std::move(caption), {"method"}, {}};
  auto const stages = stages_of(rows);
  for (auto const p : stages) t.columns.push_back(fmt::format("P = {}", p));
  for (auto const how : methods_of(rows)) {
    t.rows.push_back({std::string(traits(how).label)});
    for (auto const p : stages) t.rows.back().push_back(cell(*find(rows, how, p)));
  }
  return t;
}

noted_table delay_table(settings const& s, std::vector<tuned_row> const& rows) {
  auto const stages = stages_of(rows);
  auto t =
      by_stages(fmt::format("Steps to a validation loss of {:g}, by number of stages", s.target),
                rows, steps_cell);
  t.columns.push_back("slowdown");
  auto line = t.rows.begin();
  for (auto const how : methods_of(rows)) {
    line++->push_back(
        ratio_cell(find(rows, how, stages.back()), find(rows, how, stages.front()), s.max_steps));
  }
  return {
      std::move(t),
      fmt::format("Each cell at the fastest of the learning rates; means of {} seeds. In "
                  "brackets: the highest loss after {} steps, where the target was not reached. "
                  "Slowdown: {} stages against {}.",
                  s.seeds, s.max_steps, stages.back(), stages.front())};
}

noted_table rate_table(settings const& s, std::vector<tuned_row> const& rows) {
  auto const [least, most] = std::ranges::minmax(s.learning_rates);
  return {by_stages("The fastest learning rate", rows,
                    [](tuned_row const& row) {
                      std::vector<std::string> rates;
                      for (auto const& seed : row.seeds) {
                        rates.push_back(fmt::format("{:g}", seed.best.run.lr));
                      }
                      return fmt::format("{}", fmt::join(rates, " "));
                    }),
          fmt::format(
              "Of those from {:g} to {:g}, seed by seed; that of the lowest loss where the target "
              "was not reached. Where it is one of these two, the "
              "best may lie beyond.",
              least, most)};
}

noted_table stashing_table(settings const& s, results const& r) {
  bench::table t{"Without weight stashing", {"method", "stages", "with", "without", "ratio"}, {}};
  for (auto const& row : r.stashing) {
    auto const* with = find(r.delay, row.run().how, row.run().stages);
    t.rows.push_back({std::string(traits(row.run().how).label), fmt::format("{}", row.run().stages),
                      with == nullptr ? "-" : steps_cell(*with), steps_cell(row),
                      ratio_cell(&row, with, s.max_steps)});
  }
  return {std::move(t),
          "The backward pass takes the present weights, the forward pass the stale ones."};
}

noted_table budget_table(std::vector<tuned_row> const& rows) {
  bench::table t{"The same budget of refreshes, dealt out in three ways",
                 {"method", "stages", "budget", "refreshes", "steps"},
                 {}};
  for (auto const& row : rows) {
    double refreshes = 0, steps = 0;
    for (auto const& seed : row.seeds) {
      refreshes += static_cast<double>(seed.best.refreshes);
      steps += static_cast<double>(seed.best.validation.back().step);
    }
    t.rows.push_back({std::string(traits(row.run().how).label), fmt::format("{}", row.run().stages),
                      std::string(budget_name(row.run().budget)),
                      steps == 0 ? "-" : fmt::format("{:.0f}", 1000 * refreshes / steps),
                      steps_cell(row)});
  }
  return {std::move(t),
          "Refreshes of all matrices per 1000 steps; the first bases are not counted."};
}

noted_table energy_table(std::vector<energy_result> const& energy) {
  bench::table t{"Share of the energy of M in its largest elements",
                 {"method", "1 %, original", "1 %, rotated", "10 %, original", "10 %, rotated"},
                 {}};
  for (auto const& e : energy) {
    energy_point sum;
    double count = 0;
    for (auto const& p : e.points) {
      if (2 * p.step <= e.points.back().step) continue;
      ++count;
      sum.original_1 += p.original_1;
      sum.original_10 += p.original_10;
      sum.rotated_1 += p.rotated_1;
      sum.rotated_10 += p.rotated_10;
    }
    std::vector<std::string> cells{std::string(traits(e.how).label)};
    for (auto const x : {sum.original_1, sum.rotated_1, sum.original_10, sum.rotated_10}) {
      cells.push_back(fmt::format("{:.3f}", x / count));
    }
    t.rows.push_back(std::move(cells));
  }
  return {std::move(t),
          "All rotated matrices together, mean over the validations of the second half of a run "
          "without delay."};
}

noted_table sync_table(settings const& s, std::vector<tuned<sync_result>> const& sync) {
  bench::table t{"Sparse sync with the mask in either basis",
                 {"method", "density", "mask", "loss", "difference", "learning rate"},
                 {}};
  double dense = 0;  // every method's first run
  for (auto const& [best, all] : sync) {
    auto const loss = best.validation.back().loss;
    bool const is_dense = best.run.density == 1;
    if (is_dense) dense = loss;
    t.rows.push_back({std::string(traits(best.run.how).label),
                      fmt::format("{:g}", best.run.density),
                      is_dense ? "-" : std::string(basis_name(best.run.basis)),
                      std::isnan(loss) ? "diverged" : fmt::format("{:.4f}", loss),
                      std::isnan(loss - dense) ? "-" : fmt::format("{:+.4f}", loss - dense),
                      fmt::format("{:g}", best.run.lr)});
  }
  return {
      std::move(t),
      fmt::format("Validation loss after {} steps on {} ranks at the best of {} learning rates, "
                  "one seed; and the difference to the same method with density 1. What is not "
                  "sent counts as a gradient of 0.",
                  s.sync_steps, s.ranks, s.sync_learning_rates.size())};
}

// Calls f(part, result) for every training to the target.
template <class F>
void for_each_run(results const& r, F const& f) {
  auto const all = [&](char const* part, std::vector<tuned_row> const& rows) {
    for (auto const& row : rows) {
      for (auto const& seed : row.seeds) {
        for (auto const& result : seed.all) f(part, result);
      }
    }
  };
  all("delay", r.delay);
  all("stashing", r.stashing);
  all("budget", r.budget);
}

std::string key(char const* part, delayed_run const& run) {
  return fmt::format("{},{},{},{},{},{},{:g},{}", part, traits(run.how).name, run.stages,
                     run.stashing ? 1 : 0, budget_name(run.budget), run.interval, run.lr, run.seed);
}

constexpr std::string_view key_header = "part,method,stages,stashing,budget,interval,lr,seed";

}  // namespace

std::vector<noted_table> make_tables(settings const& s, results const& r) {
  std::vector<noted_table> tables;
  if (!r.delay.empty()) {
    tables.push_back(delay_table(s, r.delay));
    tables.push_back(rate_table(s, r.delay));
  }
  if (!r.stashing.empty()) tables.push_back(stashing_table(s, r));
  if (!r.budget.empty()) tables.push_back(budget_table(r.budget));
  if (!r.energy.empty()) tables.push_back(energy_table(r.energy));
  if (!r.sync.empty()) tables.push_back(sync_table(s, r.sync));
  return tables;
}

std::string runs_csv(results const& r) {
  auto out =
      fmt::format("{},steps_to_target,steps,validation_loss,refreshes,seconds\n", key_header);
  for_each_run(r, [&](char const* part, delayed_result const& result) {
    fmt::format_to(
        std::back_inserter(out), "{},{},{},{:.5f},{},{:.2f}\n", key(part, result.run),
        result.steps_to_target ? fmt::format("{:.1f}", *result.steps_to_target) : std::string(),
        result.validation.back().step, result.validation.back().loss, result.refreshes,
        result.seconds);
  });
  return out;
}

std::string curves_csv(results const& r) {
  auto out = fmt::format("{},step,validation_loss\n", key_header);
  for_each_run(r, [&](char const* part, delayed_result const& result) {
    for (auto const& p : result.validation) {
      fmt::format_to(std::back_inserter(out), "{},{},{:.5f}\n", key(part, result.run), p.step,
                     p.loss);
    }
  });
  return out;
}

std::string energy_csv(results const& r) {
  std::string out = "method,step,original_1,original_10,rotated_1,rotated_10\n";
  for (auto const& e : r.energy) {
    for (auto const& p : e.points) {
      fmt::format_to(std::back_inserter(out), "{},{},{:.5f},{:.5f},{:.5f},{:.5f}\n",
                     traits(e.how).name, p.step, p.original_1, p.original_10, p.rotated_1,
                     p.rotated_10);
    }
  }
  return out;
}

std::string sync_csv(results const& r) {
  std::string out = "method,density,mask,lr,seed,step,validation_loss\n";
  for (auto const& row : r.sync) {
    for (auto const& [run, validation] : row.all) {
      for (auto const& p : validation) {
        fmt::format_to(std::back_inserter(out), "{},{:g},{},{:g},{},{},{:.5f}\n",
                       traits(run.how).name, run.density, basis_name(run.basis), run.lr, run.seed,
                       p.step, p.loss);
      }
    }
  }
  return out;
}

}  // namespace basis_rotation
