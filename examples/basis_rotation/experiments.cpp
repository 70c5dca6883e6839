// SPDX-License-Identifier: Apache-2.0
#include "experiments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "energy.hpp"

namespace basis_rotation {
namespace {

using train_gpt::corpus;

// Calls task(0) ... task(count - 1), `jobs` at a time, in order. Rethrows the first exception.
void run_all(int jobs, std::size_t count, std::function<void(std::size_t)> const& task) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  auto const work = [&] {
    try {
      for (auto i = next++; i < count; i = next++) task(i);
    } catch (...) {
      std::lock_guard const lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    for (auto j = std::min(static_cast<std::size_t>(jobs), count); j > 1; --j) {
      others.emplace_back(work);
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

class progress {
 public:
  progress(settings const& s, std::string part, std::size_t total)
      : quiet_(s.quiet), part_(std::move(part)), total_(total) {}

  void done(std::string const& what) {
    std::lock_guard const lock(mutex_);
    ++done_;
    if (!quiet_) fmt::print(stderr, "{} {}/{}: {}\n", part_, done_, total_, what);
  }

 private:
  bool quiet_;
  std::string part_;
  std::size_t total_, done_ = 0;
  std::mutex mutex_;
};

// NaN is the highest.
bool lower_loss(std::vector<loss_point> const& a, std::vector<loss_point> const& b) {
  auto const loss = a.back().loss, other = b.back().loss;
  return !std::isnan(loss) && !(loss >= other);
}

bool better(delayed_result const& a, delayed_result const& b) {
  if (a.steps_to_target && b.steps_to_target) return *a.steps_to_target < *b.steps_to_target;
  if (a.steps_to_target || b.steps_to_target) return a.steps_to_target.has_value();
  return lower_loss(a.validation, b.validation);
}

bool better(sync_result const& a, sync_result const& b) {
  return lower_loss(a.validation, b.validation);
}

// The results of train(rate), and the best of them.
template <class Train>
auto best_of(std::vector<double> const& rates, Train&& train) {
  tuned<decltype(train(0.0))> result;
  for (double const rate : rates) {
    auto const& now = result.all.emplace_back(train(rate));
    if (result.all.size() == 1 || better(now, result.best)) result.best = now;
  }
  return result;
}

// A learning rate that has not reached the target at the validation where another one did has lost.
tuned<delayed_result> tune(settings s, corpus const& text, delayed_run run) {
  return best_of(s.learning_rates, [&](double rate) {
    run.lr = rate;
    auto result = train_with_delay(s, text, run);
    if (auto const steps = result.steps_to_target) {
      auto const validations = static_cast<std::int64_t>(*steps) / s.validate_every + 1;
      s.max_steps = std::min(s.max_steps, validations * s.validate_every);
    }
    return result;
  });
}

tuned<sync_result> tune(settings const& s, corpus const& text, sync_run run) {
  return best_of(s.sync_learning_rates, [&](double rate) {
    run.lr = rate;
    return train_with_sparse_sync(s, text, run);
  });
}

std::string outcome(delayed_result const& r) {
  auto const end = r.steps_to_target
                       ? fmt::format("{:.0f} steps", *r.steps_to_target)
                       : fmt::format("loss {:.3f} after {} steps", r.validation.back().loss,
                                     r.validation.back().step);
  return fmt::format("{} at lr {:g}", end, r.run.lr);
}

std::vector<tuned_row> tune_all(settings const& s, corpus const& text, std::string const& part,
                                std::vector<delayed_run> const& runs) {
  auto const seeds = static_cast<std::size_t>(s.seeds);
  std::vector<tuned_row> rows(runs.size());
  for (auto& row : rows) row.seeds.resize(seeds);
  progress line(s, part, runs.size() * seeds);
  run_all(s.jobs, runs.size() * seeds, [&](std::size_t i) {
    auto run = runs[i / seeds];
    run.seed = s.seed + i % seeds;
    auto& result = rows[i / seeds].seeds[i % seeds];
    result = tune(s, text, run);
    line.done(fmt::format("{}, {} stages, seed {}: {}", traits(run.how).label, run.stages, run.seed,
                          outcome(result.best)));
  });
  return rows;
}

std::vector<method> wanted_methods(settings const& s) {
  std::vector<method> wanted;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    bool const all = s.methods.empty();
    if (all || std::ranges::find(s.methods, methods[i].name) != s.methods.end()) {
      wanted.push_back(static_cast<method>(i));
    }
  }
  return wanted;
}

std::vector<delayed_run> delay_runs(settings const& s) {
  std::vector<delayed_run> runs;
  for (auto const stages : s.stages) {
    for (auto const how : wanted_methods(s)) {
      runs.push_back({.how = how, .stages = stages, .interval = s.interval});
    }
  }
  return runs;
}

// With stashing they are among those of delay_runs().
std::vector<delayed_run> stashing_runs(settings const& s) {
  std::vector<delayed_run> runs;
  for (auto const how : wanted_methods(s)) {
    runs.push_back({.how = how,
                    .stages = std::ranges::max(s.stages),
                    .stashing = false,
                    .interval = s.interval});
  }
  return runs;
}

std::vector<delayed_run> budget_runs(settings const& s) {
  std::vector<delayed_run> runs;
  for (auto const how : {method::second_bilateral, method::first_bilateral}) {
    for (auto const budget : {scape::refresh_budget::stage_aware, scape::refresh_budget::uniform,
                              scape::refresh_budget::inverse}) {
      runs.push_back({.how = how,
                      .stages = std::ranges::max(s.stages),
                      .budget = budget,
                      .interval = s.budget_interval});
    }
  }
  return runs;
}

energy_result measure_energy(settings s, corpus const& text, method how) {
  energy_result result{.how = how};
  s.target = 0;
  s.max_steps = s.sync_steps;
  delayed_run const run{
      .how = how, .interval = s.interval, .lr = s.sync_learning_rates.front(), .seed = s.seed};
  auto const observe = [&](std::int64_t step, model_optimizer& optimizer) {
    if (step == 0) return;
    auto const original = original_moments(optimizer), rotated = rotated_moments(optimizer);
    result.points.push_back({step, energy_share(original, 0.01), energy_share(original, 0.1),
                             energy_share(rotated, 0.01), energy_share(rotated, 0.1)});
  };
  (void)train_with_delay(s, text, run, observe);
  return result;
}

std::vector<sync_run> sync_runs(settings const& s) {
  std::vector<sync_run> runs;
  auto const add = [&](method how, double density, mask_basis basis) {
    runs.push_back({.how = how, .density = density, .basis = basis, .seed = s.seed});
  };
  for (auto const how : {method::adam, method::second_bilateral, method::first_bilateral}) {
    add(how, 1, mask_basis::original);
    for (double const density : {0.1, 0.01}) {
      add(how, density, mask_basis::original);
      if (is_rotated(how)) add(how, density, mask_basis::rotated);
    }
  }
  return runs;
}

}  // namespace

std::optional<double> tuned_row::steps() const {
  double sum = 0;
  for (auto const& seed : seeds) {
    if (!seed.best.steps_to_target) return std::nullopt;
    sum += *seed.best.steps_to_target;
  }
  return sum / static_cast<double>(seeds.size());
}

tuned_row const* find(std::vector<tuned_row> const& rows, method how, std::int64_t stages) {
  auto const found = std::ranges::find_if(rows, [&](tuned_row const& row) {
    return row.run().how == how && row.run().stages == stages;
  });
  return found == rows.end() ? nullptr : &*found;
}

void run_experiments(settings const& s, corpus const& text,
                     std::function<void(results const&)> const& save) {
  results r;
  auto const tune_part = [&](char const* part, std::vector<tuned_row>& rows, auto const& runs) {
    if (!s.wants(part)) return;
    rows = tune_all(s, text, part, runs(s));
    save(r);
  };
  tune_part("delay", r.delay, delay_runs);
  tune_part("stashing", r.stashing, stashing_runs);
  tune_part("budget", r.budget, budget_runs);
  if (!s.wants("sync")) return;
  for (auto const how : {method::first_unilateral, method::first_bilateral,
                         method::second_unilateral, method::second_bilateral}) {
    r.energy.push_back({.how = how});
  }
  progress energy(s, "energy", r.energy.size());
  run_all(s.jobs, r.energy.size(), [&](std::size_t i) {
    r.energy[i] = measure_energy(s, text, r.energy[i].how);
    energy.done(std::string(traits(r.energy[i].how).label));
  });
  auto const runs = sync_runs(s);
  progress sync(s, "sync", runs.size());
  for (auto const& run : runs) {  // the ranks are the threads
    auto const& best = r.sync.emplace_back(tune(s, text, run)).best;
    sync.done(fmt::format("{}, density {:g}: loss {:.3f} at lr {:g}", traits(run.how).label,
                          run.density, best.validation.back().loss, best.run.lr));
  }
  save(r);
}

}  // namespace basis_rotation
