// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <fmt/format.h>

#include <utility>

#include "gpt.hpp"
#include "optimizer.hpp"
#include "progress.hpp"
#include "rank_trainer.hpp"

namespace train_gpt {
namespace {

// What must agree between a checkpoint and the run that continues it.
std::string settings_of(options const& o, corpus const& text, run_spec const& run) {
  return fmt::format(
      "run={}\nseed={}\nlr={}\ndensity={}\nramp={}\nlag={}\nwire={}\nranks={}\nbatch={}\nsteps={}\n"
      "warmup={}\nbeta1={}\nbeta2={}\nweight-decay={}\nclip={}\nlayers={}\nwidth={}\nheads={}\n"
      "context={}\ncorpus={:016x}\n",
      run.name, run.seed, run.lr, run.density, run.ramp, o.lag, static_cast<int>(o.wire), o.ranks,
      o.batch, o.steps, o.warmup, o.beta1, o.beta2, o.weight_decay, o.clip, o.shape.layers,
      o.shape.width, o.shape.heads, o.shape.context, text.fingerprint());
}

}  // namespace

std::filesystem::path checkpoint_path(options const& o, run_spec const& run) {
  return o.out / (run.stem() + ".checkpoint");
}

checkpoint starting_point(options const& o, corpus const& text, run_spec const& run) {
  auto const path = checkpoint_path(o, run);
  auto settings = settings_of(o, text, run);
  if (o.resume && std::filesystem::exists(path)) return read_checkpoint(path, settings);
  checkpoint c;
  c.settings = std::move(settings);
  c.weights = initial_parameters(o.shape, run.seed);
  c.optimizer_states.resize(static_cast<std::size_t>(o.ranks));
  return c;
}

run_result train(options const& o, corpus const& text, run_spec const& run, checkpoint state,
                 std::string const& title, std::atomic<bool> const& stop, rank_group& ranks) {
  if (state.step < o.steps) {
    auto const layout = make_layout(o);
    shared_run const shared{o, text, run, layout, stop, state};
    progress line(title, state.step, o.steps, o.ranks * o.batch * o.shape.context, o.quiet);
    state.steps.reserve(static_cast<std::size_t>(o.steps));
    ranks.train(shared, line);
  }
  return {.spec = run,
          .steps = std::move(state.steps),
          .validation = std::move(state.validation),
          .milliseconds = state.milliseconds,
          .weights_hash = hash_of(state.weights),
          .finished = state.step == o.steps};
}

}  // namespace train_gpt
