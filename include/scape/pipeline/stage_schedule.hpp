// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What one stage of a training pipeline may do next, and which version of its weights that meets.
//!
//!     scape::stage_schedule schedule({.stages = 8, .stage = 2, .window = 4, .micro_batches = 64});
//!     while (!schedule.finished()) {
//!       switch (schedule.next(activation_is_here(), gradient_is_here())) {
//!         case scape::stage_action::forward:  forward(schedule.forward());    break;
//!         case scape::stage_action::backward: accumulate(schedule.backward()); break;
//!         case scape::stage_action::step:     schedule.step(optimizer_step()); break;
//!         case scape::stage_action::wait:     receive();                       break;
//!       }
//!     }
//!
//! Micro-batches pass every stage in order, forwards and backwards. A stage has one copy of its
//! weights. After every `window` backwards it takes one optimizer step, with the mean of their
//! gradients; its weights' version is the number of its steps. A forward is admitted only while
//! fewer micro-batches than limit() = stages - stage are between their forward and their backward
//! here: that bounds the activations kept, and no stage runs ahead of the ones behind it. Where
//! both are possible the backward goes first.
//!
//! Asynchronous (PACI; plain asynchronous 1F1B with window 1), nothing else holds a stage back. At
//! most limit() - 1 other backwards then lie between a micro-batch's forward and its backward, so
//! that the weights move on by at most ceil((limit() - 1) / window) versions in between. This drift
//! is bounded however the stages' times vary, and a window of `stages` or more makes it at most 1.
//! (A summary of the paper has floor((stages - 1) / window), which is exceeded.)
//!
//! With a flush (synchronous 1F1B), the forwards of a window wait for the step of the one before:
//! no drift, but the pipeline drains and fills again, and stages of equal speed are busy for
//! window / (window + stages - 1) of the time.
//!
//! Data-parallel replicas of a stage step at the same backward counts, so the step may be one of
//! theirs together: one of dense_optimizer or sparse_optimizer on the stage's communicator. A
//! step that was skipped (an Inf or a NaN in the window) closes the window and leaves the version.
//!
//! There is no model, no communicator and no clock in here.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <scape/error.hpp>

namespace scape {

struct stage_schedule_options {
  int stages = 1;
  int stage = 0;                   //!< 0 for the first one
  std::int64_t window = 1;         //!< backwards per optimizer step
  std::int64_t micro_batches = 1;  //!< of the whole training: full windows
  bool flush = false;
};

enum class stage_action : std::uint8_t {
  wait,  //!< for an activation or a gradient; for nothing when the schedule has finished
  forward,
  backward,
  step
};

class stage_schedule {
 public:
  //! A backward: of which micro-batch, and the steps since its forward.
  struct backward_pass {
    std::int64_t micro_batch;
    std::int64_t drift;
  };

  explicit stage_schedule(stage_schedule_options const& options) : o_(checked(options)) {
    forward_versions_.resize(static_cast<std::size_t>(limit()));
  }

  //! What to do now, given whether the next forward's activation and the next backward's gradient
  //! are there (always, on the first and the last stage).
  [[nodiscard]] stage_action next(bool activation, bool gradient) const noexcept {
    if (step_is_due()) return stage_action::step;
    if (gradient && admits_backward()) return stage_action::backward;
    return activation && admits_forward() ? stage_action::forward : stage_action::wait;
  }

  [[nodiscard]] bool step_is_due() const noexcept { return in_window_ == o_.window; }
  [[nodiscard]] bool admits_backward() const noexcept { return !step_is_due() && in_flight() > 0; }
  [[nodiscard]] bool admits_forward() const noexcept {
    bool const held = o_.flush && forwards_ - windows() * o_.window == o_.window;
    return !step_is_due() && !held && in_flight() < limit() && forwards_ < o_.micro_batches;
  }
  [[nodiscard]] bool finished() const noexcept {
    return backwards_ == o_.micro_batches && !step_is_due();
  }

  //! Admits the next forward and returns its micro-batch, counted from 0. As the other two: to be
  //! called when the pass or step takes place; argument_error unless it is admitted.
  std::int64_t forward() {
    detail::expect(admits_forward(), "stage_schedule::forward", [this] {
      return "it is not admitted, with " + std::to_string(in_flight()) + " of at most " +
             std::to_string(limit()) + " micro-batches in flight after " + progress();
    });
    forward_versions_[slot(forwards_)] = version_;
    peak_in_flight_ = std::max(peak_in_flight_, in_flight() + 1);
    return forwards_++;
  }

  //! Counts the next backward, which takes its place in the window.
  backward_pass backward() {
    detail::expect(admits_backward(), "stage_schedule::backward", [this] {
      return "it is not admitted, with " + std::to_string(in_flight()) +
             " micro-batches in flight after " + progress();
    });
    backward_pass const pass{backwards_, version_ - forward_versions_[slot(backwards_)]};
    max_drift_ = std::max(max_drift_, pass.drift);
    ++backwards_;
    ++in_window_;
    return pass;
  }

  //! Closes the window; `applied` unless the step was skipped.
  void step(bool applied = true) {
    detail::expect(step_is_due(), "stage_schedule::step", [this] {
      return "the window has " + std::to_string(in_window_) + " of " + std::to_string(o_.window) +
             " backwards after " + progress();
    });
    in_window_ = 0;
    ++(applied ? version_ : skipped_);
  }

  //! Micro-batches that may be in flight here: PACI's N + 1 - i.
  [[nodiscard]] std::int64_t limit() const noexcept { return o_.stages - o_.stage; }
  //! The largest drift there can be.
  [[nodiscard]] std::int64_t drift_bound() const noexcept {
    return o_.flush || limit() == 1 ? 0 : 1 + (limit() - 2) / o_.window;
  }
  //! The place of a micro-batch among limit() ones: free when its forward is admitted.
  [[nodiscard]] std::size_t slot(std::int64_t micro_batch) const noexcept {
    return static_cast<std::size_t>(micro_batch % limit());
  }

  [[nodiscard]] std::int64_t forwards() const noexcept { return forwards_; }
  [[nodiscard]] std::int64_t backwards() const noexcept { return backwards_; }
  [[nodiscard]] std::int64_t in_flight() const noexcept { return forwards_ - backwards_; }
  [[nodiscard]] std::int64_t in_window() const noexcept { return in_window_; }
  [[nodiscard]] std::int64_t version() const noexcept { return version_; }
  [[nodiscard]] std::int64_t skipped() const noexcept { return skipped_; }
  [[nodiscard]] std::int64_t windows() const noexcept { return version_ + skipped_; }
  [[nodiscard]] std::int64_t peak_in_flight() const noexcept { return peak_in_flight_; }
  [[nodiscard]] std::int64_t max_drift() const noexcept { return max_drift_; }
  [[nodiscard]] stage_schedule_options const& options() const noexcept { return o_; }

 private:
  static stage_schedule_options const& checked(stage_schedule_options const& o) {
    std::string_view const op = "stage_schedule";
    detail::expect(o.stages >= 1, op, [&] {
      return "the number of stages is " + std::to_string(o.stages) + ", expected at least 1";
    });
    detail::expect(o.stage >= 0 && o.stage < o.stages, op, [&] {
      return "stage " + std::to_string(o.stage) + " is not one of " + std::to_string(o.stages);
    });
    detail::expect(o.window >= 1, op, [&] {
      return "the window is " + std::to_string(o.window) + ", expected at least 1";
    });
    detail::expect(o.micro_batches >= 0 && o.micro_batches % o.window == 0, op, [&] {
      return "the number of micro-batches is " + std::to_string(o.micro_batches) +
             ", expected a multiple of the window, " + std::to_string(o.window);
    });
    return o;
  }

  [[nodiscard]] std::string progress() const {
    return std::to_string(forwards_) + " forwards and " + std::to_string(backwards_) +
           " backwards of " + std::to_string(o_.micro_batches);
  }

  stage_schedule_options o_;
  std::vector<std::int64_t> forward_versions_;  // by slot
  std::int64_t forwards_ = 0;
  std::int64_t backwards_ = 0;
  std::int64_t in_window_ = 0;
  std::int64_t version_ = 0;
  std::int64_t skipped_ = 0;
  std::int64_t peak_in_flight_ = 0;
  std::int64_t max_drift_ = 0;
};

}  // namespace scape
