// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "command_line.hpp"
#include "method.hpp"
#include "stages.hpp"

namespace basis_rotation {
namespace {

using train_gpt::require;

void check(settings const& s) {
  train_gpt::check(s.shape);
  for (auto const& [flag, value] : {std::pair("--batch", s.batch),
                                    {"--warmup", s.warmup},
                                    {"--interval", s.interval},
                                    {"--budget-interval", s.budget_interval},
                                    {"--max-steps", s.max_steps},
                                    {"--validate-every", s.validate_every},
                                    {"--sync-steps", s.sync_steps},
                                    {"--ranks", std::int64_t{s.ranks}},
                                    {"--jobs", std::int64_t{s.jobs}}}) {
    train_gpt::require_size(flag, value);
  }
  train_gpt::require_in("--seeds", static_cast<double>(s.seeds), 1, 1000);
  require(s.batch % s.ranks == 0,
          fmt::format("--ranks {} does not divide --batch {}", s.ranks, s.batch));
  for (auto const stages : s.stages) {
    require(stages >= 1 && stages <= most_stages(s.shape),
            fmt::format("--stages {}: a model of {} layers has 1 to {} stages", stages,
                        s.shape.layers, most_stages(s.shape)));
  }
  train_gpt::require_positive("--target", s.target);
  for (double const lr : s.learning_rates) train_gpt::require_positive("--lr", lr);
  for (double const lr : s.sync_learning_rates) train_gpt::require_positive("--sync-lr", lr);
}

// Seconds instead of minutes, to see that everything works.
void make_quick(settings& s) {
  s.shape = {.layers = 2, .width = 16, .heads = 2, .context = 16, .tied = false};
  s.batch = 4;
  s.warmup = 5;
  s.interval = s.budget_interval = 4;
  s.stages = {1, 8};
  s.target = 3.6;
  s.max_steps = 60;
  s.validation_rows = 16;
  s.ranks = 2;
  s.sync_steps = 30;
  s.learning_rates = s.sync_learning_rates = {0.01, 0.02};
}

// Before the other options, whose defaults it changes; parse_settings tells what is wrong.
bool is_quick(int argc, char const* const* argv) {
  bool quick = false;
  CLI::App app;
  app.allow_extras()->set_help_flag();
  app.add_flag("--quick", quick);
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const&) {
  }
  return quick;
}

}  // namespace

bool settings::wants(std::string const& part) const {
  return std::ranges::find(parts, part) != parts.end();
}

settings parse_settings(int argc, char const* const* argv) {
  settings s;
  s.corpus = SCAPE_TRAIN_GPT_CORPUS;
  s.command = train_gpt::command_of(argc, argv);
  if (is_quick(argc, argv)) make_quick(s);

  CLI::App app(
      "Adam in the Hessian's eigenbasis, on a small GPT with the stale gradients of an "
      "asynchronous "
      "pipeline. Leaves report.html and CSV files in the output folder.");
  app.option_defaults()->always_capture_default()->take_last();
  app.get_formatter()->column_width(34);
  std::vector<std::string> names;
  for (auto const& m : methods) names.emplace_back(m.name);
  auto const list = [&](char const* flag, auto& values, char const* what) {
    return app.add_option(flag, values, what)->delimiter(',')->take_all();
  };
  bool quick = false;
  app.add_flag("--quick", quick, "a tiny model and few steps: seconds, and figures of no meaning");
  list("--parts", s.parts,
       "what to do: delay (steps to the target by number of stages), stashing, budget (of the "
       "refreshes), sync (energy and sparse sync)")
      ->check(CLI::IsMember({"delay", "stashing", "budget", "sync"}));
  list("--methods", s.methods, "of the parts delay and stashing")->check(CLI::IsMember(names));
  list("--stages", s.stages, "numbers of pipeline stages");
  app.add_option("--target", s.target, "validation loss to reach, nats per byte");
  app.add_option("--max-steps", s.max_steps, "of a run that does not reach it");
  list("--lr", s.learning_rates, "learning rates to try, the fastest one counts");
  list("--sync-lr", s.sync_learning_rates,
       "learning rates to try in the part sync, the lowest loss counts; the first one for the "
       "energy");
  app.add_option("--interval", s.interval, "steps between refreshes of a basis");
  app.add_option("--budget-interval", s.budget_interval, "the same in the part budget");
  app.add_option("--warmup", s.warmup, "steps with rising learning rate");
  app.add_option("--sync-steps", s.sync_steps, "steps of the part sync");
  app.add_option("--ranks", s.ranks, "data-parallel ranks of the part sync");
  train_gpt::add_seed_option(app, s.seed, "of weights and batches");
  app.add_option("--seeds", s.seeds, "repeat the runs to the target with successive seeds");
  app.add_option("--jobs", s.jobs, "runs at a time");
  train_gpt::add_shape_options(app, s.shape);
  app.add_option("--batch", s.batch, "sequences per step");
  app.add_option("--validate-every", s.validate_every, "steps between validations");
  app.add_option("--corpus", s.corpus, "file or folder to learn from");
  app.add_option("--out", s.out, "output folder");
  app.add_flag("--quiet", s.quiet, "no progress on stderr");
  train_gpt::parse(app, argc, argv);
  check(s);
  std::ranges::sort(s.stages);
  s.stages.erase(std::unique(s.stages.begin(), s.stages.end()), s.stages.end());
  return s;
}

}  // namespace basis_rotation
