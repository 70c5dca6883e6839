// SPDX-License-Identifier: Apache-2.0
#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace train_gpt {
namespace {

std::optional<double> last_validation(run_result const& r) {
  if (r.validation.empty() || !std::isfinite(r.validation.back().loss)) return std::nullopt;
  return r.validation.back().loss;
}

run_result const* dense_twin(run_result const& of, std::span<run_result const> results) {
  auto const found = std::find_if(results.begin(), results.end(), [&](run_result const& r) {
    return !r.spec.sparse && r.spec.rule == of.spec.rule && r.spec.seed == of.spec.seed &&
           r.steps.size() == of.steps.size();
  });
  return found == results.end() ? nullptr : &*found;
}

// The row of a single run. A run that has taken no step has no numbers.
summary_row row_of(run_result const& r, std::span<run_result const> results) {
  summary_row row{.label = r.spec.label, .seeds = 1, .finished = r.finished};
  row.validation = last_validation(r);
  if (r.steps.empty()) return row;
  auto const steps = static_cast<double>(r.steps.size());
  for (auto const& s : r.steps) {
    row.values += static_cast<double>(s.value_bytes);
    row.parameters += static_cast<double>(s.parameter_bytes);
    row.mask += static_cast<double>(s.mask_bytes);
    row.control += static_cast<double>(s.control_bytes);
  }
  for (auto* bytes : {&row.values, &row.parameters, &row.mask, &row.control}) *bytes /= steps;
  for (std::size_t i = 0; i < row.milliseconds.size(); ++i) {
    row.milliseconds[i] = r.milliseconds[i] / steps;
  }
  auto const* dense = dense_twin(r, results);
  if (dense == nullptr) return row;
  if (r.spec.sparse && row.validation && last_validation(*dense)) {
    row.difference = *row.validation - *last_validation(*dense);
  }
  auto const total = [](run_result const& run) {
    double bytes = 0;
    for (auto const& s : run.steps) bytes += static_cast<double>(s.bytes());
    return bytes;
  };
  if (double const dense_total = total(*dense); dense_total > 0) {
    row.ratio = total(r) / dense_total;
    row.final_ratio = static_cast<double>(r.steps.back().bytes()) /
                      static_cast<double>(dense->steps.back().bytes());
  }
  return row;
}

std::optional<double> mean(std::span<summary_row const> rows,
                           std::optional<double> summary_row::*member) {
  double sum = 0;
  for (auto const& row : rows) {
    if (!(row.*member)) return std::nullopt;
    sum += *(row.*member);
  }
  return sum / static_cast<double>(rows.size());
}

double mean(std::span<summary_row const> rows, double summary_row::*member) {
  double sum = 0;
  for (auto const& row : rows) sum += row.*member;
  return sum / static_cast<double>(rows.size());
}

summary_row mean_row(std::span<summary_row const> rows) {
  summary_row m{.label = rows[0].label, .seeds = std::ssize(rows)};
  m.validation = mean(rows, &summary_row::validation);
  m.difference = mean(rows, &summary_row::difference);
  m.values = mean(rows, &summary_row::values);
  m.parameters = mean(rows, &summary_row::parameters);
  m.mask = mean(rows, &summary_row::mask);
  m.control = mean(rows, &summary_row::control);
  m.ratio = mean(rows, &summary_row::ratio);
  m.final_ratio = mean(rows, &summary_row::final_ratio);
  for (auto const& row : rows) {
    m.finished = m.finished && row.finished;
    for (std::size_t i = 0; i < m.milliseconds.size(); ++i) {
      m.milliseconds[i] += row.milliseconds[i] / static_cast<double>(rows.size());
    }
  }
  if (m.validation) {
    auto const [low, high] = std::minmax_element(
        rows.begin(), rows.end(),
        [](auto const& a, auto const& b) { return *a.validation < *b.validation; });
    m.validation_spread = *high->validation - *low->validation;
  }
  return m;
}

std::string optional_text(std::optional<double> value, char const* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

}  // namespace

double summary_row::step_milliseconds() const noexcept {
  return std::accumulate(milliseconds.begin(), milliseconds.end(), 0.0);
}

std::vector<summary_row> summarise(std::span<run_result const> results) {
  std::vector<std::string> names;
  std::vector<std::vector<summary_row>> groups;
  for (auto const& r : results) {
    auto const found = std::find(names.begin(), names.end(), r.spec.name);
    auto const at = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(r.spec.name);
      groups.emplace_back();
    }
    groups[at].push_back(row_of(r, results));
  }
  std::vector<summary_row> rows;
  for (auto const& group : groups) rows.push_back(mean_row(group));
  return rows;
}

std::vector<std::size_t> measured_phases(std::span<summary_row const> rows) {
  std::vector<std::size_t> measured;
  for (std::size_t i = 0; i < phase_names.size(); ++i) {
    if (std::any_of(rows.begin(), rows.end(),
                    [&](summary_row const& row) { return row.milliseconds[i] > 0; })) {
      measured.push_back(i);
    }
  }
  return measured;
}

std::string text_table(std::span<summary_row const> rows) {
  std::string out;
  auto const to = std::back_inserter(out);
  fmt::format_to(to, "{:<26} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}\n", "run", "val. loss",
                 "vs dense", "values", "param.", "mask", "bytes", "of dense", "at end");
  for (auto const& r : rows) {
    fmt::format_to(to, "{:<26} {:>9} {:>9} {:>9.0f} {:>9.0f} {:>9.0f} {:>9.0f} {:>8} {:>8}{}\n",
                   r.label, optional_text(r.validation, "{:.4f}"),
                   optional_text(r.difference, "{:+.4f}"), r.values, r.parameters, r.mask,
                   r.bytes(), optional_text(r.ratio, "{:.3f}"),
                   optional_text(r.final_ratio, "{:.3f}"), r.finished ? "" : "  interrupted");
  }
  fmt::format_to(to, "Bytes are received by rank 0, mean per step");
  if (!rows.empty() && rows[0].seeds > 1) {
    double spread = 0;
    for (auto const& r : rows) spread = std::max(spread, r.validation_spread);
    fmt::format_to(to, "; means of {} seeds, whose losses differ by up to {:.4f}", rows[0].seeds,
                   spread);
  }
  fmt::format_to(to, ".\n\n{:<26} {:>8}", "ms per step", "all");
  auto const phases = measured_phases(rows);
  for (auto const i : phases) fmt::format_to(to, "  {:>7}", phase_names[i]);
  out += '\n';
  for (auto const& r : rows) {
    fmt::format_to(to, "{:<26} {:>8.2f}", r.label, r.step_milliseconds());
    for (auto const i : phases) {
      fmt::format_to(to, "  {:>{}.3f}", r.milliseconds[i],
                     std::max<std::size_t>(7, phase_names[i].size()));
    }
    out += '\n';
  }
  return out;
}

std::string summary_csv(std::span<run_result const> results) {
  std::string out =
      "run,seed,status,steps,validation_loss,difference_to_dense,bytes_values,"
      "bytes_parameters,bytes_mask,bytes_control,ratio_to_dense,final_ratio_to_dense";
  auto const to = std::back_inserter(out);
  for (std::string_view const phase : phase_names) {
    std::string name(phase);
    std::replace(name.begin(), name.end(), ' ', '_');
    std::replace(name.begin(), name.end(), '-', '_');
    fmt::format_to(to, ",ms_{}", name);
  }
  out += ",weights_hash\n";
  for (auto const& r : results) {
    auto const row = row_of(r, results);
    auto const number = [](std::optional<double> v) { return v ? fmt::format("{}", *v) : ""; };
    fmt::format_to(to, "{},{},{},{},{},{},{},{},{},{},{},{}", r.spec.name, r.spec.seed,
                   r.finished ? "finished" : "interrupted", r.steps.size(), number(row.validation),
                   number(row.difference), row.values, row.parameters, row.mask, row.control,
                   number(row.ratio), number(row.final_ratio));
    for (double const ms : row.milliseconds) fmt::format_to(to, ",{:.4f}", ms);
    fmt::format_to(to, ",{:016x}\n", r.weights_hash);
  }
  return out;
}

std::string steps_csv(run_result const& result) {
  std::string out =
      "step,loss,validation_loss,lr,density,bytes_values,bytes_parameters,bytes_mask,"
      "bytes_control,mask_overlap,residual_norm,gradient_norm,skipped\n";
  auto const to = std::back_inserter(out);
  auto validation = result.validation.begin();
  for (auto const& s : result.steps) {
    std::string validation_loss;
    if (validation != result.validation.end() && validation->step == s.step) {
      validation_loss = fmt::format("{}", (validation++)->loss);
    }
    fmt::format_to(to, "{},{},{},{},{},{},{},{},{},{},{},{},{}\n", s.step, s.loss, validation_loss,
                   s.lr, s.density, s.value_bytes, s.parameter_bytes, s.mask_bytes, s.control_bytes,
                   s.mask_overlap, s.residual_norm, s.gradient_norm, static_cast<int>(s.skipped));
  }
  return out;
}

}  // namespace train_gpt
