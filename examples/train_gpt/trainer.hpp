// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A training run, from its checkpoint on.

#include <atomic>
#include <string>

#include "checkpoint.hpp"
#include "corpus.hpp"
#include "options.hpp"
#include "rank_group.hpp"
#include "run_result.hpp"

namespace train_gpt {

//! Where the run's checkpoint lies.
[[nodiscard]] std::filesystem::path checkpoint_path(options const& o, run_spec const& run);

//! The state `run` starts from: its checkpoint with o.resume and where there is one, else step 0.
//! Throws usage_error.
[[nodiscard]] checkpoint starting_point(options const& o, corpus const& text, run_spec const& run);

//! Collective: trains from `state` to the last step, or to the end of the step in which a process
//! sees `stop`, and writes a checkpoint there. All ranks stop at the same step. Errors of a rank
//! are rethrown.
[[nodiscard]] run_result train(options const& o, corpus const& text, run_spec const& run,
                               checkpoint state, std::string const& title,
                               std::atomic<bool> const& stop, rank_group& ranks);

}  // namespace train_gpt
