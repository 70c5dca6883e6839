// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Measurements as text and as one HTML page that needs nothing but itself.

#include <string>
#include <vector>

#include "results.hpp"

namespace network {

//! A line of text for a measurement, as soon as it is there.
[[nodiscard]] std::string line(measurement const& m);

[[nodiscard]] std::string text(std::vector<measurement> const& all);
//! A picture of the phases of all runs, those of a network side by side with its dense run.
[[nodiscard]] std::string svg(std::vector<measurement> const& all);
[[nodiscard]] std::string html(std::vector<measurement> const& all, std::string const& command);

}  // namespace network
