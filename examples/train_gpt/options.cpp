// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numbers>

#include "command_line.hpp"
#include "cuda_optimizer.hpp"

namespace train_gpt {
namespace {

// What the command line says about the runs, before they are spelled out.
struct request {
  std::string suite = "default";
  std::optional<std::string> optimizer;
  sparse_preset preset = sparse_preset::staleness_aware;
  double density = 0.1;
  std::optional<std::int64_t> ramp;
  std::optional<double> lr;
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1;
};

// What did best in short runs of the default model. Dense AdamW gains from a higher rate than
// AdamS; SCAPE-AdamW does not.
double default_learning_rate(run_spec const& run) {
  if (run.sparse && run.preset == sparse_preset::literal) return 4e-3;
  return !run.sparse && run.rule == update_rule::adamw ? 8e-3 : 2e-3;
}

run_spec make_run(request const& r, options const& o, bool sparse, update_rule rule,
                  sparse_preset preset = sparse_preset::staleness_aware, double density = 1) {
  run_spec run{.sparse = sparse, .rule = rule, .preset = preset, .density = density};
  std::string const rule_name = rule == update_rule::adams ? "AdamS" : "AdamW";
  std::string const rule_stem = rule == update_rule::adams ? "adams" : "adamw";
  run.lr = r.lr.value_or(default_learning_rate(run));
  if (!sparse) {
    run.name = "dense-" + rule_stem;
    run.label = "dense " + rule_name;
    return run;
  }
  run.ramp = r.ramp.value_or(density > 0 && density <= 0.02 ? o.steps / 4 : 0);
  double const sparsity = std::round((1 - density) * 1e8) / 1e6;
  run.name = fmt::format("scape-{}-{:g}", rule_stem, sparsity);
  run.label = fmt::format("SCAPE-{} {:g} %", rule_name, sparsity);
  if (preset == sparse_preset::literal) {
    run.name += "-literal";
    run.label += ", literal";
  }
  return run;
}

std::vector<run_spec> make_runs(request const& r, options const& o) {
  using enum update_rule;
  std::vector<run_spec> runs;
  if (r.optimizer) {
    bool const sparse = r.optimizer->starts_with("scape");
    auto const rule = r.optimizer->ends_with("adams") ? adams : adamw;
    runs.push_back(sparse ? make_run(r, o, true, rule, r.preset, r.density)
                          : make_run(r, o, false, rule));
  } else {
    if (r.suite == "default") runs.push_back(make_run(r, o, false, adamw));
    runs.push_back(make_run(r, o, false, adams));
    runs.push_back(make_run(r, o, true, adams, sparse_preset::staleness_aware, 0.1));
    runs.push_back(make_run(r, o, true, adams, sparse_preset::staleness_aware, 0.01));
    if (r.suite == "quality") {
      runs.push_back(make_run(r, o, true, adams, sparse_preset::literal, 0.1));
    }
  }
  std::vector<run_spec> seeded;
  for (std::uint64_t i = 0; i < r.seeds; ++i) {
    for (auto run : runs) {
      run.seed = r.seed + i;
      seeded.push_back(std::move(run));
    }
  }
  return seeded;
}

// One rank per device.
void check_devices(options const& o) {
  if (o.device == device_kind::host) return;
  auto const devices = cuda_devices();
  require(
      devices.has_value(),
      "--device cuda: this program was built without CUDA; install the CUDA Toolkit and NCCL and "
      "build it with -DSCAPE_CUDA=ON");
  require(o.ranks <= *devices, fmt::format("--device cuda: --ranks is {}, the number of CUDA "
                                           "devices {}",
                                           o.ranks, *devices));
}

// One rank per process.
void check_processes(options const& o, std::optional<int> processes) {
  if (!processes) return;
  require(o.ranks == *processes, fmt::format("--comm mpi: --ranks is {}, the number of processes "
                                             "{}; leave --ranks out or start as many",
                                             o.ranks, *processes));
  require(o.device != device_kind::cuda, "--device cuda needs --comm threads");
}

void check(options const& o, request const& r, std::optional<int> processes) {
  check(o.shape);
  require_in("--ranks", o.ranks, 1, 1024);
  check_processes(o, processes);
  check_devices(o);
  require_size("--batch", o.batch);
  require_in("--steps", static_cast<double>(o.steps), 1, 1e8);
  require_in("--lag", o.lag, 0, 1000);
  require_in("--seeds", static_cast<double>(r.seeds), 1, 1000);
  require_at_least("--checkpoint-every", o.checkpoint_every, std::int64_t{0});
  require_at_least("--ramp", r.ramp.value_or(0), std::int64_t{0});
  require_in("--weight-decay", o.weight_decay, 0, 1e6);
  require_at_least("--clip", o.clip, 0.0);
  require_in("--density", r.density, 0, 1);
  require_in("--warmup", o.warmup, 0, 1);
  require(r.density > 0 || r.ramp.value_or(0) == 0,
          "--ramp is geometric and cannot end at --density 0");
  require_beta("--beta1", o.beta1);
  require_beta("--beta2", o.beta2);
  if (r.lr) require_positive("--lr", *r.lr);
}

// What the launchers of Open MPI and of MPICH and its kin tell every process.
bool is_one_of_several() {
  for (char const* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    char const* const size = std::getenv(name);
    if (size != nullptr && std::atoi(size) > 1) return true;
  }
  return false;
}

CLI::Option* add_comm(CLI::App& app, comm_kind& comm) {
  std::map<std::string, comm_kind> const comms{{"threads", comm_kind::threads},
                                               {"mpi", comm_kind::mpi}};
  return app
      .add_option_function<std::string>(
          "--comm", [&comm, comms](std::string const& name) { comm = comms.at(name); },
          "what the ranks are: threads of this process, or the processes that an mpi launcher "
          "started [mpi if it started several]")
      ->check(CLI::IsMember(comms))
      ->take_last();
}

}  // namespace

double options::learning_rate(run_spec const& run, std::int64_t step) const {
  double const warmup_steps = warmup * static_cast<double>(steps);
  auto const at = static_cast<double>(step);
  if (at < warmup_steps) return run.lr * std::min(1.0, (at + 1) / warmup_steps);
  double const progress = (at - warmup_steps) / (static_cast<double>(steps) - warmup_steps);
  return run.lr * (0.55 + 0.45 * std::cos(std::numbers::pi * progress));
}

comm_kind requested_comm(int argc, char const* const* argv) {
  auto comm = is_one_of_several() ? comm_kind::mpi : comm_kind::threads;
  CLI::App app;
  app.allow_extras()->set_help_flag();
  add_comm(app, comm);
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const&) {  // parse_options tells
  }
  return comm;
}

options parse_options(int argc, char const* const* argv, std::optional<int> processes) {
  options o;
  request r;
  o.comm = processes ? comm_kind::mpi : comm_kind::threads;
  o.ranks = processes.value_or(o.ranks);
  o.corpus = SCAPE_TRAIN_GPT_CORPUS;
  o.command = command_of(argc, argv);

  CLI::App app(
      "Trains a small byte-level GPT with data-parallel ranks: threads, or processes over MPI.\n"
      "Without --optimizer it compares dense AdamW, dense AdamS and SCAPE-AdamS at 90 % and 99 % "
      "sparsity, and leaves report.html, summary.csv and one CSV per run in the output folder.");
  app.option_defaults()->always_capture_default()->take_last();
  app.get_formatter()->column_width(34);

  std::map<std::string, sparse_preset> const presets{
      {"staleness_aware", sparse_preset::staleness_aware}, {"literal", sparse_preset::literal}};
  std::map<std::string, wire_type> const wires{
      {"fp32", wire_type::fp32}, {"bf16", wire_type::bf16}, {"fp16", wire_type::fp16}};
  std::map<std::string, device_kind> const devices{{"host", device_kind::host},
                                                   {"cuda", device_kind::cuda}};

  auto* suite =
      app.add_option("--suite", r.suite,
                     "runs to compare: default, or quality (dense AdamS, 90 %, 99 %, 90 % literal)")
          ->check(CLI::IsMember({"default", "quality"}))
          ->group("Runs");
  auto* optimizer =
      app.add_option("--optimizer", r.optimizer, "a single run instead of a suite")
          ->check(CLI::IsMember({"dense-adams", "dense-adamw", "scape-adams", "scape-adamw"}))
          ->excludes(suite)
          ->group("Runs");
  app.add_option_function<std::string>(
         "--preset", [&](std::string const& name) { r.preset = presets.at(name); },
         "of the scape optimizers")
      ->check(CLI::IsMember(presets))
      ->needs(optimizer)
      ->default_str("staleness_aware")
      ->group("Runs");
  app.add_option("--density", r.density,
                 "share of the 2-D tensors' parameters sent per step, in [0, 1]")
      ->needs(optimizer)
      ->group("Runs");
  app.add_option("--ramp", r.ramp,
                 "steps until the density is reached [a quarter of the run at densities up to "
                 "0.02, else 0]")
      ->group("Runs");
  add_seed_option(app, r.seed, "of weights and batches")->group("Runs");
  app.add_option("--seeds", r.seeds, "repeat with this many successive seeds")->group("Runs");

  app.add_option("--ranks", o.ranks, "data-parallel ranks")->group("Training");
  add_comm(app, o.comm)->group("Training");
  app.add_option("--steps", o.steps, "optimizer steps per run")->group("Training");
  app.add_option("--batch", o.batch, "sequences per rank and step")->group("Training");
  app.add_option("--lr", r.lr, "peak learning rate [2e-3, dense AdamW 8e-3, literal 4e-3]")
      ->group("Training");
  app.add_option("--warmup", o.warmup, "share of the steps with rising learning rate")
      ->group("Training");
  app.add_option("--beta1", o.beta1, "decay of the first moment")->group("Training");
  app.add_option("--beta2", o.beta2, "decay of the second moment")->group("Training");
  app.add_option("--weight-decay", o.weight_decay, "decoupled weight decay")->group("Training");
  app.add_option("--clip", o.clip, "limit of each rank's own gradient norm, 0 for none")
      ->group("Training");
  app.add_option("--lag", o.lag, "steps between choosing a mask and using it")->group("Training");
  app.add_option_function<std::string>(
         "--wire", [&](std::string const& name) { o.wire = wires.at(name); },
         "type of the values sent by scape")
      ->check(CLI::IsMember(wires))
      ->default_str("fp32")
      ->group("Training");
  app.add_option_function<std::string>(
         "--device", [&](std::string const& name) { o.device = devices.at(name); },
         "where the optimizers run: host, or cuda with a device per rank; the model runs on the "
         "host")
      ->check(CLI::IsMember(devices))
      ->default_str("host")
      ->group("Training");

  add_shape_options(app, o.shape);

  app.add_option("--corpus", o.corpus, "file or folder to learn from")->group("Files");
  app.add_option("--out", o.out, "output folder")->group("Files");
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "steps between checkpoints, 0: only when a run ends")
      ->group("Files");
  app.add_flag("--resume", o.resume, "continue from the checkpoints in the output folder")
      ->group("Files");
  app.add_flag("--quiet", o.quiet, "no progress on stderr")->group("Files");

  parse(app, argc, argv);
  check(o, r, processes);
  o.runs = make_runs(r, o);
  return o;
}

}  // namespace train_gpt
