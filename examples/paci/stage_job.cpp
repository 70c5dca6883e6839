// SPDX-License-Identifier: Apache-2.0
#include "paci/stage_job.hpp"

namespace paci {
namespace {

// Enough for an optimizer to have something to do.
constexpr std::int64_t idle_parameters = 1024;

}  // namespace

stage_parts make_parts(stage_job const& job, place const& at) {
  if (job.o.workload == workload_kind::sleep) {
    return {std::make_unique<idle_model>(),
            train_gpt::aligned_vector<float>(static_cast<std::size_t>(idle_parameters)),
            scape::layout(idle_parameters, job.o.replicas)};
  }
  auto const& shape = job.o.training.shape;
  auto const cut = cut_of(shape, job.o.stages, at.stage);
  auto const range = train_gpt::parameters_of(shape, cut);
  auto const initial = train_gpt::initial_parameters(shape, job.spec.seed);
  gpt_task const task{shape, job.text, job.o.training.batch, job.spec.seed, at.replica};
  return {std::make_unique<gpt_stage>(task, cut, job.o.stages - at.stage),
          {initial.begin() + range.begin, initial.begin() + range.end},
          layout_of(shape, cut, job.o.replicas)};
}

stage_pace pace_of(stage_job const& job, place const& at) {
  auto const time = [&](double ms) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::milli>(ms * job.o.factor(at.stage)));
  };
  return {.forward = time(job.o.forward_ms),
          .backward = time(job.o.backward_ms),
          .jitter = job.o.jitter,
          .seed = 1000 * job.spec.seed + number_of(at, job.o.stages)};
}

}  // namespace paci
