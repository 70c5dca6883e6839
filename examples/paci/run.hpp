// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A run, and what it leaves behind for tables, curves and timelines.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "paci/event.hpp"
#include "paci/grid.hpp"
#include "paci/options.hpp"
#include "train_gpt/corpus.hpp"

namespace paci {

//! A stage's weights after so many of its backwards.
struct snapshot {
  std::int64_t backwards = 0;
  std::int64_t time = 0;  //!< as an event's
  std::vector<float> weights;
};

//! What one stage of one replica hands in.
struct stage_result {
  std::vector<event> log;
  std::vector<snapshot> snapshots;  //!< of replica 0, evenly spread; the last one is at the end
  std::int64_t slot_bytes = 0;      //!< of the activations of one micro-batch
  std::int64_t peak_in_flight = 0;
  std::int64_t max_drift = 0;
  std::int64_t skipped = 0;  //!< steps
};

struct validation_point {
  std::int64_t micro_batches = 0;
  double seconds = 0;
  double loss = 0;  //!< nats per byte on the held-out text
};

struct run_result {
  run_spec spec;
  std::vector<stage_result> places;  //!< by number_of()
  std::vector<validation_point> validation;
  std::uint64_t weights_hash = 0;  //!< of the last weights of all stages
};

//! Collective over the grid's processes: one run. Complete on process 0; elsewhere only `spec`.
[[nodiscard]] run_result run(options const& o, train_gpt::corpus const& text, run_spec const& spec,
                             grid& places);

}  // namespace paci
