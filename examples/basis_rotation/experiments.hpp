// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Which runs are made, several at a time, and what comes out of them.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "corpus.hpp"
#include "delayed_training.hpp"
#include "settings.hpp"
#include "sparse_sync.hpp"

namespace basis_rotation {

//! A configuration at several learning rates. The best one reaches the target first or, where there
//! is no target or none reaches it, has the lowest last loss.
template <class Result>
struct tuned {
  Result best;
  std::vector<Result> all;
};

//! Means over the seeds.
struct tuned_row {
  std::vector<tuned<delayed_result>> seeds;

  [[nodiscard]] delayed_run const& run() const { return seeds.front().best.run; }
  //! None if a seed did not reach the target.
  [[nodiscard]] std::optional<double> steps() const;
};

struct energy_point {
  std::int64_t step = 0;
  double original_1 = 0, original_10 = 0;  //!< share of the largest 1 % and 10 % of M
  double rotated_1 = 0, rotated_10 = 0;
};

struct energy_result {
  method how = method::second_bilateral;
  std::vector<energy_point> points = {};
};

struct results {
  std::vector<tuned_row> delay, stashing, budget;
  std::vector<energy_result> energy;
  std::vector<tuned<sync_result>> sync;
};

//! Calls `save` with all results so far after every part.
void run_experiments(settings const& s, train_gpt::corpus const& text,
                     std::function<void(results const&)> const& save);

//! The row with these properties.
[[nodiscard]] tuned_row const* find(std::vector<tuned_row> const& rows, method how,
                                    std::int64_t stages);

}  // namespace basis_rotation
