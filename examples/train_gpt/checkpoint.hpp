// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Everything a run needs to go on as if it had never stopped, in one file.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "run_result.hpp"

namespace train_gpt {

struct checkpoint {
  std::string settings;   //!< one "key=value" per line: what must agree to continue
  std::int64_t step = 0;  //!< steps taken
  std::vector<float> weights;
  std::vector<std::string> optimizer_states;  //!< one per rank
  std::vector<step_record> steps;
  std::vector<validation_point> validation;
  phase_times milliseconds = {};
};

//! Replaces `path` as a whole. Throws std::runtime_error.
void write_checkpoint(std::filesystem::path const& path, checkpoint const& c);

//! Throws usage_error for a damaged file, or for one whose settings are not `settings`, naming the
//! first difference.
[[nodiscard]] checkpoint read_checkpoint(std::filesystem::path const& path,
                                         std::string const& settings);

}  // namespace train_gpt
