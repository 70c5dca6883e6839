// SPDX-License-Identifier: Apache-2.0
#include "paci/run.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "paci/place.hpp"
#include "paci/stage_job.hpp"
#include "train_gpt/gpt.hpp"

namespace paci {
namespace {

constexpr std::int64_t validation_rows = 512;

// The run's time begins with its first event.
void start_at_zero(std::vector<stage_result>& places) {
  auto start = std::numeric_limits<std::int64_t>::max();
  for (auto const& p : places) start = std::min(start, p.log.front().begin);
  for (auto& p : places) {
    for (auto& e : p.log) e.begin -= start, e.end -= start;
    for (auto& s : p.snapshots) s.time -= start;
  }
}

// The held-out loss of the model that the stages' snapshots make up, and when the last was taken.
std::vector<validation_point> validate(options const& o, train_gpt::corpus const& text,
                                       std::vector<stage_result> const& places) {
  auto const& shape = o.training.shape;
  std::int64_t const rows = std::min(validation_rows, std::ssize(text.held_out()) / shape.context);
  std::int64_t const batches = (rows + o.training.batch - 1) / o.training.batch;
  train_gpt::gpt<float> model(shape, o.training.batch);
  train_gpt::batch batch(o.training.batch, shape.context);
  std::vector<validation_point> points;
  for (std::size_t k = 0; k < places.front().snapshots.size(); ++k) {
    train_gpt::aligned_vector<float> weights;
    std::int64_t time = 0;
    for (int stage = 0; stage < o.stages; ++stage) {
      auto const& s = places[number_of({stage, 0}, o.stages)].snapshots[k];
      weights.insert(weights.end(), s.weights.begin(), s.weights.end());
      time = std::max(time, s.time);
    }
    double sum = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      take_spread(batch, text.held_out(), i, batches);
      sum += static_cast<double>(model.loss(weights, batch.inputs, batch.targets));
    }
    points.push_back({places.front().snapshots[k].backwards, 1e-9 * static_cast<double>(time),
                      sum / static_cast<double>(batches)});
  }
  return points;
}

}  // namespace

run_result run(options const& o, train_gpt::corpus const& text, run_spec const& spec,
               grid& places) {
  auto const oversleep = o.paced() ? measure_oversleep() : std::chrono::nanoseconds(0);
  run_result result{spec, places.run({o, text, spec, oversleep}), {}};
  if (result.places.empty()) return result;
  start_at_zero(result.places);
  if (o.workload == workload_kind::gpt) result.validation = validate(o, text, result.places);
  return result;
}

}  // namespace paci
