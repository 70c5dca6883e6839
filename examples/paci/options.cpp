// SPDX-License-Identifier: Apache-2.0
#include "paci/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <utility>

#include "train_gpt/command_line.hpp"

namespace paci {
namespace {

using train_gpt::require, train_gpt::require_at_least, train_gpt::require_in;

// What the command line says about the runs, before they are spelled out.
struct request {
  std::string schedule = "compare";
  std::vector<std::int64_t> windows = {4, 8};
  std::vector<std::int64_t> flush_windows = {4, 8};
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1;
  std::string optimizer = "dense-adams";
  std::optional<double> forward_ms, backward_ms;
  std::optional<std::int64_t> micro_batches;
  std::optional<std::string> comm;
};

std::vector<run_spec> make_runs(request const& r) {
  std::vector<run_spec> runs;
  auto const add = [&](run_spec const& run) {
    if (std::ranges::find(runs, run) == runs.end()) runs.push_back(run);
  };
  for (std::uint64_t i = 0; i < r.seeds; ++i) {
    auto const seed = r.seed + i;
    if (r.schedule == "flush" || r.schedule == "compare") {
      for (auto const m : r.flush_windows) add({true, m, seed});
    }
    if (r.schedule == "async" || r.schedule == "compare") add({false, 1, seed});
    if (r.schedule == "paci" || r.schedule == "compare") {
      for (auto const a : r.windows) add({false, a, seed});
    }
  }
  return runs;
}

void check(options const& o, std::optional<int> processes) {
  auto const& t = o.training;
  train_gpt::check(t.shape);
  require_in("--stages", o.stages, 1, 256);
  require_in("--replicas", o.replicas, 1, 256);
  if (!processes) require_in("--stages times --replicas", o.stages * o.replicas, 1, 1024);
  if (o.workload == workload_kind::gpt) {
    require(o.stages <= t.shape.layers + 2,
            fmt::format("--stages is {}; {} blocks, embedding and head are {} layers", o.stages,
                        t.shape.layers, t.shape.layers + 2));
  }
  if (processes) {
    require(o.stages * o.replicas == *processes,
            fmt::format("--comm mpi: {} stages times {} replicas are {} places, the number of "
                        "processes is {}",
                        o.stages, o.replicas, o.stages * o.replicas, *processes));
  }
  train_gpt::require_size("--batch", t.batch);
  require_in("--micro-batches", static_cast<double>(o.micro_batches), 1, 1e8);
  for (auto const& run : o.runs) {
    require_at_least(run.flush ? "--flush-window" : "--window", run.window, std::int64_t{1});
    require(o.micro_batches % run.window == 0,
            fmt::format("--micro-batches {} is not a multiple of the window {}", o.micro_batches,
                        run.window));
  }
  require_in("--forward-ms", o.forward_ms, 0, 1e6);
  require_in("--backward-ms", o.backward_ms, 0, 1e6);
  require(o.workload == workload_kind::gpt || o.paced(),
          "--workload sleep needs --forward-ms or --backward-ms");
  require_in("--jitter", o.jitter, 0, 1);
  require(std::ssize(o.slower) <= o.stages, "--slower has more factors than there are stages");
  for (double const factor : o.slower) require_in("--slower", factor, 0.01, 100);
  require_in("--weight-decay", t.weight_decay, 0, 1e6);
  require_at_least("--clip", t.clip, 0.0);
  require_in("--density", o.optimizer.density, 1e-6, 1);
  require_in("--warmup", t.warmup, 0, 1);
  train_gpt::require_beta("--beta1", t.beta1);
  train_gpt::require_beta("--beta2", t.beta2);
  train_gpt::require_positive("--lr", o.optimizer.lr);
  if (o.target) train_gpt::require_positive("--target", *o.target);
}

void add_run_options(CLI::App& app, options& o, request& r) {
  std::map<std::string, workload_kind> const workloads{{"gpt", workload_kind::gpt},
                                                       {"sleep", workload_kind::sleep}};
  app.add_option_function<std::string>(
         "--workload",
         [&o, workloads](std::string const& name) { o.workload = workloads.at(name); },
         "gpt, or sleep: nothing but the passes' times")
      ->check(CLI::IsMember(workloads))
      ->default_str("gpt")
      ->group("Runs");
  app.add_option("--schedule", r.schedule,
                 "flush (1F1B), async (a step per micro-batch), paci, or compare: all of them")
      ->check(CLI::IsMember({"flush", "async", "paci", "compare"}))
      ->group("Runs");
  app.add_option("--window", r.windows, "micro-batches per step of paci; several: a run for each")
      ->delimiter(',')
      ->take_all()
      ->group("Runs");
  app.add_option("--flush-window", r.flush_windows, "the same of flush")
      ->delimiter(',')
      ->take_all()
      ->group("Runs");
  train_gpt::add_seed_option(app, r.seed, "of weights, batches and jitter")->group("Runs");
  app.add_option("--seeds", r.seeds, "repeat with this many successive seeds")->group("Runs");
  app.add_option(
         "--target", o.target,
         "validation loss whose time is looked for [the highest final one of flush and paci]")
      ->group("Runs");

  app.add_option("--stages", o.stages, "of the pipeline")->group("Pipeline");
  app.add_option("--replicas", o.replicas, "data-parallel replicas of every stage")
      ->group("Pipeline");
  app.add_option("--micro-batches", r.micro_batches,
                 "per replica and run, a multiple of every window [3200; sleep: 160]")
      ->group("Pipeline");
  app.add_option("--forward-ms", r.forward_ms,
                 "least time of a stage's forward, the rest is slept [0; sleep: 10]")
      ->group("Pipeline");
  app.add_option("--backward-ms", r.backward_ms, "the same of its backward [0; sleep: 20]")
      ->group("Pipeline");
  // What it says has been acted upon: see train_gpt::requested_comm.
  app.add_option("--comm", r.comm,
                 "what the stages are: threads of this process, or the processes that an mpi "
                 "launcher started [mpi if it started several]")
      ->check(CLI::IsMember({"threads", "mpi"}))
      ->group("Pipeline");
  app.add_option("--jitter", o.jitter, "every pass takes 1 - jitter to 1 + jitter of its time")
      ->group("Pipeline");
  app.add_option("--slower", o.slower, "factors of the first stages' times")
      ->delimiter(',')
      ->take_all()
      ->group("Pipeline");
}

void add_training_options(CLI::App& app, options& o, request& r) {
  auto& t = o.training;
  app.add_option("--optimizer", r.optimizer, "of every stage, on its replicas' communicator")
      ->check(CLI::IsMember({"dense-adams", "dense-adamw", "scape-adams", "scape-adamw"}))
      ->group("Training");
  app.add_option("--density", o.optimizer.density, "of the scape optimizers")->group("Training");
  app.add_option("--batch", t.batch, "sequences per micro-batch")->group("Training");
  app.add_option("--lr", o.optimizer.lr, "peak learning rate")->group("Training");
  app.add_option("--warmup", t.warmup, "share of the steps with rising learning rate")
      ->group("Training");
  app.add_option("--beta1", t.beta1, "decay of the first moment")->group("Training");
  app.add_option("--beta2", t.beta2, "decay of the second moment")->group("Training");
  app.add_option("--weight-decay", t.weight_decay, "decoupled weight decay")->group("Training");
  app.add_option("--clip", t.clip, "limit of the norm of a stage's gradient, 0 for none")
      ->group("Training");

  train_gpt::add_shape_options(app, t.shape);

  app.add_option("--corpus", t.corpus, "file or folder to learn from")->group("Files");
  app.add_option("--out", t.out, "output folder")->group("Files");
  app.add_flag("--quiet", t.quiet, "no progress on stderr")->group("Files");
}

}  // namespace

std::string run_spec::name() const {
  if (flush) return fmt::format("flush-{}", window);
  return window == 1 ? "async" : fmt::format("paci-{}", window);
}

std::string run_spec::label() const {
  if (flush) return fmt::format("1F1B-flush, m = {}", window);
  return window == 1 ? "async 1F1B, a = 1" : fmt::format("PACI, a = {}", window);
}

double options::factor(int stage) const noexcept {
  return stage < std::ssize(slower) ? slower[static_cast<std::size_t>(stage)] : 1.0;
}

options parse_options(int argc, char const* const* argv, std::optional<int> processes) {
  options o;
  request r;
  auto& t = o.training;
  t.comm = processes ? train_gpt::comm_kind::mpi : train_gpt::comm_kind::threads;
  t.shape = {.layers = 6, .width = 32, .heads = 4, .context = 32, .tied = false};
  t.corpus = SCAPE_TRAIN_GPT_CORPUS;
  t.out = "paci_out";
  o.optimizer = {.density = 0.1, .lr = 2e-3};
  t.command = train_gpt::command_of(argc, argv);

  CLI::App app(
      "Trains a small byte-level GPT cut into pipeline stages: threads, or processes over MPI.\n"
      "It compares the synchronous schedule 1F1B-flush with plain asynchronous 1F1B and with PACI, "
      "and leaves report.html, summary.csv, and curves and events of every run in the output "
      "folder.");
  app.option_defaults()->always_capture_default()->take_last();
  app.get_formatter()->column_width(34);
  add_run_options(app, o, r);
  add_training_options(app, o, r);
  train_gpt::parse(app, argc, argv);
  bool const sleeps = o.workload == workload_kind::sleep;
  o.micro_batches = r.micro_batches.value_or(sleeps ? 160 : 3200);
  o.forward_ms = r.forward_ms.value_or(sleeps ? 10 : 0);
  o.backward_ms = r.backward_ms.value_or(sleeps ? 20 : 0);
  t.ranks = o.replicas;
  o.optimizer.sparse = r.optimizer.starts_with("scape");
  o.optimizer.rule = r.optimizer.ends_with("adams") ? train_gpt::update_rule::adams
                                                    : train_gpt::update_rule::adamw;
  require_in("--seeds", static_cast<double>(r.seeds), 1, 1000);
  o.runs = make_runs(r);
  check(o, processes);
  return o;
}

}  // namespace paci
