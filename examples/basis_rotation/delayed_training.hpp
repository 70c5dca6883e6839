// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Training by a simulated asynchronous pipeline: one process computes what the stages would.

#include <cstdint>
#include <functional>
#include <optional>
#include <scape/pipeline/refresh_intervals.hpp>
#include <vector>

#include "corpus.hpp"
#include "method.hpp"
#include "settings.hpp"

namespace basis_rotation {

class model_optimizer;

struct delayed_run {
  method how = method::adam;
  std::int64_t stages = 1;
  bool stashing = true;
  scape::refresh_budget budget = scape::refresh_budget::uniform;
  std::int64_t interval = 10;
  double lr = 0;
  std::uint64_t seed = 1;
};

struct loss_point {
  std::int64_t step = 0;
  double loss = 0;  //!< nats per byte on held-out text
};

struct delayed_result {
  delayed_run run;
  std::vector<loss_point> validation = {};
  //! Until the target, between two validations by a straight line; none: not reached.
  std::optional<double> steps_to_target = {};
  std::int64_t refreshes = 0;  //!< of all matrices
  double seconds = 0;
};

//! Called at every validation with the number of steps taken.
using validation_observer = std::function<void(std::int64_t, model_optimizer&)>;

//! Trains until the target or settings.max_steps. At step t the gradient is that of the loss at
//!
//!     w_1(t - P + 1), ..., w_k(t - P + k), ..., w_P(t)      stage by stage
//!
//! which is what an asynchronous 1F1B pipeline computes that applies every gradient at once: stage
//! k sees P - k updates between the forward and the backward pass of a micro-batch. With weight
//! stashing both passes use these weights; without, the backward pass takes the weights of step t,
//! the only ones there are. Before step 0 the weights are the initial ones.
[[nodiscard]] delayed_result train_with_delay(settings const& s, train_gpt::corpus const& text,
                                              delayed_run const& run,
                                              validation_observer const& observe = {});

}  // namespace basis_rotation
