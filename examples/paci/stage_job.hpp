// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What every stage does in a run, over any communicators of the host.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <scape/layout.hpp>
#include <span>
#include <utility>
#include <vector>

#include "paci/gpt_stage.hpp"
#include "paci/grid.hpp"
#include "paci/options.hpp"
#include "paci/paced_model.hpp"
#include "paci/place.hpp"
#include "paci/run.hpp"
#include "paci/stage_runner.hpp"
#include "train_gpt/corpus.hpp"
#include "train_gpt/gpt.hpp"
#include "train_gpt/host_optimizer.hpp"

namespace paci {

//! How often the weights are looked at in a run.
inline constexpr std::int64_t snapshots_per_run = 20;

struct stage_job {
  options const& o;
  train_gpt::corpus const& text;
  run_spec const& spec;
  std::chrono::nanoseconds oversleep;
};

//! What a stage works with: its part of the GPT, or nothing that matters.
struct stage_parts {
  std::unique_ptr<stage_model> model;
  train_gpt::aligned_vector<float> weights;
  scape::layout layout;
};
[[nodiscard]] stage_parts make_parts(stage_job const& job, place const& at);

[[nodiscard]] stage_pace pace_of(stage_job const& job, place const& at);

//! Collective over both communicators: one stage of one replica, from the first micro-batch to the
//! last.
template <class Comm>
stage_result run_stage(stage_job const& job, place const& at, Comm& pipeline, Comm& replicas) {
  auto parts = make_parts(job, at);
  auto training = job.o.training;
  training.steps = job.o.micro_batches / job.spec.window;
  auto const optimizer =
      train_gpt::make_host_optimizer(replicas, parts.layout, training, job.o.optimizer);
  std::int64_t window = 0;
  auto const step = [&](std::span<float> weights, std::span<float const> gradient) {
    double const lr = training.learning_rate(job.o.optimizer, window++);
    return !optimizer->step(weights, gradient, lr).skipped;
  };

  stage_result result;
  runner_options options{.patience = deadline};
  std::int64_t const every =
      std::max<std::int64_t>(1, training.steps / snapshots_per_run) * job.spec.window;
  if (job.o.workload == workload_kind::gpt && at.replica == 0) {
    options.after_step = [&](std::int64_t backwards) {
      if (backwards % every != 0 && backwards != job.o.micro_batches) return;
      result.snapshots.push_back(
          {backwards, nanoseconds_now(), {parts.weights.begin(), parts.weights.end()}});
    };
  }
  paced_model paced(*parts.model, pace_of(job, at), job.oversleep);
  auto& model = job.o.paced() ? static_cast<stage_model&>(paced) : *parts.model;
  stage_runner<Comm> runner(pipeline,
                            {.stages = job.o.stages,
                             .stage = at.stage,
                             .window = job.spec.window,
                             .micro_batches = job.o.micro_batches,
                             .flush = job.spec.flush},
                            model, parts.weights, step, options);
  result.log = runner.run();
  result.slot_bytes = model.slot_bytes();
  result.peak_in_flight = runner.schedule().peak_in_flight();
  result.max_drift = runner.schedule().max_drift();
  result.skipped = runner.schedule().skipped();
  return result;
}

}  // namespace paci
