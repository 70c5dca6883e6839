// SPDX-License-Identifier: Apache-2.0
#include "paci/run.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "paci/place.hpp"
#include "paci/stage_job.hpp"
#include "train_gpt/gpt.hpp"
#include "train_gpt/random.hpp"

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

// The weights of the whole model at look `k`.
train_gpt::aligned_vector<float> weights_at(options const& o,
                                            std::vector<stage_result> const& places,
                                            std::size_t k) {
  train_gpt::aligned_vector<float> weights;
  for (int stage = 0; stage < o.stages; ++stage) {
    auto const& part = places[number_of({stage, 0}, o.stages)].snapshots[k].weights;
    weights.insert(weights.end(), part.begin(), part.end());
  }
  return weights;
}

// When the last stage was looked at.
double seconds_at(options const& o, std::vector<stage_result> const& places, std::size_t k) {
  std::int64_t time = 0;
  for (int stage = 0; stage < o.stages; ++stage) {
    time = std::max(time, places[number_of({stage, 0}, o.stages)].snapshots[k].time);
  }
  return 1e-9 * static_cast<double>(time);
}

void validate(options const& o, train_gpt::corpus const& text, run_result& result) {
  auto const& shape = o.training.shape;
  std::int64_t const rows = std::min(validation_rows, std::ssize(text.held_out()) / shape.context);
  std::int64_t const batches = (rows + o.training.batch - 1) / o.training.batch;
  train_gpt::gpt<float> model(shape, o.training.batch);
  train_gpt::batch batch(o.training.batch, shape.context);
  auto const& looks = result.places.front().snapshots;
  for (std::size_t k = 0; k < looks.size(); ++k) {
    auto const weights = weights_at(o, result.places, k);
    double sum = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      take_spread(batch, text.held_out(), i, batches);
      sum += static_cast<double>(model.loss(weights, batch.inputs, batch.targets));
    }
    result.validation.push_back(
        {looks[k].backwards, seconds_at(o, result.places, k), sum / static_cast<double>(batches)});
    result.weights_hash = train_gpt::fnv1a(std::as_bytes(std::span(weights)));
  }
}

}  // namespace

run_result run(options const& o, train_gpt::corpus const& text, run_spec const& spec,
               grid& places) {
  auto const oversleep = o.paced() ? measure_oversleep() : std::chrono::nanoseconds(0);
  run_result result{
      .spec = spec, .places = places.run({o, text, spec, oversleep}), .validation = {}};
  if (result.places.empty()) return result;
  start_at_zero(result.places);
  if (o.workload == workload_kind::gpt) validate(o, text, result);
  return result;
}

}  // namespace paci
