// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Milliseconds between laps.

#include <chrono>

namespace scape::detail {

class stopwatch {
 public:
  //! Milliseconds since construction or the last lap.
  double lap() noexcept {
    auto const now = std::chrono::steady_clock::now();
    auto const passed = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return passed;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace scape::detail
