// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The SCAPE paper's figures for Llama-1.8B, from a model with two fitted parameters.

#include "options.hpp"
#include "report.hpp"

namespace scaling {

//! Solves for the compute of the batch and the bandwidth of the offloaded residual that give the
//! paper's two efficiencies, and predicts the speedup per step. Throws usage_error where the other
//! parameters leave no solution.
[[nodiscard]] report reproduce_paper(options o);

}  // namespace scaling
