// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Saved optimizers: resuming, damaged and foreign files, on any backend with ranks.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ios>
#include <istream>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <scape/layout.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {

inline sparse_optimizer_options checkpoint_options(int lag) {
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.lag = lag;
  o.weight_decay = 0.1F;
  o.density_ramp_steps = 30;
  o.statistics = true;
  return o;
}

template <class Rig>
void train(Rig& r, int rank, int first, int last) {
  for (int t = first; t < last; ++t) {
    r.step(normal_gradient(21, rank, t, std::ssize(r.current_weights())));
  }
}

//! 20 steps, save, 20 steps; and the same in a fresh object from what was saved.
template <class Backend, class Rule, class Wire>
void check_resume(layout const& l, sparse_optimizer_options const& o) {
  constexpr int steps = Backend::cuda ? 6 : 20;  // an emulator is slow
  Backend::ranks(l.shards(), [&](auto& comm) {
    sparse_rig_on<Backend, Rule, Wire> whole(comm, l, o), first(comm, l, o), second(comm, l, o);
    train(whole, comm.rank(), 0, steps);
    train(first, comm.rank(), 0, steps);
    auto const text = first.saved();
    CHECK(first.saved() == text);
    CHECK(first.state() == whole.state());
    train(second, comm.rank(), 100, 103);  // so that there is something to overwrite
    second.set_weights(first.current_weights());
    second.load(text);
    CHECK(second.state() == whole.state());
    CHECK(second.saved() == text);
    for (int t = steps; t < 2 * steps; ++t) {
      auto const gradient = normal_gradient(21, comm.rank(), t, l.size());
      auto const& report = whole.step(gradient);
      first.step(gradient);
      auto const& resumed = second.step(gradient);
      CHECK(first.state() == whole.state());
      CHECK(second.state() == whole.state());
      CHECK(resumed.step == report.step);
      CHECK(resumed.mask_overlap == report.mask_overlap);
      CHECK(resumed.residual_norm == report.residual_norm);
    }
    CHECK(second.saved() == whole.saved());
  });
}

TEST_CASE_TEMPLATE_DEFINE(
    "saving and resuming equals the uninterrupted run, masks in flight included", Backend,
    checkpoint_1) {
  for (int const lag : {0, 1, 2, 4}) {
    auto const o = checkpoint_options(lag);
    check_resume<Backend, adams, float>({300, 3}, o);
    check_resume<Backend, adamw, bfloat16>(
        {300, 4, layout_options{.boundaries = {0, 10, 10, 200, 300}}}, o);
    check_resume<Backend, adamw, float>({0, 2}, o);
    auto literal = o;
    literal.statistic = statistic_kind::literal;
    literal.first = first_mask::statistic;
    check_resume<Backend, adams, float16>({130, 2, layout_options{.alignment = 1}}, literal);
  }
}

TEST_CASE_TEMPLATE_DEFINE("skipped steps are counted across a restart", Backend, checkpoint_2) {
  layout const l(50, 1);
  Backend::ranks(1, [&](auto& comm) {
    sparse_rig_on<Backend, adams> a(comm, l, checkpoint_options(1)),
        b(comm, l, checkpoint_options(1));
    std::vector<float> const bad(50, std::numeric_limits<float>::infinity());
    a.step(bad);
    train(a, 0, 0, 3);
    a.step(bad);
    b.load(a.saved());
    CHECK(b.skipped_steps() == 2);
    CHECK(b.steps() == 3);
  });
}

TEST_CASE_TEMPLATE_DEFINE("scalars and densities may change at a restart", Backend, checkpoint_3) {
  layout const l(400, 2);
  for (int const lag : {0, 1, 2, 4}) {
    CAPTURE(lag);
    Backend::ranks(2, [&](auto& comm) {
      auto changed = checkpoint_options(lag);
      changed.density = 0.2;
      changed.density_ramp_steps = 0;
      changed.beta2 = 0.99F;
      sparse_rig_on<Backend, adams> before(comm, l, checkpoint_options(lag)),
          after(comm, l, changed);
      train(before, comm.rank(), 0, 6);
      after.set_weights(before.current_weights());
      after.load(before.saved());
      for (int t = 6; t < 6 + lag; ++t) {  // masks that were on their way
        auto const gradient = normal_gradient(21, comm.rank(), t, 400);
        auto const& old_report = before.step(gradient);
        auto const& new_report = after.step(gradient);
        CHECK(new_report.density == old_report.density);
        CHECK(new_report.bytes.values == old_report.bytes.values);
      }
      CHECK(after.step(normal_gradient(21, comm.rank(), 6 + lag, 400)).density == 0.2);
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("a cut or altered file is refused and changes nothing", Backend,
                          checkpoint_4) {
  layout const l(40, 2, layout_options{.alignment = 1});
  for (int const lag : {0, 1, 2}) {
    CAPTURE(lag);
    Backend::ranks(2, [&](auto& comm) {
      sparse_rig_on<Backend, adamw> r(comm, l, checkpoint_options(lag)),
          undisturbed(comm, l, checkpoint_options(lag));
      train(r, comm.rank(), 0, 5);
      auto const good = r.saved();
      train(r, comm.rank(), 5, 8);
      train(undisturbed, comm.rank(), 0, 8);
      auto const state = r.state();
      bool cuts_refused = true, flips_refused = true, unchanged = true;
      for (std::size_t i = 0; i < good.size(); ++i) {
        auto const cut = good.substr(0, i);
        cuts_refused = cuts_refused && raises<checkpoint_error>([&] { r.load(cut); }, {"load"});
        auto flipped = good;
        flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
        flips_refused =
            flips_refused && raises<checkpoint_error>([&] { r.load(flipped); }, {"load"});
        unchanged = unchanged && r.state() == state;
      }
      CHECK(cuts_refused);
      CHECK(flips_refused);
      CHECK(unchanged);
      auto const here = "sparse_optimizer::load [rank " + std::to_string(comm.rank()) + " of 2]";
      CHECK(raises<checkpoint_error>([&] { r.load(""); }, {here, "ends early"}));
      CHECK(raises<checkpoint_error>([&] { r.load(std::string(2000, 'x')); },
                                     {"not a saved optimizer state"}));
      train(r, comm.rank(), 8, 12);
      train(undisturbed, comm.rank(), 8, 12);
      CHECK(r.state() == undisturbed.state());
      CHECK(r.saved() == undisturbed.saved());
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("a file of another layout, rank, size, rule or lag is refused by name",
                          Backend, checkpoint_5) {
  if (!Backend::has_ranks(2)) return;
  layout const l(40, 2, layout_options{.alignment = 1});
  layout const moved_shards(40, 2, layout_options{.boundaries = {0, 19, 40}});
  std::vector<std::string> files(2);
  std::vector<optimizer_state> ends(2);
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adams> r(comm, l, checkpoint_options(1));
    train(r, comm.rank(), 0, 3);
    files[at(comm.rank())] = r.saved();
    train(r, comm.rank(), 3, 6);
    ends[at(comm.rank())] = r.state();
  });
  Backend::ranks(2, [&](auto& comm) {
    auto const& own = files[at(comm.rank())];
    auto const& others = files[at(1 - comm.rank())];
    sparse_rig_on<Backend, adams> same(comm, l, checkpoint_options(1)),
        moved(comm, moved_shards, checkpoint_options(1)), other_lag(comm, l, checkpoint_options(2)),
        synchronous(comm, l, checkpoint_options(0));  // as many slots as with lag 1
    sparse_rig_on<Backend, adamw> other_rule(comm, l, checkpoint_options(1));
    dense_rig_on<Backend, adams> dense(comm, l, adam_options{});
    auto const fresh = same.state();
    CHECK(raises<checkpoint_error>([&] { same.load(others); }, {"rank", "1", "0"}));
    CHECK(same.state() == fresh);
    CHECK(raises<checkpoint_error>([&] { moved.load(own); }, {"layout's fingerprint"}));
    CHECK(raises<checkpoint_error>([&] { other_rule.load(own); }, {"rule"}));
    CHECK(raises<checkpoint_error>([&] { other_lag.load(own); }, {"lag", "1", "2"}));
    CHECK(raises<checkpoint_error>([&] { synchronous.load(own); }, {"lag", "1", "0"}));
    CHECK(raises<checkpoint_error>([&] { dense.load(own); }, {"dense_optimizer::load", "rule"}));
    CHECK(raises<checkpoint_error>([&] { same.load(dense.saved()); }, {"rule"}));
    same.load(own);
    train(same, comm.rank(), 3, 6);
    // No file has weights; gradients that are given do not depend on them.
    CHECK(same_bits(same.state().residual, ends[at(comm.rank())].residual));
  });
  Backend::ranks(1, [&](auto& comm) {
    sparse_rig_on<Backend, adams> alone(comm, {40, 1}, checkpoint_options(1));
    CHECK(raises<checkpoint_error>([&] { alone.load(files[0]); }, {"number of ranks", "2", "1"}));
  });
}

TEST_CASE_TEMPLATE_DEFINE(
    "several states may follow each other in one stream, and a failing stream is reported", Backend,
    checkpoint_6) {
  layout const l(50, 1);
  Backend::ranks(1, [&](auto& comm) {
    auto const o = checkpoint_options(1);
    sparse_rig_on<Backend, adams> a(comm, l, o), b(comm, l, o), c(comm, l, o);
    train(a, 0, 0, 3);
    train(b, 0, 10, 15);
    std::stringstream stream;
    a.optimizer.save(a.ctx, stream);
    b.optimizer.save(b.ctx, stream);
    c.optimizer.load(c.ctx, stream);
    CHECK(c.steps() == 3);
    c.optimizer.load(c.ctx, stream);
    CHECK(c.steps() == 5);
    CHECK(same_bits(c.state().residual, b.state().residual));
    CHECK(raises<checkpoint_error>([&] { c.optimizer.load(c.ctx, stream); }, {"ends early"}));

    std::ostringstream broken;
    broken.setstate(std::ios::badbit);
    CHECK(raises<checkpoint_error>([&] { a.optimizer.save(a.ctx, broken); },
                                   {"sparse_optimizer::save [rank 0 of 1]", "writing failed"}));
  });
}

TEST_CASE_TEMPLATE_DEFINE("the dense optimizer resumes and refuses likewise", Backend,
                          checkpoint_7) {
  layout const l(40, 2, layout_options{.alignment = 1});
  Backend::ranks(2, [&](auto& comm) {
    dense_rig_on<Backend, adamw> whole(comm, l, adam_options{}), resumed(comm, l, adam_options{});
    train(whole, comm.rank(), 0, 20);
    auto const good = whole.saved();
    resumed.set_weights(whole.current_weights());
    resumed.load(good);
    CHECK(resumed.steps() == 20);
    bool refused = true;
    for (std::size_t i = 0; i < good.size(); ++i) {
      auto flipped = good;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      auto const cut = good.substr(0, i);
      refused = refused && raises<checkpoint_error>([&] { resumed.load(flipped); }, {"load"});
      refused = refused && raises<checkpoint_error>([&] { resumed.load(cut); }, {"load"});
    }
    CHECK(refused);
    CHECK(resumed.saved() == good);
    train(whole, comm.rank(), 20, 40);
    train(resumed, comm.rank(), 20, 40);
    CHECK(same_bits(whole.current_weights(), resumed.current_weights()));
    CHECK(whole.saved() == resumed.saved());
  });
}

TEST_CASE_TEMPLATE_DEFINE("ranks restored at different steps find out before anything is changed",
                          Backend, checkpoint_8) {
  layout const l(200, 3);
  Backend::ranks(3, [&](auto& comm) {
    sparse_rig_on<Backend, adams> r(comm, l, checkpoint_options(1));
    train(r, comm.rank(), 0, 4);
    auto const early = r.saved();
    train(r, comm.rank(), 4, 5);
    auto const late = r.saved();
    r.load(comm.rank() == 1 ? late : early);
    auto const before = r.state();
    CHECK(rejects([&] { train(r, comm.rank(), 5, 6); }, {"restored at step", "mean is 4.33"}));
    CHECK(r.state() == before);
    r.load(early);
    train(r, comm.rank(), 4, 5);
    CHECK(r.saved() == late);
  });
}

TEST_CASE_TEMPLATE_DEFINE("failure: a step that failed half-way is neither continued nor saved",
                          Backend, checkpoint_9) {
  if (!Backend::has_ranks(2)) return;
  layout const l(200, 2);
  auto const everything = [&](auto& comm) {
    auto o = checkpoint_options(1);
    o.skip_nonfinite = false;  // so that the mask is the first to fail
    sparse_rig_on<Backend, adams> r(comm, l, o);
    train(r, comm.rank(), 0, 3);
    auto const text = r.saved();
    if (comm.rank() == 1) {
      comm.abort("as the test wants it");
      return;
    }
    CHECK_THROWS_AS(train(r, 0, 3, 4), error);
    CHECK(rejects([&] { return r.saved(); }, {"failed half-way"}));
    CHECK(rejects([&] { r.step(normal_gradient(21, 0, 4, 200)); }, {"failed half-way"}));
    r.load(text);
    CHECK(r.saved() == text);
  };
  try {
    Backend::ranks(2, everything, std::chrono::seconds(2));
  } catch (peer_error const&) {  // the group's end, where the group throws it
  }
}

//! The state of all ranks as one: what must not change with their number.
struct whole_state {
  std::vector<float> weights, m, v;
  std::vector<std::uint16_t> age;
  std::vector<double> residual;  //!< summed over the ranks
  std::vector<char> mask;
  std::int64_t steps = 0;

  explicit whole_state(layout const& l, std::vector<optimizer_state> const& ranks)
      : weights(ranks[0].weights),
        residual(at(l.size())),
        mask(elements_of(l, ranks[0].mask)),
        steps(ranks[0].steps) {
    for (auto const& r : ranks) {
      m.insert(m.end(), r.m.begin(), r.m.end());
      v.insert(v.end(), r.v.begin(), r.v.end());
      age.insert(age.end(), r.age.begin(), r.age.end());
      for (std::size_t j = 0; j < residual.size(); ++j) residual[j] += double{r.residual[j]};
    }
  }
  friend bool operator==(whole_state const& a, whole_state const& b) {
    return same_bits(a.weights, b.weights) && same_bits(a.m, b.m) && same_bits(a.v, b.v) &&
           a.age == b.age && a.residual == b.residual && a.mask == b.mask && a.steps == b.steps;
  }
};

//! The files and states of `ranks` ranks after 6 steps with exact sums.
template <class Backend, class Rule>
std::pair<std::vector<std::string>, std::vector<optimizer_state>> trained(
    layout const& l, sparse_optimizer_options const& o) {
  std::vector<std::string> files(at(l.shards()));
  std::vector<optimizer_state> states(at(l.shards()));
  Backend::ranks(l.shards(), [&](auto& comm) {
    sparse_rig_on<Backend, Rule> r(comm, l, o);
    for (int t = 0; t < 6; ++t) r.step(integer_gradient(3, comm.rank(), t, l.size()));
    files[at(comm.rank())] = r.saved();
    states[at(comm.rank())] = r.state();
  });
  return {files, states};
}

//! Loads all of an earlier run's files.
template <class Rig>
void load_all(Rig& r, std::vector<std::string> const& files) {
  std::vector<std::istringstream> streams;
  std::vector<std::istream*> pointers;
  for (auto const& text : files) streams.emplace_back(text);
  for (auto& stream : streams) pointers.push_back(&stream);
  r.optimizer.load(r.ctx, std::span<std::istream* const>(pointers));
}

template <class Backend, class Rule>
void check_reshard(layout const& before, std::vector<layout> const& after, int lag) {
  if (!Backend::has_ranks(before.shards())) return;
  auto o = exact_options(0.1);
  o.lag = lag;
  auto const old_run = trained<Backend, Rule>(before, o);
  auto const& files = old_run.first;
  auto const& old_states = old_run.second;
  whole_state const want(before, old_states);
  for (auto const& l : after) {
    CAPTURE(l.shards());
    if (!Backend::has_ranks(l.shards())) continue;
    std::vector<optimizer_state> loaded(at(l.shards())), first(at(l.shards()));
    Backend::ranks(l.shards(), [&](auto& comm) {
      sparse_rig_on<Backend, Rule> r(comm, l, o);
      r.set_weights(old_states[0].weights);
      load_all(r, files);
      loaded[at(comm.rank())] = r.state();
      auto const text = r.saved();
      for (int t = 6; t < 12; ++t) r.step(integer_gradient(3, comm.rank(), t, l.size()));
      first[at(comm.rank())] = r.state();
      r.set_weights(old_states[0].weights);
      r.load(text);
      for (int t = 6; t < 12; ++t) r.step(integer_gradient(3, comm.rank(), t, l.size()));
      CHECK(r.state() == first[at(comm.rank())]);
    });
    CHECK(whole_state(l, loaded) == want);
    for (auto const& state : first) CHECK(same_bits(state.weights, first[0].weights));
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "another number of ranks or other shards keep moments, ages, masks and the sum of what is "
    "unsent",
    Backend, checkpoint_10) {
  layout_options const tight{.alignment = 1};
  for (int const lag : {0, 1, 3}) {
    check_reshard<Backend, adamw>(
        {300, 4, tight},
        {{300, 3, tight}, {300, 6, tight}, {300, 1}, {300, 4}, {300, 2, layout_options{}}}, lag);
    check_reshard<Backend, adams>(
        {130, 2, layout_options{.boundaries = {0, 0, 130}}},
        {{130, 3, layout_options{.boundaries = {0, 70, 70, 130}}}, {130, 1}, {130, 4}}, lag);
    check_reshard<Backend, adams>({0, 2}, {{0, 1}, {0, 3}}, lag);
  }
}

TEST_CASE_TEMPLATE_DEFINE("sets of files that do not belong together are refused", Backend,
                          checkpoint_11) {
  if (!Backend::has_ranks(2)) return;
  layout const l(60, 2, layout_options{.alignment = 1});
  auto o = exact_options(0.1);
  auto const files = trained<Backend, adamw>(l, o).first;
  auto const rule = trained<Backend, adams>(l, o).first;
  auto const shards = trained<Backend, adamw>({60, 2}, o).first;
  auto const alone = trained<Backend, adamw>({60, 1}, o).first;
  o.lag = 2;
  auto const lag = trained<Backend, adamw>(l, o).first;
  o.lag = 1;
  auto later = files;
  Backend::ranks(2, [&](auto& comm) {
    sparse_rig_on<Backend, adamw> r(comm, l, o);
    r.step(integer_gradient(3, comm.rank(), 0, 60));
    if (comm.rank() == 1) later[1] = r.saved();
  });
  Backend::ranks(1, [&](auto& comm) {
    sparse_rig_on<Backend, adamw> r(comm, {60, 1}, o), longer(comm, {61, 1}, o);
    auto const before = r.state();
    auto const refused = [&](auto& to, std::vector<std::string> const& texts,
                             std::string_view part) {
      return raises<checkpoint_error>([&] { load_all(to, texts); }, {part});
    };
    CHECK(refused(r, {}, "no files"));
    CHECK(refused(r, {files[0]}, "number of ranks in the file is 2, expected 1"));
    CHECK(refused(r, {files[1], files[0]}, "the rank in the file is 1, expected 0"));
    CHECK(refused(r, {files[0], rule[1]}, "rule"));
    CHECK(refused(r, {files[0], lag[1]}, "the lag in the file is 2, expected 1"));
    CHECK(refused(r, {files[0], shards[1]}, "different shards"));
    CHECK(refused(r, later, "the step in the file is 1, expected 6"));
    CHECK(refused(longer, alone, "model's fingerprint"));
    bool all = true;
    for (std::size_t i = 0; i < files[1].size(); i += 3) {
      auto flipped = files[1];
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      all = all && refused(r, {files[0], flipped}, "load");
      all = all && refused(r, {files[0], files[1].substr(0, i)}, "load");
    }
    for (auto i = files[0].size() / 2; i < files[0].size();
         ++i) {  // masks beyond a shard's end too
      auto flipped = files[0];
      flipped[i] = static_cast<char>(~flipped[i]);
      all = all && refused(r, {flipped, files[1]}, "load");
    }
    CHECK(all);
    CHECK(r.state() == before);
    load_all(r, files);
    CHECK(r.steps() == 6);
  });
}

TEST_CASE_TEMPLATE_DEFINE("the dense optimizer's moments survive another number of ranks", Backend,
                          checkpoint_12) {
  layout const before(200, 3), after(200, 2, layout_options{.boundaries = {0, 7, 200}});
  if (!Backend::has_ranks(3)) return;
  std::vector<std::string> files(3);
  std::vector<float> weights, want;
  auto const options = adam_options{.beta1 = 0.5F, .beta2 = 0.75F};
  Backend::ranks(3, [&](auto& comm) {
    dense_rig_on<Backend, adamw> r(comm, before, options);
    for (int t = 0; t < 4; ++t) r.step(integer_gradient(3, 0, t, 200));
    files[at(comm.rank())] = r.saved();
    auto const at_four = r.current_weights();
    for (int t = 4; t < 8; ++t) r.step(integer_gradient(3, 0, t, 200));
    if (comm.rank() == 0) {
      weights = at_four;
      want = r.current_weights();
    }
  });
  Backend::ranks(2, [&](auto& comm) {  // the mean of equal gradients is the same
    dense_rig_on<Backend, adamw> r(comm, after, options);
    r.set_weights(weights);
    load_all(r, files);
    CHECK(r.steps() == 4);
    for (int t = 4; t < 8; ++t) r.step(integer_gradient(3, 0, t, 200));
    double worst = 0;
    auto const got = r.current_weights();
    for (std::size_t j = 0; j < 200; ++j) {
      worst = std::max(worst, std::abs(double{got[j]} - double{want[j]}));
    }
    CHECK(worst < 1e-6);  // a third and a half are rounded differently
  });
}

TEST_CASE_TEMPLATE_DEFINE("a run saved before its first lagged mask resumes", Backend,
                          checkpoint_13) {
  for (int const lag : {1, 2, 3}) {
    auto o = checkpoint_options(lag);
    o.first = first_mask::statistic;
    o.density_ramp_steps = 0;
    layout const l(130, 2, layout_options{.alignment = 1});
    Backend::ranks(2, [&](auto& comm) {
      sparse_rig_on<Backend, adams> whole(comm, l, o), resumed(comm, l, o);
      auto const fresh = whole.saved();
      for (int saved = 0; saved <= lag; ++saved) {
        CAPTURE(saved);
        whole.load(fresh);
        train(whole, comm.rank(), 0, saved);
        resumed.set_weights(whole.current_weights());
        resumed.load(whole.saved());
        for (int t = saved; t < saved + lag + 2; ++t) {
          auto const gradient = normal_gradient(21, comm.rank(), t, l.size());
          CHECK(resumed.step(gradient).density == whole.step(gradient).density);
          CHECK(resumed.state() == whole.state());
        }
      }
    });
  }
}

}  // namespace scape::testing
