// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What was measured, as lines of a CSV file.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace network {

inline constexpr std::array<char const*, 6> phase_names = {
    "guard", "mask wait", "reduce-scatter", "rebuild", "all-gather", "select"};

//! Steps of one optimizer on one network.
struct measurement {
  std::string link;  //!< as the user calls it
  int hosts = 1;
  std::int64_t elements = 0;
  std::string run;  //!< dense, SCAPE 90 %, ...
  double density = 1;
  double compute = 0;    //!< milliseconds of a sleep for forward and backward
  double step = 0;       //!< milliseconds, median of the steps, each that of the slowest rank
  double predicted = 0;  //!< the same by the cost model
  std::array<double, 6> phases = {};  //!< milliseconds, mean of steps and ranks
  double wire = 0;       //!< bytes a rank receives per step, as the optimizer reports them
  double counted = 0;    //!< the same as the host's interfaces count them
  double latency = 0;    //!< seconds, from the calibration
  double bandwidth = 0;  //!< bytes per second, from the calibration
};

//! Appends lines to a file, with the names of the columns if it is new.
void append(std::filesystem::path const& path, std::vector<measurement> const& lines);

//! Throws std::runtime_error for a file that append() has not written.
[[nodiscard]] std::vector<measurement> read(std::filesystem::path const& path);

}  // namespace network
