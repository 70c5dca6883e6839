// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a stage notes down about everything it does.

#include <cstdint>
#include <scape/pipeline/stage_schedule.hpp>

namespace paci {

//! A pass or a step of one stage. Trivially copyable: processes send it to each other.
struct event {
  scape::stage_action action = scape::stage_action::wait;
  std::int64_t micro_batch = 0;  //!< of a pass; of a step, the last one in its window
  std::int64_t begin = 0;        //!< nanoseconds, on the steady clock or since the run began
  std::int64_t end = 0;
  std::int64_t version = 0;    //!< of the weights it used; of a step, of those it made
  std::int64_t in_flight = 0;  //!< micro-batches between forward and backward, with this one
  std::int64_t drift = 0;      //!< of a backward: versions since the forward
  double loss = 0;             //!< of a forward of the last stage
  bool applied = false;        //!< a step that was not skipped
};

}  // namespace paci
