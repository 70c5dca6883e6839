// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <scape/comm/threads.hpp>
#include <scape/context/host.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "gpt.hpp"
#include "optimizer.hpp"
#include "progress.hpp"
#include "random.hpp"

namespace train_gpt {
namespace {

constexpr std::int64_t validation_rows = 1024;
constexpr std::int64_t validations_per_run = 10;

std::uint64_t hash(std::span<float const> weights) { return fnv1a(std::as_bytes(weights)); }

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

// What all ranks of a run share. Rank 0 writes `state` in step with the others; every rank writes
// its own optimizer state.
struct shared_run {
  options const& o;
  corpus const& text;
  run_spec const& run;
  scape::layout const& layout;
  std::atomic<bool> const& stop;
  checkpoint& state;
};

class stopwatch {
 public:
  // Milliseconds since the last call.
  double lap() {
    auto const now = clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(last_, now)).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
};

class rank_trainer {
 public:
  rank_trainer(shared_run const& shared, scape::thread_communicator& comm)
      : s_(shared),
        comm_(comm),
        ones_(static_cast<std::size_t>(comm.size()), 1),
        model_(s_.o.shape, s_.o.batch),
        batch_(s_.o.batch, s_.o.shape.context),
        weights_(s_.state.weights.begin(), s_.state.weights.end()),
        gradient_(weights_.size()),
        optimizer_(make_optimizer(comm, s_.layout, s_.o, s_.run)) {
    if (s_.state.step > 0) {
      std::istringstream in(s_.state.optimizer_states[rank()]);
      optimizer_->load(in);
    }
  }

  // `line` is null on all ranks but 0.
  void train(progress* line) {
    std::int64_t const validate_every = std::max<std::int64_t>(1, s_.o.steps / validations_per_run);
    bool stopping = false;
    for (std::int64_t step = s_.state.step; step < s_.o.steps && !stopping; ++step) {
      stopping = take_step(step, line);
      std::int64_t const done = step + 1;
      bool const last = done == s_.o.steps;
      if (last || done % validate_every == 0) validate(done);
      bool const due = s_.o.checkpoint_every > 0 && done % s_.o.checkpoint_every == 0;
      if (last || due || stopping) save(done);
    }
  }

 private:
  struct vote {
    double loss;
    bool stop;
  };

  [[nodiscard]] std::size_t rank() const { return static_cast<std::size_t>(comm_.rank()); }

  // Every rank's `mine`, in rank order.
  template <class T>
  std::vector<T> gather(T const& mine) {
    std::vector<T> all(ones_.size());
    comm_
        .all_gather(context_, std::span<T const>(&mine, 1), std::span<T>(all),
                    std::span<std::int64_t const>(ones_))
        .wait(context_);
    return all;
  }

  // Returns whether to stop, which rank 0 decides.
  bool take_step(std::int64_t step, progress* line) {
    stopwatch watch;
    sample(batch_, s_.text.training(), s_.run.seed, step, comm_.rank());
    vote const mine{model_.loss_and_gradient(weights_, batch_.inputs, batch_.targets, gradient_),
                    s_.stop.load()};
    double const gradient_time = watch.lap();
    auto const votes = gather(mine);
    double const wait_time = watch.lap();
    double const lr = s_.o.learning_rate(s_.run, step);
    auto const& report = optimizer_->step(weights_, gradient_, lr);
    double const device_time = s_.o.device == device_kind::cuda ? watch.lap() : 0;
    if (line != nullptr) {
      double loss = 0;
      for (auto const& v : votes) loss += v.loss / static_cast<double>(votes.size());
      record(step + 1, loss, lr, report, {gradient_time, wait_time, device_time});
      line->update(step + 1, loss);
    }
    return votes[0].stop;
  }

  void record(std::int64_t step, double loss, double lr, scape::step_report const& r,
              std::array<double, 3> const& times) {
    s_.state.steps.push_back({.step = step,
                              .loss = loss,
                              .lr = lr,
                              .density = r.density,
                              .value_bytes = r.bytes.values,
                              .parameter_bytes = r.bytes.parameters,
                              .mask_bytes = r.bytes.mask,
                              .control_bytes = r.bytes.control,
                              .mask_overlap = r.mask_overlap,
                              .residual_norm = r.residual_norm,
                              .gradient_norm = r.gradient_norm,
                              .skipped = r.skipped});
    auto const& ms = r.milliseconds;
    phase_times const phases{times[0],   times[1],      ms.guard,  ms.mask_wait, ms.reduce_scatter,
                             ms.rebuild, ms.all_gather, ms.select, times[2]};
    for (std::size_t i = 0; i < phases.size(); ++i) s_.state.milliseconds[i] += phases[i];
  }

  void validate(std::int64_t step) {
    auto const text = s_.text.held_out();
    std::int64_t const rows = std::min(validation_rows, std::ssize(text) / s_.o.shape.context);
    std::int64_t const batches = (rows + s_.o.batch - 1) / s_.o.batch;
    double sum = 0;
    for (std::int64_t i = comm_.rank(); i < batches; i += comm_.size()) {
      take_spread(batch_, text, i, batches);
      sum += static_cast<double>(model_.loss(weights_, batch_.inputs, batch_.targets));
    }
    double total = 0;
    for (double const part : gather(sum)) total += part;
    if (comm_.rank() == 0) {
      s_.state.validation.push_back({step, total / static_cast<double>(batches)});
    }
  }

  void save(std::int64_t step) {
    std::ostringstream out;
    optimizer_->save(out);
    s_.state.optimizer_states[rank()] = std::move(out).str();
    for (auto const other : gather(hash(weights_))) {
      if (other != hash(weights_)) throw std::logic_error("the ranks' weights differ");
    }
    if (comm_.rank() != 0) return;
    s_.state.step = step;
    s_.state.weights.assign(weights_.begin(), weights_.end());
    write_checkpoint(checkpoint_path(s_.o, s_.run), s_.state);
  }

  shared_run const& s_;
  scape::thread_communicator& comm_;
  std::vector<std::int64_t> ones_;
  scape::host_context context_;
  gpt<float> model_;
  batch batch_;
  aligned_vector<float> weights_, gradient_;
  std::unique_ptr<rank_optimizer> optimizer_;
};

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
                 std::string const& title, std::atomic<bool> const& stop) {
  if (state.step < o.steps) {
    auto const layout = make_layout(o);
    shared_run const shared{o, text, run, layout, stop, state};
    progress line(title, state.step, o.steps, o.ranks * o.batch * o.shape.context, o.quiet);
    state.steps.reserve(static_cast<std::size_t>(o.steps));
    // A rank that fails throws and ends the group; a process that was only suspended must not.
    scape::thread_options const patience{.deadline = std::chrono::hours(24)};
    auto const rank_main = [&](scape::thread_communicator& comm) {
      rank_trainer(shared, comm).train(comm.rank() == 0 ? &line : nullptr);
    };
    scape::run_threads(o.ranks, rank_main, patience);
  }
  return {.spec = run,
          .steps = std::move(state.steps),
          .validation = std::move(state.validation),
          .milliseconds = state.milliseconds,
          .weights_hash = hash(state.weights),
          .finished = state.step == o.steps};
}

}  // namespace train_gpt
