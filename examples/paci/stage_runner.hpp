// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One stage of one pipeline, over any communicator that can send and receive.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <scape/pipeline/stage_schedule.hpp>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "paci/event.hpp"
#include "paci/mailbox.hpp"
#include "paci/stage_model.hpp"
#include "train_gpt/gpt.hpp"

namespace paci {

//! On the steady clock, which the processes of one machine share.
[[nodiscard]] inline std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

//! Takes the optimizer step with the mean gradient of a window; false if it was skipped.
using optimizer_step =
    std::function<bool(std::span<float> weights, std::span<float const> gradient)>;

struct runner_options {
  //! How long a stage waits for two neighbours at once, before it waits for one as long as its
  //! communicator's deadline allows.
  std::chrono::milliseconds patience = std::chrono::seconds(60);
  //! Called after every window with the backwards that are done.
  std::function<void(std::int64_t backwards)> after_step = {};
};

//! Stage `comm.rank()`. Activations come from the rank before and go to the one behind; their
//! gradients come back. The stage waits for nothing else, and there is no operation of all stages.
template <scape::communicator Comm>
requires scape::has_send_recv<Comm, float>
class stage_runner {
 public:
  //! `schedule.stage` and `stages` are the communicator's rank and size. `weights` is the one copy
  //! that forwards, backwards and steps use.
  stage_runner(Comm& comm, scape::stage_schedule_options const& schedule, stage_model& model,
               std::span<float> weights, optimizer_step step, runner_options options = {})
      : schedule_(schedule),
        model_(model),
        weights_(weights),
        step_(std::move(step)),
        options_(std::move(options)),
        sum_(weights.size()),
        gradient_(weights.size()),
        activations_in_(comm, before(schedule), model.stream_size(), schedule.micro_batches),
        gradients_in_(comm, behind(schedule), model.stream_size(), schedule.micro_batches),
        // What was sent has arrived when an answer to it is there, so these never wait.
        activations_out_(comm, behind(schedule), model.stream_size(), schedule_.limit()),
        gradients_out_(comm, before(schedule), model.stream_size(), schedule_.limit() + 1) {
    auto const events = 2 * schedule.micro_batches + schedule.micro_batches / schedule.window;
    log_.reserve(static_cast<std::size_t>(events));
  }

  //! Runs to the end and returns the log.
  std::vector<event> run() {
    while (!schedule_.finished()) {
      switch (next_action()) {
        case scape::stage_action::forward:
          forward();
          break;
        case scape::stage_action::backward:
          backward();
          break;
        case scape::stage_action::step:
          step();
          break;
        case scape::stage_action::wait:
          break;
      }
    }
    activations_out_.finish();
    gradients_out_.finish();
    return std::move(log_);
  }

  [[nodiscard]] scape::stage_schedule const& schedule() const noexcept { return schedule_; }

 private:
  using clock = std::chrono::steady_clock;

  static int before(scape::stage_schedule_options const& s) noexcept {
    return s.stage > 0 ? s.stage - 1 : nobody;
  }
  static int behind(scape::stage_schedule_options const& s) noexcept {
    return s.stage + 1 < s.stages ? s.stage + 1 : nobody;
  }

  scape::stage_action next_action() {
    for (auto const since = clock::now();;) {
      bool const gradient = schedule_.admits_backward() && gradients_in_.ready();
      bool const activation = schedule_.admits_forward() && activations_in_.ready();
      auto const action = schedule_.next(activation, gradient);
      if (action != scape::stage_action::wait) return action;
      wait(clock::now() - since);
    }
  }

  //! The gradient of a micro-batch in flight needs nothing more of this stage: waiting for it alone
  //! may be slow, but not for ever.
  void wait(clock::duration waited) {
    using namespace std::chrono_literals;
    if (!schedule_.admits_backward()) {
      activations_in_.wait();
    } else if (!schedule_.admits_forward() || waited > options_.patience) {
      gradients_in_.wait();
    } else {
      std::this_thread::sleep_for(std::clamp<clock::duration>(waited / 16, 20us, 500us));
    }
  }

  void forward() {
    event e{.action = scape::stage_action::forward,
            .begin = nanoseconds_now(),
            .version = schedule_.version()};
    e.micro_batch = schedule_.forward();
    e.in_flight = schedule_.in_flight();
    e.loss = model_.forward(pass_of(e), activations_in_.message(), activations_out_.message());
    note(e);
    activations_out_.send();
    activations_in_.next();
  }

  void backward() {
    event e{.action = scape::stage_action::backward,
            .begin = nanoseconds_now(),
            .version = schedule_.version(),
            .in_flight = schedule_.in_flight()};
    bool const first = schedule_.in_window() == 0;
    auto const [micro_batch, drift] = schedule_.backward();
    e.micro_batch = micro_batch;
    e.drift = drift;
    model_.backward(pass_of(e), gradients_in_.message(), gradients_out_.message(),
                    first ? sum_ : gradient_);
    if (!first)
      std::transform(sum_.begin(), sum_.end(), gradient_.begin(), sum_.begin(), std::plus());
    note(e);
    gradients_out_.send();
    gradients_in_.next();
  }

  void step() {
    event e{.action = scape::stage_action::step,
            .micro_batch = schedule_.backwards() - 1,
            .begin = nanoseconds_now(),
            .in_flight = schedule_.in_flight()};
    auto const share = static_cast<float>(1.0 / static_cast<double>(schedule_.options().window));
    for (auto& g : sum_) g *= share;
    e.applied = step_(weights_, sum_);
    schedule_.step(e.applied);
    e.version = schedule_.version();
    note(e);
    if (options_.after_step) options_.after_step(schedule_.backwards());
  }

  [[nodiscard]] pass pass_of(event const& e) const noexcept {
    return {e.micro_batch, schedule_.slot(e.micro_batch), weights_};
  }
  void note(event& e) {
    e.end = nanoseconds_now();
    log_.push_back(e);
  }

  scape::stage_schedule schedule_;
  stage_model& model_;
  std::span<float> weights_;
  optimizer_step step_;
  runner_options options_;
  train_gpt::aligned_vector<float> sum_, gradient_;
  std::vector<event> log_;
  inbox<Comm> activations_in_, gradients_in_;
  outbox<Comm> activations_out_, gradients_out_;
};

}  // namespace paci
