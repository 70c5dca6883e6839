// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Saved optimizers: resuming, damaged and foreign files, on any backend with ranks.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <ios>
#include <limits>
#include <sstream>
#include <string>
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
  constexpr int half = Backend::cuda ? 6 : 20;  // an emulator is slow
  Backend::ranks(l.shards(), [&](auto& comm) {
    sparse_rig_on<Backend, Rule, Wire> whole(comm, l, o), first(comm, l, o), second(comm, l, o);
    train(whole, comm.rank(), 0, half);
    train(first, comm.rank(), 0, half);
    auto const text = first.saved();
    CHECK(first.saved() == text);
    CHECK(first.state() == whole.state());
    train(second, comm.rank(), 100, 103);  // so that there is something to overwrite
    second.set_weights(first.current_weights());
    second.load(text);
    CHECK(second.state() == whole.state());
    CHECK(second.saved() == text);
    for (int t = half; t < 2 * half; ++t) {
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
      CHECK(raises<checkpoint_error>([&] { r.load(""); }, {"ends early"}));
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
    CHECK(raises<checkpoint_error>([&] { dense.load(own); }, {"rule"}));
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
    CHECK(raises<checkpoint_error>([&] { a.optimizer.save(a.ctx, broken); }, {"writing failed"}));
  });
}

TEST_CASE_TEMPLATE_DEFINE("the dense optimizer resumes and refuses likewise", Backend,
                          checkpoint_7) {
  layout const l(40, 2, layout_options{.alignment = 1});
  Backend::ranks(2, [&](auto& comm) {
    dense_rig_on<Backend, adamw> whole(comm, l, adam_options{}), half(comm, l, adam_options{});
    train(whole, comm.rank(), 0, 20);
    auto const good = whole.saved();
    half.set_weights(whole.current_weights());
    half.load(good);
    CHECK(half.steps() == 20);
    bool refused = true;
    for (std::size_t i = 0; i < good.size(); ++i) {
      auto flipped = good;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
      auto const cut = good.substr(0, i);
      refused = refused && raises<checkpoint_error>([&] { half.load(flipped); }, {"load"});
      refused = refused && raises<checkpoint_error>([&] { half.load(cut); }, {"load"});
    }
    CHECK(refused);
    CHECK(half.saved() == good);
    train(whole, comm.rank(), 20, 40);
    train(half, comm.rank(), 20, 40);
    CHECK(same_bits(whole.current_weights(), half.current_weights()));
    CHECK(whole.saved() == half.saved());
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

}  // namespace scape::testing
