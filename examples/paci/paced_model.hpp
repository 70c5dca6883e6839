// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Passes that take a given time, so that a few cores can stand for many stages.

#include <chrono>
#include <cstdint>
#include <span>

#include "paci/stage_model.hpp"

namespace paci {

//! How long the passes of a stage take.
struct stage_pace {
  std::chrono::nanoseconds forward{};
  std::chrono::nanoseconds backward{};
  double jitter = 0;       //!< every pass takes 1 - jitter to 1 + jitter of its time
  std::uint64_t seed = 0;  //!< of the jitter
};

//! By how much a thread oversleeps on this machine, in the median.
[[nodiscard]] std::chrono::nanoseconds measure_oversleep();

//! Computes what `model` does and sleeps for the rest of the time. A pass that computes longer than
//! that takes longer.
class paced_model final : public stage_model {
 public:
  paced_model(stage_model& model, stage_pace const& pace, std::chrono::nanoseconds oversleep)
      : model_(model), pace_(pace), oversleep_(oversleep) {}

  [[nodiscard]] std::int64_t stream_size() const override { return model_.stream_size(); }
  [[nodiscard]] std::int64_t slot_bytes() const override { return model_.slot_bytes(); }
  double forward(pass const& p, std::span<float const> in, std::span<float> out) override;
  void backward(pass const& p, std::span<float const> out_gradient, std::span<float> in_gradient,
                std::span<float> gradient) override;

 private:
  using clock = std::chrono::steady_clock;

  void sleep(clock::time_point begin, std::chrono::nanoseconds time, std::uint64_t number) const;

  stage_model& model_;
  stage_pace pace_;
  std::chrono::nanoseconds oversleep_;
};

//! Hands its input on and computes nothing.
class idle_model final : public stage_model {
 public:
  [[nodiscard]] std::int64_t stream_size() const override { return 1024; }
  //! As if the input had to be kept.
  [[nodiscard]] std::int64_t slot_bytes() const override { return 4 * stream_size(); }
  double forward(pass const& p, std::span<float const> in, std::span<float> out) override;
  void backward(pass const& p, std::span<float const> out_gradient, std::span<float> in_gradient,
                std::span<float> gradient) override;
};

}  // namespace paci
