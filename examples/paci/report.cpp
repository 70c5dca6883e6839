// SPDX-License-Identifier: Apache-2.0
#include "paci/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "paci/place.hpp"
#include "paci/summary.hpp"
#include "paci/timeline.hpp"
#include "train_gpt/chart.hpp"
#include "train_gpt/gpt.hpp"
#include "train_gpt/report.hpp"

namespace paci {
namespace {

constexpr std::size_t curve_points = 400;
constexpr std::size_t colours = 5;  // of the style sheet

// The first seed's runs; further ones are in the table and the CSV files.
std::vector<run_result const*> shown_runs(std::span<run_result const> results) {
  std::vector<run_result const*> shown;
  for (auto const& r : results) {
    if (r.spec.seed == results[0].spec.seed) shown.push_back(&r);
  }
  return shown;
}

std::string charts_html(options const& o, std::vector<run_result const*> const& runs) {
  std::vector<train_gpt::series> by_micro_batch, by_time;
  double limit = 0;  // no curve is above it once a tenth of its steps are done
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<double> losses, times;
    for (auto const& e : runs[i]->places[number_of({o.stages - 1, 0}, o.stages)].log) {
      if (e.action != scape::stage_action::forward) continue;
      losses.push_back(e.loss);
      times.push_back(1e-9 * static_cast<double>(e.end));
    }
    losses = train_gpt::smooth(losses);
    train_gpt::series first{runs[i]->spec.label(), i % colours, {}, {}}, second = first;
    for (std::size_t k = 0; k < losses.size(); ++k) {
      first.line.push_back({static_cast<double>(k + 1), losses[k]});
      second.line.push_back({times[k], losses[k]});
      if (10 * (k + 1) >= losses.size()) limit = std::max(limit, losses[k]);
    }
    for (auto const& p : runs[i]->validation) {
      first.dots.push_back({static_cast<double>(p.micro_batches), p.loss});
      second.dots.push_back({p.seconds, p.loss});
    }
    for (auto* s : {&first, &second}) s->line = train_gpt::thin(s->line, curve_points);
    by_micro_batch.push_back(std::move(first));
    by_time.push_back(std::move(second));
  }
  auto const* const note = "Line: training loss, smoothed. Dots: loss on held-out text.";
  return figure_html(train_gpt::chart{"Loss by time", "seconds", "nats per byte", note, false,
                                      std::move(by_time), limit}) +
         figure_html(train_gpt::chart{"Loss by micro-batch", "micro-batch", "nats per byte", note,
                                      false, std::move(by_micro_batch), limit});
}

// The time in which stages without bubbles would do two windows of the flush, and fill once.
double shown_seconds(options const& o, std::vector<run_result const*> const& runs) {
  std::int64_t passes = 2 * o.stages;
  for (auto const* r : runs) {
    if (r->spec.flush) passes = std::max(passes, 2 * (r->spec.window + o.stages - 1));
  }
  auto const share = static_cast<double>(passes) / static_cast<double>(o.micro_batches);
  double seconds = 0;
  for (auto const* r : runs) seconds = std::max(seconds, share * full_seconds(o, *r));
  return seconds;
}

std::string timelines_html(options const& o, std::vector<run_result const*> const& runs) {
  double const seconds = shown_seconds(o, runs);
  std::string out = fmt::format(
      "<h2>The first {:.3g} seconds of every run</h2>\n<p>Numbers are micro-batches; "
      "grey is a bubble.</p>\n",
      seconds);
  for (auto const* r : runs) {
    auto const pipeline = std::span(r->places).first(static_cast<std::size_t>(o.stages));
    out += timeline_html(r->spec.label(), pipeline, 0, seconds);
  }
  return out;
}

std::string introduction(options const& o) {
  auto const& s = o.training.shape;
  std::string out =
      fmt::format("<p>{} stages, {} data-parallel replicas of each, {} micro-batches per replica. ",
                  o.stages, o.replicas, o.micro_batches);
  if (o.workload == workload_kind::gpt) {
    out += fmt::format(
        "A GPT of {} layers, width {}, {} heads and context {} ({} parameters) learns bytes of "
        "<code>{}</code>, {} sequences per micro-batch. ",
        s.layers, s.width, s.heads, s.context, train_gpt::parameter_count(s),
        train_gpt::escape_html(o.training.corpus.string()), o.training.batch);
  }
  if (o.paced()) {
    out += fmt::format(
        "A forward takes {:g} ms and a backward {:g} ms, for the most part slept, so that few "
        "cores can stand for many stages. ",
        o.forward_ms, o.backward_ms);
  }
  return out +
         "Utilisation is the time that the slowest stage's passes take, over that of the run. The "
         "ideal is that of equal stages without communication: m / (m + N - 1) for a flush of m "
         "micro-batches; without a flush the pipeline fills and drains only once. Drift is the "
         "number of versions between a micro-batch's forward and its backward, at worst.</p>\n";
}

}  // namespace

std::string report_html(options const& o, std::span<run_result const> results) {
  auto const rows = summarise(o, results);
  auto const runs = shown_runs(results);
  auto out = introduction(o) + html(summary_table(o, rows));
  out += timelines_html(o, runs);
  if (o.workload == workload_kind::gpt) out += charts_html(o, runs);
  return html(train_gpt::page{.program = "paci",
                              .heading = "paci",
                              .body = std::move(out),
                              .command = o.training.command,
                              .machine = train_gpt::machine(),
                              .css = std::string(timeline_css)});
}

}  // namespace paci
