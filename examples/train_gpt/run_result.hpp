// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a training run leaves behind for the tables and curves.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace train_gpt {

//! One optimizer step as rank 0 saw it; bytes are those it received. Trivially copyable:
//! checkpoints store it as it is.
struct step_record {
  std::int64_t step = 0;  //!< counted from 1
  double loss = 0;        //!< mean over the ranks' batches, nats per byte
  double lr = 0;
  double density = 0;
  std::int64_t value_bytes = 0;
  std::int64_t parameter_bytes = 0;
  std::int64_t mask_bytes = 0;
  std::int64_t control_bytes = 0;
  double mask_overlap = 0;  //!< share of the mask that was in the previous one
  double residual_norm = 0;
  double gradient_norm = 0;  //!< before clipping
  bool skipped = false;      //!< some rank had an Inf or a NaN

  [[nodiscard]] std::int64_t bytes() const noexcept {
    return value_bytes + parameter_bytes + mask_bytes + control_bytes;
  }
};

struct validation_point {
  std::int64_t step = 0;
  double loss = 0;  //!< nats per byte on the held-out text
};

//! Where rank 0 spends a step. "ranks" is the wait for slower ranks after the gradient, "device" a
//! whole step on a GPU; the phases of the optimizer are those of a step on the host.
inline constexpr std::array<std::string_view, 9> phase_names = {
    "gradient", "ranks",      "guard",  "mask wait", "reduce-scatter",
    "rebuild",  "all-gather", "select", "device"};
using phase_times = std::array<double, phase_names.size()>;  // milliseconds

struct run_result {
  run_spec spec;
  std::vector<step_record> steps;
  std::vector<validation_point> validation;
  phase_times milliseconds = {};  //!< totals
  std::uint64_t weights_hash = 0;
  bool finished = false;
};

}  // namespace train_gpt
