// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The results as one HTML page that needs nothing but itself.

#include <span>
#include <string>

#include "options.hpp"
#include "run_result.hpp"

namespace train_gpt {

//! Processor, system and compiler, in a line.
[[nodiscard]] std::string machine();

[[nodiscard]] std::string report_html(options const& o, std::span<run_result const> results);

}  // namespace train_gpt
