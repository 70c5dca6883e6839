// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The results as one HTML page that needs nothing but itself.

#include <span>
#include <string>

#include "paci/options.hpp"
#include "paci/run.hpp"

namespace paci {

[[nodiscard]] std::string report_html(options const& o, std::span<run_result const> results);

}  // namespace paci
