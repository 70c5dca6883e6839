// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The results as one HTML page that needs nothing but itself.

#include <string>

#include "experiments.hpp"
#include "settings.hpp"

namespace basis_rotation {

[[nodiscard]] std::string page_html(settings const& s, results const& r);

}  // namespace basis_rotation
