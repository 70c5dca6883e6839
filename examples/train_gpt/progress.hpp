// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Progress of a run on stderr: one live line on a terminal, a line per tenth elsewhere.

#include <chrono>
#include <cstdint>
#include <string>

namespace train_gpt {

class progress {
 public:
  //! `first` steps of `steps` are done already; a step learns from `tokens` bytes.
  progress(std::string label, std::int64_t first, std::int64_t steps, std::int64_t tokens,
           bool quiet);
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  //! Ends the live line.
  ~progress();

  //! After `step` steps; `loss` is that of the last one.
  void update(std::int64_t step, double loss);

 private:
  using clock = std::chrono::steady_clock;

  void show(std::int64_t step, double seconds) const;

  std::string label_;
  std::int64_t first_, steps_, tokens_;
  bool quiet_, terminal_;
  double loss_ = 0;  // smoothed over about 20 steps
  clock::time_point start_ = clock::now();
  clock::time_point shown_ = {};
};

}  // namespace train_gpt
