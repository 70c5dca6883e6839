// SPDX-License-Identifier: Apache-2.0

//! @file
//! stage_schedule in a simulated pipeline with exact integer times.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <scape/pipeline/stage_schedule.hpp>
#include <string>
#include <vector>

#include "support/pipeline_checks.hpp"
#include "support/raises.hpp"

namespace {

using pipeline_checks::causal;
using pipeline_checks::drift_bound;
using pipeline_checks::facts_of;
using pipeline_checks::hesitations;
using scape::stage_action;
using scape::stage_schedule;
using scape::testing::rejects;

struct event {
  stage_action action;
  std::int64_t micro_batch;
  std::int64_t begin, end;
  bool applied;
};

// The time a pass of a stage takes.
using pass_time = std::function<std::int64_t(int stage, stage_action action)>;

struct simulation {
  std::vector<std::vector<event>> logs;  // by stage
  std::vector<stage_schedule> schedules;
  std::int64_t makespan = 0;
};

// Every stage acts as soon as it can; what is sent arrives at once, steps take no time.
simulation simulate(int stages, std::int64_t window, std::int64_t micro_batches, bool flush,
                    pass_time const& time) {
  simulation s;
  auto const n = static_cast<std::size_t>(stages);
  s.logs.resize(n);
  for (int i = 0; i < stages; ++i) {
    s.schedules.emplace_back(scape::stage_schedule_options{.stages = stages,
                                                           .stage = i,
                                                           .window = window,
                                                           .micro_batches = micro_batches,
                                                           .flush = flush});
  }
  constexpr auto never = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> until(n, never);                 // the end of what a stage does
  std::vector<std::int64_t> produced(n, 0), returned(n, 0);  // passes that have ended
  for (std::int64_t now = 0;;) {
    for (std::size_t i = 0; i < n; ++i) {
      auto& schedule = s.schedules[i];
      while (until[i] == never) {
        bool const activation = i == 0 || produced[i - 1] > schedule.forwards();
        bool const gradient = i + 1 == n || returned[i + 1] > schedule.backwards();
        auto const action = schedule.next(activation, gradient);
        if (action == stage_action::wait) break;
        if (action == stage_action::step) {
          schedule.step();
          s.logs[i].push_back({action, 0, now, now, true});
          continue;
        }
        auto const micro_batch =
            action == stage_action::forward ? schedule.forward() : schedule.backward().micro_batch;
        until[i] = now + time(static_cast<int>(i), action);
        s.logs[i].push_back({action, micro_batch, now, until[i], false});
      }
    }
    now = *std::min_element(until.begin(), until.end());
    if (now == never) return s;
    s.makespan = now;
    for (std::size_t i = 0; i < n; ++i) {
      if (until[i] != now) continue;
      until[i] = never;
      ++(s.logs[i].back().action == stage_action::forward ? produced : returned)[i];
    }
  }
}

std::int64_t equal_times(int, stage_action action) {
  return action == stage_action::forward ? 10 : 20;
}

// The facts that hold whatever the times are.
void check(simulation const& s, int stages, std::int64_t window, std::int64_t micro_batches,
           bool flush) {
  CHECK(causal(s.logs));
  for (int i = 0; i < stages; ++i) {
    CAPTURE(i);
    auto const& schedule = s.schedules[static_cast<std::size_t>(i)];
    auto const f = facts_of(s.logs[static_cast<std::size_t>(i)], stages, i, window);
    CHECK(schedule.finished());
    CHECK(f.in_order);
    CHECK(f.admitted);
    CHECK(f.windows);
    CHECK(f.sequential);
    CHECK(f.forwards == micro_batches);
    CHECK(f.backwards == micro_batches);
    CHECK(f.steps == micro_batches / window);
    CHECK(f.peak <= stages - i);
    CHECK(f.max_drift <= (flush ? 0 : drift_bound(stages, i, window)));
    if (flush) CHECK(f.early == 0);
    if (flush) CHECK(f.full_windows == f.steps);
    CHECK(schedule.max_drift() == f.max_drift);
    CHECK(schedule.peak_in_flight() == f.peak);
    CHECK(schedule.version() == f.steps);
  }
  if (!flush) CHECK(std::ranges::max(hesitations(s.logs)) == 0);
}

}  // namespace

TEST_CASE("equal stages: the bounds are reached, no bubble but at the ends") {
  for (int const stages : {1, 2, 3, 4, 8}) {
    for (std::int64_t const window : {1, 2, 3, 4, 8}) {
      CAPTURE(stages);
      CAPTURE(window);
      std::int64_t const micro_batches = 8 * 3 * window;
      auto const s = simulate(stages, window, micro_batches, false, equal_times);
      check(s, stages, window, micro_batches, false);
      CHECK(s.makespan == (micro_batches + stages - 1) * 30);
      for (int i = 0; i < stages; ++i) {
        auto const& schedule = s.schedules[static_cast<std::size_t>(i)];
        CHECK(schedule.max_drift() == drift_bound(stages, i, window));
        CHECK(schedule.peak_in_flight() == stages - i);
        auto const f = facts_of(s.logs[static_cast<std::size_t>(i)], stages, i, window);
        if (i + 1 < stages) CHECK(f.full_windows == 1);  // the last
      }
    }
  }
}

TEST_CASE("equal stages with a flush: the bubbles of 1F1B") {
  for (int const stages : {1, 2, 3, 4, 8}) {
    for (std::int64_t const window : {1, 2, 3, 4, 8, 16}) {
      CAPTURE(stages);
      CAPTURE(window);
      auto const s = simulate(stages, window, 5 * window, true, equal_times);
      check(s, stages, window, 5 * window, true);
      CHECK(s.makespan == 5 * (window + stages - 1) * 30);
      for (int i = 0; i < stages; ++i) {
        CHECK(s.schedules[static_cast<std::size_t>(i)].peak_in_flight() ==
              std::min<std::int64_t>(window, stages - i));
      }
    }
  }
}

TEST_CASE("unequal and jittered stages: the bounds hold, the slowest stage sets the pace") {
  std::mt19937_64 random(1);
  for (int const stages : {2, 4, 8}) {
    for (std::int64_t const window : {1, 2, 4, 8}) {
      for (int slow = 0; slow < stages; ++slow) {
        CAPTURE(stages);
        CAPTURE(window);
        CAPTURE(slow);
        std::int64_t const micro_batches = 64;
        auto const unequal = [&](int stage, stage_action action) {
          return (stage == slow ? 3 : 1) * equal_times(stage, action) + stage;
        };
        auto const jittered = [&](int stage, stage_action action) {
          auto const t = equal_times(stage, action);
          return t / 2 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(t + 1));
        };
        for (bool const flush : {false, true}) {
          CAPTURE(flush);
          auto const s = simulate(stages, window, micro_batches, flush, unequal);
          check(s, stages, window, micro_batches, flush);
          auto const pace = equal_times(slow, stage_action::forward) * 9 + 2 * slow;
          CHECK(s.makespan >= micro_batches * pace);
          // Backwards go first, so a slow stage does them in bursts that the others may not bridge.
          if (!flush) CHECK(8 * s.makespan <= 9 * (micro_batches + stages - 1) * pace);
          check(simulate(stages, window, micro_batches, flush, jittered), stages, window,
                micro_batches, flush);
        }
      }
    }
  }
}

TEST_CASE("a stage that stands still stops the ones before it at their limits") {
  int const stages = 6, still = 3;
  constexpr std::int64_t ages = 1'000'000;
  auto const s = simulate(stages, 2, 64, false, [&](int stage, stage_action action) {
    return stage == still ? ages : equal_times(stage, action);
  });
  // When the stage ends its first pass, the ones before have filled up; those behind have nothing.
  for (int i = 0; i < stages; ++i) {
    auto const& log = s.logs[static_cast<std::size_t>(i)];
    auto const passes = std::count_if(log.begin(), log.end(), [&](event const& e) {
      return e.action == stage_action::forward && e.begin < ages;
    });
    CHECK(passes == (i < still ? stages - i : i == still ? 1 : 0));
  }
}

TEST_CASE("skipped steps close their windows and leave the version") {
  stage_schedule s({.stages = 3, .stage = 0, .window = 2, .micro_batches = 8});
  CHECK(s.limit() == 3);
  CHECK(s.drift_bound() == 1);
  for (int i = 0; i < 3; ++i) CHECK(s.forward() == i);
  CHECK(s.next(true, false) == stage_action::wait);
  CHECK(s.next(false, true) == stage_action::backward);
  CHECK(s.backward().micro_batch == 0);
  CHECK(s.next(true, true) == stage_action::backward);
  CHECK(s.next(true, false) == stage_action::forward);
  CHECK(s.backward().drift == 0);
  CHECK(s.next(true, true) == stage_action::step);
  CHECK(s.next(false, false) == stage_action::step);
  s.step(false);
  CHECK(s.version() == 0);
  CHECK(s.skipped() == 1);
  CHECK(s.windows() == 1);
  CHECK(s.backward().drift == 0);
  CHECK(s.forward() == 3);
  CHECK(s.backward().micro_batch == 3);
  s.step();
  CHECK(s.version() == 1);
  CHECK(s.max_drift() == 0);
  CHECK(s.slot(7) == 1);
}

TEST_CASE("with a flush, the next window waits for the step even where it was skipped") {
  stage_schedule s({.stages = 4, .stage = 1, .window = 1, .micro_batches = 2, .flush = true});
  CHECK(s.forward() == 0);
  CHECK(s.next(true, false) == stage_action::wait);
  CHECK_FALSE(s.admits_forward());
  CHECK(s.backward().micro_batch == 0);
  CHECK_FALSE(s.admits_forward());
  s.step(false);
  CHECK(s.admits_forward());
  CHECK_FALSE(s.finished());
  s.forward();
  s.backward();
  CHECK_FALSE(s.finished());
  s.step();
  CHECK(s.finished());
  CHECK(s.next(true, true) == stage_action::wait);
}

TEST_CASE("what is not admitted is refused and changes nothing") {
  stage_schedule s({.stages = 2, .stage = 1, .window = 1, .micro_batches = 1});
  CHECK(rejects([&] { s.backward(); }, {"0 micro-batches in flight"}));
  CHECK(rejects([&] { s.step(); }, {"0 of 1 backwards"}));
  s.forward();
  CHECK(rejects([&] { s.forward(); }, {"1 of at most 1"}));
  s.backward();
  CHECK(rejects([&] { s.forward(); }, {"not admitted"}));
  s.step();
  CHECK(rejects([&] { s.forward(); }, {"1 forwards and 1 backwards of 1"}));
  CHECK(s.forwards() == 1);
  CHECK(s.version() == 1);
  CHECK(s.finished());
  CHECK(stage_schedule({.micro_batches = 0}).finished());
}

TEST_CASE("options are checked") {
  CHECK(rejects([] { stage_schedule const s({.stages = 0}); }, {"stages is 0"}));
  CHECK(rejects([] { stage_schedule const s({.stages = 2, .stage = 2}); },
                {"stage 2 is not one of 2"}));
  CHECK(rejects([] { stage_schedule const s({.stages = 2, .stage = -1}); }, {"stage -1"}));
  CHECK(rejects([] { stage_schedule const s({.window = 0}); }, {"window is 0"}));
  CHECK(rejects([] { stage_schedule const s({.window = 4, .micro_batches = 10}); },
                {"multiple of the window, 4"}));
  CHECK(rejects([] { stage_schedule const s({.micro_batches = -1}); }, {"micro-batches is -1"}));
}
