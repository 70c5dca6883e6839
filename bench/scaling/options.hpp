// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line: a model, a machine, and what to predict of them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <scape/cost_model.hpp>

namespace scaling {

//! A number the prediction rests on.
struct parameter {
  std::string name, value;
  std::string basis;  //!< where the value comes from
};

struct options {
  std::int64_t elements = 1'800'000'000;
  std::int64_t tokens = 4'194'304;  //!< of the global batch
  double flops = 4e14;              //!< of one rank, achieved
  std::vector<double> densities = {0.1, 0.01};
  int from = 1, to = 10'240;  //!< ranks
  bool paper = false;
  scape::cost_model_options cost;  //!< compute is that of the whole batch on one rank
  std::filesystem::path out = "scaling_out";
  std::vector<parameter> parameters;
  std::string command;  //!< as typed
};

//! Seconds of forward and backward of `tokens` on one rank: 6 n floating-point operations each.
[[nodiscard]] inline double batch_compute(options const& o, double tokens) {
  return 6 * static_cast<double>(o.elements) * tokens / o.flops;
}

//! Reads and checks the command line. Throws train_gpt::usage_error, and
//! train_gpt::help_request.
[[nodiscard]] options parse_options(int argc, char const* const* argv);

}  // namespace scaling
