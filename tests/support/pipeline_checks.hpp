// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What the event log of a pipeline says, counted anew and without stage_schedule.
//!
//! An Event has action, micro_batch (of a pass), begin, end and applied (of a step).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <scape/pipeline/stage_schedule.hpp>
#include <vector>

namespace pipeline_checks {

//! ceil((N - i) / a) of stage i = stage + 1
inline std::int64_t drift_bound(int stages, int stage, std::int64_t window) {
  return (stages - stage - 1 + window - 1) / window;
}

//! One stage's log, in the order of its events.
struct stage_facts {
  bool in_order = true;  //!< both kinds of passes in the order of the micro-batches, none twice
  bool admitted = true;  //!< fewer than N + 1 - i micro-batches in flight at every forward's begin
  bool windows = true;   //!< a step follows each `window` backwards at once, and no other
  bool sequential = true;         //!< no two events at a time
  std::int64_t forwards = 0;      //!< micro-batches
  std::int64_t backwards = 0;     //!< micro-batches
  std::int64_t steps = 0;         //!< applied
  std::int64_t skipped = 0;       //!< steps
  std::int64_t max_drift = 0;     //!< versions between a forward and its backward
  std::int64_t peak = 0;          //!< micro-batches in flight
  std::int64_t early = 0;         //!< forwards of a window before the step of the one before
  std::int64_t full_windows = 0;  //!< steps with nothing in flight
};

template <class Event>
stage_facts facts_of(std::vector<Event> const& log, int stages, int stage, std::int64_t window) {
  using enum scape::stage_action;
  stage_facts f;
  std::vector<std::int64_t> versions;  // by micro-batch, at its forward
  std::int64_t in_window = 0;
  for (std::size_t i = 0; i < log.size(); ++i) {
    auto const& e = log[i];
    f.sequential &= e.begin <= e.end && (i == 0 || log[i - 1].end <= e.begin);
    f.windows &= (e.action == step) == (in_window == window);
    switch (e.action) {
      case forward:
        f.in_order &= e.micro_batch == f.forwards;
        f.admitted &= f.forwards - f.backwards < stages - stage;
        f.early += static_cast<std::int64_t>(f.forwards / window > f.steps + f.skipped);
        versions.push_back(f.steps);
        ++f.forwards;
        f.peak = std::max(f.peak, f.forwards - f.backwards);
        break;
      case backward:
        f.in_order &= e.micro_batch == f.backwards && f.backwards < f.forwards;
        if (!f.in_order) return f;
        f.max_drift =
            std::max(f.max_drift, f.steps - versions[static_cast<std::size_t>(f.backwards)]);
        ++f.backwards;
        ++in_window;
        break;
      case step:
        in_window = 0;
        ++(e.applied ? f.steps : f.skipped);
        f.full_windows += static_cast<std::int64_t>(f.forwards == f.backwards);
        break;
      case scape::stage_action::wait:
        f.in_order = false;
        break;
    }
  }
  return f;
}

//! When each micro-batch's pass of one kind ended.
template <class Event>
std::vector<std::int64_t> ends_of(std::vector<Event> const& log, scape::stage_action action) {
  std::vector<std::int64_t> ends;
  for (auto const& e : log) {
    if (e.action == action) ends.push_back(e.end);
  }
  return ends;
}

//! Whether every pass began after the pass that its input comes from had ended. Logs by stage.
template <class Event>
bool causal(std::vector<std::vector<Event>> const& logs) {
  using enum scape::stage_action;
  for (std::size_t i = 0; i + 1 < logs.size(); ++i) {
    auto const produced = ends_of(logs[i], forward);
    auto const returned = ends_of(logs[i + 1], backward);
    for (auto const& e : logs[i + 1]) {
      if (e.action == forward && e.begin < produced[static_cast<std::size_t>(e.micro_batch)])
        return false;
    }
    for (auto const& e : logs[i]) {
      if (e.action == backward && e.begin < returned[static_cast<std::size_t>(e.micro_batch)])
        return false;
    }
  }
  return true;
}

//! The times for which stages did nothing although their next event could have begun: its input
//! was there and they had nothing else to do. Without a flush nothing else holds a stage back.
template <class Event>
std::vector<std::int64_t> hesitations(std::vector<std::vector<Event>> const& logs) {
  using enum scape::stage_action;
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    std::vector<std::int64_t> produced, returned;
    if (i > 0) produced = ends_of(logs[i - 1], forward);
    if (i + 1 < logs.size()) returned = ends_of(logs[i + 1], backward);
    std::int64_t free = logs[i].front().begin;
    for (auto const& e : logs[i]) {
      auto possible = free;
      auto const m = static_cast<std::size_t>(e.micro_batch);
      if (e.action == forward && i > 0) possible = std::max(possible, produced[m]);
      if (e.action == backward && i + 1 < logs.size()) possible = std::max(possible, returned[m]);
      all.push_back(e.begin - possible);
      free = e.end;
    }
  }
  return all;
}

}  // namespace pipeline_checks
