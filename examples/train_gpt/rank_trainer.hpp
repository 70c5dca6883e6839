// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The training loop of one rank, over any communicator of the host.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <scape/context/host.hpp>
#include <scape/layout.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint.hpp"
#include "corpus.hpp"
#include "gather.hpp"
#include "gpt.hpp"
#include "optimizer.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "random.hpp"
#include "trainer.hpp"

namespace train_gpt {

inline std::uint64_t hash_of(std::span<float const> weights) {
  return fnv1a(std::as_bytes(weights));
}

//! What the ranks of a process share in a run. The first of them keeps `state` up to date, with the
//! optimizer states of all ranks at rank 0 of all.
struct shared_run {
  options const& o;
  corpus const& text;
  run_spec const& run;
  scape::layout const& layout;
  std::atomic<bool> const& stop;
  checkpoint& state;
};

class stopwatch {
 public:
  // Milliseconds since the last call.
  double lap() {
    auto const now = clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(last_, now)).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
};

template <class Comm>
class rank_trainer {
 public:
  //! `line` is null on all ranks of a process but the first.
  rank_trainer(shared_run const& shared, Comm& comm, std::unique_ptr<rank_optimizer> optimizer,
               progress* line)
      : s_(shared),
        comm_(comm),
        model_(s_.o.shape, s_.o.batch),
        batch_(s_.o.batch, s_.o.shape.context),
        weights_(s_.state.weights.begin(), s_.state.weights.end()),
        gradient_(weights_.size()),
        optimizer_(std::move(optimizer)),
        line_(line) {
    if (s_.state.step > 0) {
      std::istringstream in(s_.state.optimizer_states[static_cast<std::size_t>(comm.rank())]);
      optimizer_->load(in);
    }
  }

  void train() {
    std::int64_t const validate_every = std::max<std::int64_t>(1, s_.o.steps / validations_per_run);
    bool stopping = false;
    for (std::int64_t step = s_.state.step; step < s_.o.steps && !stopping; ++step) {
      stopping = take_step(step);
      std::int64_t const done = step + 1;
      bool const last = done == s_.o.steps;
      if (last || done % validate_every == 0) validate(done);
      bool const due = s_.o.checkpoint_every > 0 && done % s_.o.checkpoint_every == 0;
      if (last || due || stopping) save(done);
    }
  }

 private:
  static constexpr std::int64_t validation_rows = 1024;
  static constexpr std::int64_t validations_per_run = 10;

  struct vote {
    double loss;
    bool stop;
  };

  // Returns whether to stop: if any rank was told to.
  bool take_step(std::int64_t step) {
    stopwatch watch;
    sample(batch_, s_.text.training(), s_.run.seed, step, comm_.rank());
    vote const mine{model_.loss_and_gradient(weights_, batch_.inputs, batch_.targets, gradient_),
                    s_.stop.load()};
    double const gradient_time = watch.lap();
    auto const votes = gather(comm_, mine);
    double const wait_time = watch.lap();
    double const lr = s_.o.learning_rate(s_.run, step);
    auto const& report = optimizer_->step(weights_, gradient_, lr);
    double const device_time = s_.o.device == device_kind::cuda ? watch.lap() : 0;
    if (line_ != nullptr) {
      double loss = 0;
      for (auto const& v : votes) loss += v.loss / static_cast<double>(votes.size());
      record(step + 1, loss, lr, report, {gradient_time, wait_time, device_time});
      line_->update(step + 1, loss);
    }
    return std::any_of(votes.begin(), votes.end(), [](vote const& v) { return v.stop; });
  }

  void record(std::int64_t step, double loss, double lr, scape::step_report const& r,
              std::array<double, 3> const& times) {
    s_.state.steps.push_back({.step = step,
                              .loss = loss,
                              .lr = lr,
                              .density = r.density,
                              .value_bytes = r.bytes.values,
                              .parameter_bytes = r.bytes.parameters,
                              .mask_bytes = r.bytes.mask,
                              .control_bytes = r.bytes.control,
                              .mask_overlap = r.mask_overlap,
                              .residual_norm = r.residual_norm,
                              .gradient_norm = r.gradient_norm,
                              .skipped = r.skipped});
    auto const& ms = r.milliseconds;
    phase_times const phases{times[0],   times[1],      ms.guard,  ms.mask_wait, ms.reduce_scatter,
                             ms.rebuild, ms.all_gather, ms.select, times[2]};
    for (std::size_t i = 0; i < phases.size(); ++i) s_.state.milliseconds[i] += phases[i];
  }

  void validate(std::int64_t step) {
    auto const text = s_.text.held_out();
    std::int64_t const rows = std::min(validation_rows, std::ssize(text) / s_.o.shape.context);
    std::int64_t const batches = (rows + s_.o.batch - 1) / s_.o.batch;
    double sum = 0;
    for (std::int64_t i = comm_.rank(); i < batches; i += comm_.size()) {
      take_spread(batch_, text, i, batches);
      sum += static_cast<double>(model_.loss(weights_, batch_.inputs, batch_.targets));
    }
    double total = 0;
    for (double const part : gather(comm_, sum)) total += part;
    if (line_ != nullptr) {
      s_.state.validation.push_back({step, total / static_cast<double>(batches)});
    }
  }

  void save(std::int64_t step) {
    collect_states();
    auto const mine = hash_of(weights_);
    for (auto const other : gather(comm_, mine)) {
      if (other != mine) throw std::logic_error("the ranks' weights differ");
    }
    if (line_ == nullptr) return;
    s_.state.step = step;
    s_.state.weights.assign(weights_.begin(), weights_.end());
    if (comm_.rank() == 0) write_checkpoint(checkpoint_path(s_.o, s_.run), s_.state);
  }

  // One after the other, so that nobody has to hold them all but rank 0.
  void collect_states() {
    std::ostringstream out;
    optimizer_->save(out);
    std::string const mine = std::move(out).str();
    auto const lengths = gather(comm_, mine.size());
    for (int r = 0; r < comm_.size(); ++r) {
      auto const i = static_cast<std::size_t>(r);
      std::string state = r == comm_.rank() ? mine : std::string(lengths[i], '\0');
      comm_.broadcast(context_, std::span(state), r).wait(context_);
      if (comm_.rank() == 0) s_.state.optimizer_states[i] = std::move(state);
    }
  }

  shared_run const& s_;
  Comm& comm_;
  scape::host_context context_;
  gpt<float> model_;
  batch batch_;
  aligned_vector<float> weights_, gradient_;
  std::unique_ptr<rank_optimizer> optimizer_;
  progress* line_;
};

}  // namespace train_gpt
