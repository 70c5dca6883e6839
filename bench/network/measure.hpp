// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Steps of the dense and the sparse optimizer over MPI, timed, and what the cost model says.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <scape/comm/mpi.hpp>

#include "results.hpp"

namespace network {

struct settings {
  std::string link = "?";
  std::int64_t elements = std::int64_t{1} << 24;
  std::vector<double> densities = {0.1, 0.01};  //!< besides dense
  int wire = 4;                                 //!< bytes of a value: 4, or 2 for bfloat16
  int lag = 1;
  bool masks = true;   //!< false: masks are made but not gathered, to see what the gather costs
  double compute = 0;  //!< milliseconds of a sleep that stands for forward and backward
  double compute_share = 0;  //!< or: this share of the dense step
  int steps = 8;
  double seconds = 20;  //!< of one run, after which fewer steps will do
};

//! Collective. Calls done() after each run.
void measure(scape::mpi_communicator& comm, settings const& s,
             std::function<void(measurement const&)> const& done);

}  // namespace network
