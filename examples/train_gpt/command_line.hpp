// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the command lines of the examples, and of the programs in bench, have in common.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "gpt_shape.hpp"
#include "usage_error.hpp"

namespace train_gpt {

inline void require(bool ok, std::string const& message) {
  if (!ok) throw usage_error(message);
}

template <class T>
void require_at_least(char const* flag, T value, T least) {
  require(value >= least, fmt::format("{} is {}, at least {} is needed", flag, value, least));
}

inline void require_in(char const* flag, double value, double from, double to) {
  require(value >= from && value <= to,
          fmt::format("{} is {}, expected a value in [{}, {}]", flag, value, from, to));
}

inline void require_positive(char const* flag, double value) {
  using limits = std::numeric_limits<float>;
  require(value >= double{limits::min()} && value <= double{limits::max()},
          fmt::format("{} is {}, expected a positive number that float can hold", flag, value));
}

//! Of a decay; the optimizers take it as a float.
inline void require_beta(char const* flag, double value) {
  require(value >= 0 && static_cast<float>(value) < 1,
          fmt::format("{} is {}, expected a value in [0, 1)", flag, value));
}

//! Small enough for its products with others.
inline void require_size(char const* flag, std::int64_t value) {
  require_at_least(flag, value, std::int64_t{1});
  require(value <= 100'000, fmt::format("{} is {}, more than 100000", flag, value));
}

inline CLI::Option* add_seed_option(CLI::App& app, std::uint64_t& seed, char const* what) {
  return app.add_option("--seed", seed, what)->check([](std::string const& text) {
    return text.starts_with('-') ? text + " is negative" : std::string();
  });
}

inline void add_shape_options(CLI::App& app, gpt_shape& shape) {
  auto const add = [&](char const* flag, std::int64_t& value, char const* what) {
    app.add_option(flag, value, what)->group("Model");
  };
  add("--layers", shape.layers, "transformer blocks");
  add("--width", shape.width, "size of the residual stream");
  add("--heads", shape.heads, "attention heads");
  add("--context", shape.context, "bytes per sequence");
}

inline void check(gpt_shape const& shape) {
  for (auto const& [flag, value] : {std::pair("--layers", shape.layers),
                                    {"--width", shape.width},
                                    {"--heads", shape.heads},
                                    {"--context", shape.context}}) {
    require_size(flag, value);
  }
  require(shape.width % shape.heads == 0,
          fmt::format("--heads {} does not divide --width {}", shape.heads, shape.width));
}

//! As typed.
[[nodiscard]] inline std::string command_of(int argc, char const* const* argv) {
  return fmt::format("{}", fmt::join(argv, argv + argc, " "));
}

//! Throws usage_error, and help_request.
inline void parse(CLI::App& app, int argc, char const* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    throw help_request(app.help());
  } catch (CLI::ParseError const& e) {
    std::string line = e.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw usage_error(line + " (see --help)");
  }
}

}  // namespace train_gpt
