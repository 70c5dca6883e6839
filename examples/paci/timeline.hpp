// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What every stage does when, as inline SVG.

#include <span>
#include <string>
#include <string_view>

#include "paci/run.hpp"

namespace paci {

inline constexpr std::string_view timeline_css = R"css(
.forward { fill: var(--series-1); } .backward { fill: var(--series-3); }
.step { fill: var(--series-2); } .bubble { fill: var(--grid); }
.pass { fill: #fff; font: 9px system-ui, sans-serif; pointer-events: none; }
)css";

//! A <figure> with a row per stage from `begin` to `end` (seconds of the run): forwards, backwards
//! and steps, and the background where the stage has nothing to do.
[[nodiscard]] std::string timeline_html(std::string const& title,
                                        std::span<stage_result const> stages, double begin,
                                        double end);

}  // namespace paci
