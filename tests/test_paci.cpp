// SPDX-License-Identifier: Apache-2.0

//! @file
//! The example paci: what the event logs of pipelines of threads say, and what failures do.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <scape/comm/self.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paci/gpt_stage.hpp"
#include "paci/grid.hpp"
#include "paci/options.hpp"
#include "paci/paced_model.hpp"
#include "paci/place.hpp"
#include "paci/run.hpp"
#include "paci/stage_job.hpp"
#include "paci/stage_runner.hpp"
#include "paci/summary.hpp"
#include "paci/thread_grid.hpp"
#include "support/pipeline_checks.hpp"
#include "support/text_file.hpp"
#include "train_gpt/gpt.hpp"
#include "train_gpt/host_optimizer.hpp"
#include "train_gpt/random.hpp"
#include "train_gpt/usage_error.hpp"

namespace {

using namespace paci;
using namespace std::chrono_literals;
using pipeline_checks::drift_bound;
using pipeline_checks::facts_of;
using scape::stage_action;

// Makes sure that messages arrive in order and notes the weights that passes see. Its gradient is
// the number of the micro-batch.
class noting_model final : public stage_model {
 public:
  std::vector<float> seen;  // the first weight, by pass in the order of the log
  bool in_order = true;

  [[nodiscard]] std::int64_t stream_size() const override { return 100; }
  [[nodiscard]] std::int64_t slot_bytes() const override { return 1000; }
  double forward(pass const& p, std::span<float const> in, std::span<float> out) override {
    note(p, in, out);
    return 0;
  }
  void backward(pass const& p, std::span<float const> out_gradient, std::span<float> in_gradient,
                std::span<float> gradient) override {
    note(p, out_gradient, in_gradient);
    std::fill(gradient.begin(), gradient.end(), static_cast<float>(p.micro_batch));
  }

 private:
  void note(pass const& p, std::span<float const> in, std::span<float> out) {
    auto const number = static_cast<float>(p.micro_batch);
    in_order &= std::all_of(in.begin(), in.end(), [&](float x) { return x == number; });
    std::fill(out.begin(), out.end(), number);
    seen.push_back(p.weights[0]);
  }
};

struct pipeline {
  int stages = 1;
  std::int64_t window = 1;
  std::int64_t micro_batches = 1;
  bool flush = false;
};

struct noted_stage {
  std::vector<event> log;
  std::vector<float> seen;
  bool in_order = false;      // messages
  bool mean_is_right = true;  // of the windows' gradients
  std::int64_t peak = 0;
};

// Runs a pipeline of threads whose passes are paced. A step adds 1 to the weights: they are their
// own version number.
std::vector<noted_stage> run_noted(pipeline const& p,
                                   std::function<stage_pace(int stage)> const& pace_of_stage) {
  std::vector<noted_stage> stages(static_cast<std::size_t>(p.stages));
  auto const oversleep = measure_oversleep();
  run_thread_grid(p.stages, 1, [&](place const& at, scape::thread_communicator& comm, auto&) {
    auto& mine = stages[static_cast<std::size_t>(at.stage)];
    noting_model model;
    paced_model paced(model, pace_of_stage(at.stage), oversleep);
    std::vector<float> weights(3);
    std::int64_t done = 0;
    auto const step = [&](std::span<float> w, std::span<float const> gradient) {
      auto const last = static_cast<float>(done + p.window - 1);
      mine.mean_is_right &= gradient[0] == (static_cast<float>(done) + last) / 2;
      done += p.window;
      for (auto& x : w) x += 1;
      return true;
    };
    stage_runner<scape::thread_communicator> runner(comm,
                                                    {.stages = p.stages,
                                                     .stage = at.stage,
                                                     .window = p.window,
                                                     .micro_batches = p.micro_batches,
                                                     .flush = p.flush},
                                                    paced, weights, step);
    mine.log = runner.run();
    mine.peak = runner.schedule().peak_in_flight();
    mine.seen = std::move(model.seen);
    mine.in_order = model.in_order;
  });
  return stages;
}

std::vector<std::vector<event>> logs_of(std::vector<noted_stage> const& stages) {
  std::vector<std::vector<event>> logs;
  for (auto const& s : stages) logs.push_back(s.log);
  return logs;
}

double seconds_of(std::vector<noted_stage> const& stages) {
  auto begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = 0;
  for (auto const& s : stages) {
    begin = std::min(begin, s.log.front().begin);
    end = std::max(end, s.log.back().end);
  }
  return 1e-9 * static_cast<double>(end - begin);
}

// Of all stages but the last, the share of steps with nothing in flight: no flush, few of them.
double share_of_full_windows(pipeline const& p, std::vector<noted_stage> const& stages) {
  std::int64_t full = 0, steps = 0;
  for (int i = 0; i + 1 < p.stages; ++i) {
    auto const f = facts_of(stages[static_cast<std::size_t>(i)].log, p.stages, i, p.window);
    full += f.full_windows;
    steps += f.steps;
  }
  return static_cast<double>(full) / static_cast<double>(steps);
}

// What holds for every pipeline, whatever the times.
void check_logs(pipeline const& p, std::vector<noted_stage> const& stages) {
  CHECK(pipeline_checks::causal(logs_of(stages)));
  for (int i = 0; i < p.stages; ++i) {
    CAPTURE(i);
    auto const& s = stages[static_cast<std::size_t>(i)];
    auto const f = facts_of(s.log, p.stages, i, p.window);
    CHECK(f.in_order);
    CHECK(f.admitted);
    CHECK(f.windows);
    CHECK(f.sequential);
    CHECK(f.forwards == p.micro_batches);
    CHECK(f.backwards == p.micro_batches);
    CHECK(f.steps == p.micro_batches / p.window);
    CHECK(f.max_drift <= (p.flush ? 0 : drift_bound(p.stages, i, p.window)));
    CHECK(f.peak <= p.stages - i);
    CHECK(s.peak == f.peak);
    CHECK(s.in_order);
    CHECK(s.mean_is_right);
    if (p.flush) CHECK(f.early == 0);
    // One copy of the weights: every pass sees the newest, and the log says so.
    std::vector<float> logged;
    std::int64_t drift = 0;
    for (auto const& e : s.log) {
      if (e.action != stage_action::step) logged.push_back(static_cast<float>(e.version));
      drift = std::max(drift, e.drift);
    }
    CHECK(logged == s.seen);
    CHECK(drift == f.max_drift);
  }
}

void for_all(std::function<void(pipeline const&)> const& f) {
  for (int const stages : {2, 4, 8}) {
    for (std::int64_t const window : {1, 2, 4, 8}) {
      CAPTURE(stages);
      CAPTURE(window);
      f({stages, window, 32});
    }
  }
}

stage_pace pace(std::chrono::microseconds unit, double jitter = 0, std::uint64_t seed = 0) {
  return {unit, 2 * unit, jitter, seed};
}

train_gpt::corpus const& text() {
  static train_gpt::corpus const corpus(scape::testing::text_file().path());
  return corpus;
}

options parse(std::vector<char const*> arguments, std::optional<int> processes = {}) {
  arguments.insert(arguments.begin(), "paci");
  return parse_options(static_cast<int>(arguments.size()), arguments.data(), processes);
}

std::string message_of(std::vector<char const*> const& arguments,
                       std::optional<int> processes = {}) {
  try {
    (void)parse(arguments, processes);
  } catch (train_gpt::usage_error const& e) {
    return e.what();
  }
  return {};
}

options small_gpt(std::vector<char const*> more) {
  std::vector<char const*> arguments = {"--layers", "3",         "--width", "16",      "--heads",
                                        "2",        "--context", "8",       "--batch", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse(arguments);
}

std::vector<float> weights_of(run_result const& r, int stages, int replica = 0) {
  std::vector<float> all;
  for (int s = 0; s < stages; ++s) {
    auto const& part = r.places[number_of({s, replica}, stages)].snapshots.back().weights;
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// The same training without a pipeline: a loop over the whole model.
std::vector<float> plain_training(options const& o, run_spec const& spec) {
  auto training = o.training;
  training.steps = o.micro_batches / spec.window;
  auto const initial = train_gpt::initial_parameters(training.shape, spec.seed);
  train_gpt::aligned_vector<float> weights(initial.begin(), initial.end());
  train_gpt::aligned_vector<float> gradient(weights.size()), sum(weights.size());
  scape::self_communicator self;
  auto const layout = layout_of(training.shape, train_gpt::whole(training.shape), 1);
  auto const optimizer = train_gpt::make_host_optimizer(self, layout, training, o.optimizer);
  train_gpt::gpt<float> model(training.shape, training.batch);
  train_gpt::batch batch(training.batch, training.shape.context);
  for (std::int64_t m = 0; m < o.micro_batches; ++m) {
    sample(batch, text().training(), spec.seed, m, 0);
    model.loss_and_gradient(weights, batch.inputs, batch.targets, gradient);
    bool const first = m % spec.window == 0;
    for (std::size_t j = 0; j < sum.size(); ++j) {
      sum[j] = first ? gradient[j] : sum[j] + gradient[j];
    }
    if ((m + 1) % spec.window != 0) continue;
    for (auto& g : sum) g *= static_cast<float>(1.0 / static_cast<double>(spec.window));
    optimizer->step(weights, sum, training.learning_rate(o.optimizer, m / spec.window));
  }
  return {weights.begin(), weights.end()};
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("equal stages: drift, back-pressure, order and one weight copy, from the event logs") {
  for_all([](pipeline const& p) {
    auto const s = run_noted(p, [](int) { return pace(500us); });
    check_logs(p, s);
    for (int i = 0; i + 1 < p.stages; ++i) {
      CAPTURE(i);
      auto const f = facts_of(s[static_cast<std::size_t>(i)].log, p.stages, i, p.window);
      if (p.window == 1) CHECK(f.max_drift == p.stages - i - 1);  // the bound is reached
      CHECK(f.early > 0);  // forwards before the step of the window before
    }
  });
}

TEST_CASE("unequal and jittered stages: the same bounds") {
  for_all([](pipeline const& p) {
    check_logs(p, run_noted(p, [&](int i) { return pace(i == p.stages / 2 ? 900us : 300us); }));
    check_logs(p,
               run_noted(p, [](int i) { return pace(500us, 0.5, static_cast<std::uint64_t>(i)); }));
    check_logs(p, run_noted(p, [](int) { return stage_pace{}; }));
  });
}

TEST_CASE("with a flush no micro-batch is in flight at a step") {
  for_all([](pipeline p) {
    p.flush = true;
    auto const s = run_noted(p, [](int) { return pace(200us); });
    check_logs(p, s);
    for (int i = 0; i < p.stages; ++i) {
      auto const f = facts_of(s[static_cast<std::size_t>(i)].log, p.stages, i, p.window);
      CHECK(f.full_windows == f.steps);
    }
  });
}

TEST_CASE("without a flush a stage waits for its inputs alone, and the pipeline is busy") {
  // Passes of 6 ms and 12 ms: 24 + 3 of them against 6 times 4 + 3. That is a ratio of 1.56, but
  // asynchronous stages have no idle time in which to make up for what a loaded machine delays.
  pipeline const paci{4, 4, 24}, flush{4, 4, 24, true};
  auto const pace_of_stage = [](int) { return pace(6ms); };
  double ratio = 0, hesitation = 1e9, drained = 1;
  for (int i = 0; i < 5 && (ratio < 1.2 || hesitation > 3e6 || drained > 0.5); ++i) {
    auto const fast = run_noted(paci, pace_of_stage), slow = run_noted(flush, pace_of_stage);
    check_logs(paci, fast);
    check_logs(flush, slow);
    CHECK(seconds_of(slow) > 6 * 7 * 18e-3 * 0.9);
    ratio = seconds_of(slow) / seconds_of(fast);
    auto const idle = pipeline_checks::hesitations(logs_of(fast));
    hesitation = std::accumulate(idle.begin(), idle.end(), 0.0) / static_cast<double>(idle.size());
    drained = share_of_full_windows(paci, fast);
  }
  CHECK(ratio >= 1.2);
  CHECK(hesitation <= 3e6);  // nanoseconds: with its input there, a stage goes on at once
  CHECK(drained <= 0.5);     // steps are taken while micro-batches are in flight
}

TEST_CASE("one stage is plain training, bit for bit") {
  auto const grid = make_thread_grid();
  for (char const* const optimizer : {"dense-adams", "dense-adamw", "scape-adams"}) {
    auto const o = small_gpt({"--stages", "1", "--micro-batches", "24", "--window", "1,2,4",
                              "--flush-window", "3", "--optimizer", optimizer});
    for (auto const& spec : o.runs) {
      CAPTURE(spec.name());
      CHECK(same_bits(weights_of(run(o, text(), spec, *grid), 1), plain_training(o, spec)));
    }
  }
}

TEST_CASE("a pipeline with a flush is plain training, bit for bit, where nothing is clipped") {
  auto const grid = make_thread_grid();
  for (char const* const stages : {"2", "3", "5"}) {
    auto const o = small_gpt({"--stages", stages, "--micro-batches", "24", "--schedule", "flush",
                              "--flush-window", "1,4", "--clip", "0"});
    for (auto const& spec : o.runs) {
      CAPTURE(spec.name());
      CHECK(same_bits(weights_of(run(o, text(), spec, *grid), o.stages), plain_training(o, spec)));
    }
  }
}

TEST_CASE("asynchronous stages learn, with replicas and sparse steps") {
  auto const grid = make_thread_grid();
  auto const o =
      small_gpt({"--stages", "4", "--replicas", "2", "--micro-batches", "240", "--schedule", "paci",
                 "--window", "4", "--optimizer", "scape-adams", "--lr", "1e-2"});
  auto const r = run(o, text(), o.runs[0], *grid);
  for (int replica = 0; replica < 2; ++replica) {
    for (int s = 0; s < 4; ++s) {
      auto const& place = r.places[number_of({s, replica}, 4)];
      auto const f = facts_of(place.log, 4, s, 4);
      CHECK(f.in_order);
      CHECK(f.admitted);
      CHECK(f.windows);
      CHECK(f.steps == 60);
      CHECK(f.max_drift <= drift_bound(4, s, 4));
      CHECK(place.skipped == 0);
      CHECK(place.max_drift == f.max_drift);
    }
  }
  CHECK(r.validation.back().micro_batches == 240);
  CHECK(r.validation.back().loss < r.validation.front().loss - 0.5);
}

TEST_CASE("a run whose loss is no number neither sets the target nor wins") {
  auto const o = small_gpt(
      {"--stages", "2", "--micro-batches", "16", "--window", "4,8", "--flush-window", "4,8"});
  auto const grid = make_thread_grid();
  std::vector<run_result> results;
  for (auto const& spec : o.runs) results.push_back(run(o, text(), spec, *grid));
  REQUIRE(results.size() == 5);  // two flushes, a = 1, 4 and 8
  auto const losses = [&](std::array<double, 5> const& last) {
    for (std::size_t i = 0; i < 5; ++i) results[i].validation.back().loss = last[i];
  };
  double const nan = std::numeric_limits<double>::quiet_NaN();
  losses({nan, 2, 9, 4, nan});
  CHECK(target_of(o, 1, results) == 4.0);
  auto const rows = summarise(o, results);
  CHECK_FALSE(rows[0].loss.has_value());
  CHECK_FALSE(rows[4].loss_spread.has_value());
  CHECK(best_flush(rows, &summary_row::loss) == 2.0);
  auto const table = bench::text(summary_table(o, rows));
  CHECK(table.find("diverged") != std::string::npos);
  CHECK(table.find("nan") == std::string::npos);
  losses({nan, nan, nan, nan, nan});
  CHECK_FALSE(target_of(o, 1, results).has_value());
  CHECK_FALSE(best_flush(summarise(o, results), &summary_row::loss).has_value());
}

namespace {

// One stage of the GPT does something else at one micro-batch.
class faulty_model final : public stage_model {
 public:
  faulty_model(stage_model& model, std::int64_t at, std::function<void(std::span<float>)> fault)
      : model_(model), at_(at), fault_(std::move(fault)) {}

  [[nodiscard]] std::int64_t stream_size() const override { return model_.stream_size(); }
  [[nodiscard]] std::int64_t slot_bytes() const override { return model_.slot_bytes(); }
  double forward(pass const& p, std::span<float const> in, std::span<float> out) override {
    double const loss = model_.forward(p, in, out);
    if (p.micro_batch == at_) fault_(out);
    return loss;
  }
  void backward(pass const& p, std::span<float const> out_gradient, std::span<float> in_gradient,
                std::span<float> gradient) override {
    model_.backward(p, out_gradient, in_gradient, gradient);
  }

 private:
  stage_model& model_;
  std::int64_t at_;
  std::function<void(std::span<float>)> fault_;
};

struct faulty_result {
  std::vector<event> log;
  std::vector<std::vector<float>> weights;    // after every window
  std::vector<std::vector<float>> residuals;  // of the sparse optimizer, the same
};

// Three stages, two replicas, four windows of two; stage 1 of replica 1 meets the fault at
// micro-batch 3, in the second window.
std::vector<faulty_result> run_faulty(std::function<void(std::span<float>)> const& fault,
                                      std::chrono::milliseconds patience = 20s) {
  auto const o = small_gpt({"--stages", "3"});
  std::vector<faulty_result> results(6);
  auto const stage = [&](place const& at, scape::thread_communicator& comm,
                         scape::thread_communicator& replicas) {
    auto& mine = results[number_of(at, 3)];
    stage_job const job{o, text(), o.runs[0], 0ns};
    auto const cut = cut_of(o.training.shape, 3, at.stage);
    auto parts = make_parts(job, at);
    bool const here = at.stage == 1 && at.replica == 1;
    faulty_model model(*parts.model, here ? 3 : -1, fault);
    using optimizer = scape::sparse_optimizer<scape::adams, scape::thread_communicator>;
    auto const layout = layout_of(o.training.shape, cut, 2);
    auto const recipe = scape::sparse_optimizer_options::staleness_aware(0.2);
    scape::host_buffer storage(optimizer::storage_bytes(layout, recipe));
    scape::host_buffer scratch(optimizer::scratch_bytes(layout, recipe));
    scape::host_context const context{scratch.bytes()};
    optimizer opt(replicas, layout, recipe, storage.bytes());
    auto const step = [&](std::span<float> w, std::span<float const> g) {
      return !opt.step(context, w, g, {.lr = 1e-2F}).skipped;
    };
    runner_options options{.patience = patience};
    options.after_step = [&](std::int64_t) {
      mine.weights.emplace_back(parts.weights.begin(), parts.weights.end());
      mine.residuals.emplace_back(opt.residual().begin(), opt.residual().end());
    };
    stage_runner<scape::thread_communicator> runner(
        comm, {.stages = 3, .stage = at.stage, .window = 2, .micro_batches = 8}, model,
        parts.weights, step, options);
    mine.log = runner.run();
  };
  run_thread_grid(3, 2, stage, {.deadline = patience});
  return results;
}

}  // namespace

TEST_CASE("a NaN: its window's step is skipped on all replicas, weights and residuals stay") {
  auto const results =
      run_faulty([](std::span<float> out) { out[0] = std::numeric_limits<float>::quiet_NaN(); });
  for (int s = 0; s < 3; ++s) {
    CAPTURE(s);
    for (int replica = 0; replica < 2; ++replica) {
      auto const& r = results[number_of({s, replica}, 3)];
      auto const f = facts_of(r.log, 3, s, 2);
      CHECK(f.in_order);
      CHECK(f.windows);
      CHECK(f.steps == 3);
      CHECK(f.skipped == 1);
      auto const skipped = std::find_if(r.log.begin(), r.log.end(), [](event const& e) {
        return e.action == stage_action::step && !e.applied;
      });
      CHECK(skipped->micro_batch == 3);
      CHECK(same_bits(r.weights[0], r.weights[1]));
      CHECK(same_bits(r.residuals[0], r.residuals[1]));
      CHECK_FALSE(same_bits(r.weights[1], r.weights[2]));
      CHECK(std::all_of(r.weights[3].begin(), r.weights[3].end(),
                        [](float x) { return std::isfinite(x); }));
    }
    CHECK(same_bits(results[number_of({s, 0}, 3)].weights[3],
                    results[number_of({s, 1}, 3)].weights[3]));
  }
}

TEST_CASE("a stage that throws ends the grid with its exception") {
  auto const begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH_AS(
      run_faulty([](std::span<float>) { throw std::runtime_error("stage 1 is out of order"); }),
      "stage 1 is out of order", std::runtime_error);
  CHECK(std::chrono::steady_clock::now() - begin < 15s);  // nobody waited for the deadline
}

TEST_CASE("a stage that hangs ends the grid at the deadline, with an error that names it") {
  std::string message;
  try {
    run_faulty([](std::span<float>) { std::this_thread::sleep_for(3s); }, 300ms);
  } catch (scape::peer_error const& e) {
    message = e.what();
  }
  CHECK(message.find("rank 1 did not start") != std::string::npos);
}

TEST_CASE("layers are cut into stages without gaps") {
  for (std::int64_t const layers : {1, 3, 6, 7}) {
    train_gpt::gpt_shape const shape{.layers = layers, .width = 8, .heads = 2, .tied = false};
    for (int stages = 1; stages <= layers + 2; ++stages) {
      std::int64_t end = 0, block = 0;
      for (int s = 0; s < stages; ++s) {
        auto const cut = cut_of(shape, stages, s);
        auto const range = parameters_of(shape, cut);
        CHECK(cut.embedding == (s == 0));
        CHECK(cut.head == (s + 1 == stages));
        CHECK(cut.first == block);
        CHECK(range.begin == end);
        CHECK(range.end > range.begin);
        CHECK(layout_of(shape, cut, 2).size() == range.end - range.begin);
        end = range.end;
        block = cut.last;
      }
      CHECK(end == parameter_count(shape));
      CHECK(block == layers);
    }
  }
}

TEST_CASE("the time to a loss lies between two looks at it") {
  std::vector<validation_point> const points = {
      {1, 1.0, 5.0}, {2, 2.0, 4.0}, {3, 3.0, 4.5}, {4, 4.0, 3.0}};
  CHECK(seconds_to(6.0, points) == 1.0);
  CHECK(seconds_to(5.0, points) == 1.0);
  CHECK(seconds_to(4.25, points) == 1.75);
  CHECK(seconds_to(3.75, points) == 3.5);
  CHECK_FALSE(seconds_to(2.0, points));
}

TEST_CASE("the command line says which runs to make") {
  auto const names = [](options const& o) {
    std::string all;
    for (auto const& r : o.runs) all += r.name() + "/" + std::to_string(r.seed) + " ";
    return all;
  };
  CHECK(names(parse({})) == "flush-4/1 flush-8/1 async/1 paci-4/1 paci-8/1 ");
  CHECK(names(parse({"--schedule", "paci", "--window", "2,4", "--seeds", "2", "--seed", "5"})) ==
        "paci-2/5 paci-4/5 paci-2/6 paci-4/6 ");
  auto const o = parse({"--slower", "1,2.5"});
  CHECK(o.factor(1) == 2.5);
  CHECK(o.factor(2) == 1.0);
  CHECK(parse({"--workload", "sleep"}).paced());
  CHECK(message_of({"--stages", "9"}).find("6 blocks, embedding and head are 8") !=
        std::string::npos);
  CHECK(message_of({"--stages", "9", "--workload", "sleep"}).empty());
  CHECK(message_of({"--micro-batches", "100", "--window", "8"})
            .find("not a multiple of the window"
                  " 8") != std::string::npos);
  CHECK(message_of({"--window", "0"}).find("--window is 0") != std::string::npos);
  CHECK(message_of({"--stages", "4", "--replicas", "2"}, 6)
            .find("8 places, the number of "
                  "processes is 6") != std::string::npos);
  CHECK(message_of({"--jitter", "2"}).find("--jitter is 2") != std::string::npos);
  CHECK(message_of({"--forward-ms", "-1"}).find("--forward-ms is -1") != std::string::npos);
}
