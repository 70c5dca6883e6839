// SPDX-License-Identifier: Apache-2.0
#include "paci/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <scape/pipeline/stage_schedule.hpp>
#include <utility>

namespace paci {
namespace {

double duration(run_result const& r) {
  std::int64_t end = 0;
  for (auto const& p : r.places) end = std::max(end, p.log.back().end);
  return 1e-9 * static_cast<double>(end);
}

double ideal_utilisation(options const& o, run_spec const& spec) {
  auto const m = static_cast<double>(spec.flush ? spec.window : o.micro_batches);
  return m / (m + o.stages - 1);
}

summary_row row_of(options const& o, run_result const& r, std::span<run_result const> results) {
  summary_row row{.spec = r.spec};
  row.seconds = duration(r);
  row.utilisation = full_seconds(o, r) / row.seconds;
  row.ideal = ideal_utilisation(o, r.spec);
  row.drift_bound =
      scape::stage_schedule(
          {.stages = o.stages, .window = r.spec.window, .micro_batches = 0, .flush = r.spec.flush})
          .drift_bound();
  for (auto const& p : r.places) {
    row.max_drift = std::max(row.max_drift, p.max_drift);
    row.activation_bytes = std::max(row.activation_bytes, p.peak_in_flight * p.slot_bytes);
    row.skipped = std::max(row.skipped, p.skipped);
  }
  if (r.validation.empty()) return row;
  if (!std::isfinite(r.validation.back().loss)) return row;
  row.loss = r.validation.back().loss;
  row.loss_spread = 0;
  if (auto const target = target_of(o, r.spec.seed, results)) {
    row.to_target = seconds_to(*target, r.validation);
  }
  return row;
}

std::optional<double> mean(std::span<summary_row const> rows,
                           std::optional<double> summary_row::*what) {
  double sum = 0;
  for (auto const& row : rows) {
    if (!(row.*what)) return std::nullopt;
    sum += *(row.*what);
  }
  return sum / static_cast<double>(rows.size());
}

summary_row mean_row(std::span<summary_row const> rows) {
  summary_row m = rows.front();
  m.seeds = std::ssize(rows);
  m.seconds = m.utilisation = 0;
  for (auto const& row : rows) {
    m.seconds += row.seconds / static_cast<double>(rows.size());
    m.utilisation += row.utilisation / static_cast<double>(rows.size());
    m.max_drift = std::max(m.max_drift, row.max_drift);
    m.activation_bytes = std::max(m.activation_bytes, row.activation_bytes);
    m.skipped = std::max(m.skipped, row.skipped);
  }
  m.loss = mean(rows, &summary_row::loss);
  m.to_target = mean(rows, &summary_row::to_target);
  if (m.loss) {
    auto const [low, high] = std::minmax_element(
        rows.begin(), rows.end(), [](auto const& a, auto const& b) { return *a.loss < *b.loss; });
    m.loss_spread = *high->loss - *low->loss;
  }
  return m;
}

std::string number(std::optional<double> value, char const* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "";
}

std::string target_name(options const& o) {
  return o.target ? fmt::format("{:g}", *o.target)
                  : "by seed, the highest last loss of flush and PACI";
}

std::optional<double> difference(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::optional(*a - *b) : std::nullopt;
}
std::optional<double> ratio(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::optional(*a / *b) : std::nullopt;
}

}  // namespace

double full_seconds(options const& o, run_result const& r) {
  double longest = 0;
  if (o.paced()) {
    for (int s = 0; s < o.stages; ++s) longest = std::max(longest, o.factor(s));
    return longest * 1e-3 * (o.forward_ms + o.backward_ms) * static_cast<double>(o.micro_batches);
  }
  for (auto const& p : r.places) {
    std::int64_t busy = 0;
    for (auto const& e : p.log) {
      if (e.action != scape::stage_action::step) busy += e.end - e.begin;
    }
    longest = std::max(longest, 1e-9 * static_cast<double>(busy));
  }
  return longest;
}

std::optional<double> seconds_to(double target, std::vector<validation_point> const& points) {
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto const& p = points[i];
    if (!(p.loss <= target)) continue;
    if (i == 0 || !(points[i - 1].loss > p.loss)) return p.seconds;
    auto const& q = points[i - 1];
    return q.seconds + (p.seconds - q.seconds) * (q.loss - target) / (q.loss - p.loss);
  }
  return std::nullopt;
}

std::optional<double> target_of(options const& o, std::uint64_t seed,
                                std::span<run_result const> results) {
  if (o.target) return o.target;
  std::optional<double> highest;
  for (auto const& r : results) {
    bool const counts = r.spec.flush || r.spec.window > 1;
    if (r.spec.seed != seed || !counts || r.validation.empty()) continue;
    auto const loss = r.validation.back().loss;
    if (std::isfinite(loss)) highest = std::max(highest.value_or(loss), loss);
  }
  return highest;
}

std::vector<summary_row> summarise(options const& o, std::span<run_result const> results) {
  std::vector<std::vector<summary_row>> groups;
  for (auto const& r : results) {
    auto const row = row_of(o, r, results);
    auto const group = std::find_if(groups.begin(), groups.end(), [&](auto const& g) {
      return g.front().spec.name() == r.spec.name();
    });
    if (group == groups.end()) {
      groups.push_back({row});
    } else {
      group->push_back(row);
    }
  }
  std::vector<summary_row> rows;
  for (auto const& group : groups) rows.push_back(mean_row(group));
  return rows;
}

std::optional<double> best_flush(std::span<summary_row const> rows,
                                 std::optional<double> summary_row::*what) {
  std::optional<double> best;
  for (auto const& row : rows) {
    if (row.spec.flush && row.*what) best = std::min(best.value_or(*(row.*what)), *(row.*what));
  }
  return best;
}

bench::table summary_table(options const& o, std::span<summary_row const> rows) {
  bool const trains = o.workload == workload_kind::gpt;
  bench::table t{
      fmt::format("{} stages, {} replicas, {} micro-batches{}", o.stages, o.replicas,
                  o.micro_batches, trains ? "; target: " + target_name(o) : ""),
      {"run", "time, s", "utilisation", "ideal", "drift", "bound", "activations, KiB", "skipped"},
      {}};
  if (trains) {
    t.columns.insert(t.columns.end(),
                     {"loss", "spread", "to best flush", "s to target", "best flush over it"});
  }
  auto const loss = best_flush(rows, &summary_row::loss);
  auto const time = best_flush(rows, &summary_row::to_target);
  for (auto const& r : rows) {
    std::vector<std::string> cells = {
        r.spec.label(),
        fmt::format("{:.2f}", r.seconds),
        fmt::format("{:.3f}", r.utilisation),
        fmt::format("{:.3f}", r.ideal),
        std::to_string(r.max_drift),
        std::to_string(r.drift_bound),
        fmt::format("{:.0f}", static_cast<double>(r.activation_bytes) / 1024),
        std::to_string(r.skipped)};
    if (trains) {
      cells.push_back(r.loss ? number(r.loss, "{:.4f}") : "diverged");
      cells.push_back(number(r.loss_spread, "{:.4f}"));
      cells.push_back(number(difference(r.loss, loss), "{:+.4f}"));
      cells.push_back(number(r.to_target, "{:.2f}"));
      cells.push_back(number(ratio(time, r.to_target), "{:.2f}x"));
    }
    t.rows.push_back(std::move(cells));
  }
  return t;
}

std::string summary_csv(options const& o, std::span<run_result const> results) {
  std::string out =
      "run,seed,window,stages,replicas,micro_batches,seconds,utilisation,ideal_utilisation,"
      "max_drift,drift_bound,activation_bytes,skipped_steps,validation_loss,seconds_to_target,"
      "weights_hash\n";
  for (auto const& result : results) {
    auto const r = row_of(o, result, results);
    fmt::format_to(std::back_inserter(out),
                   "{},{},{},{},{},{},{:.6f},{:.6f},{:.6f},{},{},{},{},{},{},{:016x}\n",
                   r.spec.name(), r.spec.seed, r.spec.window, o.stages, o.replicas, o.micro_batches,
                   r.seconds, r.utilisation, r.ideal, r.max_drift, r.drift_bound,
                   r.activation_bytes, r.skipped, number(r.loss, "{}"), number(r.to_target, "{}"),
                   result.weights_hash);
  }
  return out;
}

std::string curve_csv(run_result const& result) {
  std::string out = "micro_batches,seconds,validation_loss\n";
  for (auto const& p : result.validation) {
    fmt::format_to(std::back_inserter(out), "{},{:.6f},{}\n", p.micro_batches, p.seconds, p.loss);
  }
  return out;
}

std::string events_csv(options const& o, run_result const& result) {
  static constexpr char const* names[] = {"wait", "forward", "backward", "step"};
  std::string out =
      "replica,stage,action,micro_batch,begin_ms,end_ms,version,in_flight,drift,loss,applied\n";
  for (std::size_t i = 0; i < result.places.size(); ++i) {
    auto const stages = static_cast<std::size_t>(o.stages);
    for (auto const& e : result.places[i].log) {
      fmt::format_to(std::back_inserter(out), "{},{},{},{},{:.4f},{:.4f},{},{},{},{},{}\n",
                     i / stages, i % stages, names[static_cast<std::size_t>(e.action)],
                     e.micro_batch, 1e-6 * static_cast<double>(e.begin),
                     1e-6 * static_cast<double>(e.end), e.version, e.in_flight, e.drift, e.loss,
                     static_cast<int>(e.applied));
    }
  }
  return out;
}

}  // namespace paci
