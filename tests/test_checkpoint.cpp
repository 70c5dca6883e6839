// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using scape::adam_options;
using scape::adams;
using scape::adamw;
using scape::checkpoint_error;
using scape::layout;
using scape::layout_options;
using scape::run_threads;
using scape::self_communicator;
using scape::sparse_optimizer_options;
using scape::thread_communicator;

sparse_optimizer_options options(int lag) {
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
    r.step(normal_gradient(21, rank, t, std::ssize(r.weights)));
  }
}

//! 20 steps, save, 20 steps; and the same in a fresh object from what was saved.
template <class Rule, class Wire>
void check_resume(layout const& l, sparse_optimizer_options const& o) {
  run_threads(l.shards(), [&](thread_communicator& comm) {
    sparse_rig<Rule, Wire> whole(comm, l, o), first(comm, l, o), second(comm, l, o);
    train(whole, comm.rank(), 0, 20);
    train(first, comm.rank(), 0, 20);
    auto const text = first.saved();
    CHECK(first.saved() == text);
    CHECK(first.state() == whole.state());
    train(second, comm.rank(), 100, 103);  // so that there is something to overwrite
    second.weights = first.weights;
    second.load(text);
    CHECK(second.state() == whole.state());
    CHECK(second.saved() == text);
    for (int t = 20; t < 40; ++t) {
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

}  // namespace

TEST_CASE("saving and resuming equals the uninterrupted run, masks in flight included") {
  for (int const lag : {0, 1, 2, 4}) {
    CAPTURE(lag);
    check_resume<adams, float>({300, 3}, options(lag));
    check_resume<adamw, scape::bfloat16>(
        {300, 4, layout_options{.boundaries = {0, 10, 10, 200, 300}}}, options(lag));
    check_resume<adamw, float>({0, 2}, options(lag));
    auto literal = options(lag);
    literal.statistic = scape::statistic_kind::literal;
    literal.first = scape::first_mask::statistic;
    check_resume<adams, scape::float16>({130, 2, layout_options{.alignment = 1}}, literal);
  }
}

TEST_CASE("skipped steps are counted across a restart") {
  self_communicator self;
  layout const l(50, 1);
  sparse_rig<adams, float, self_communicator> a(self, l, options(1)), b(self, l, options(1));
  std::vector<float> bad(50, std::numeric_limits<float>::infinity());
  a.step(bad);
  train(a, 0, 0, 3);
  a.step(bad);
  b.load(a.saved());
  CHECK(b.optimizer.skipped_steps() == 2);
  CHECK(b.optimizer.steps() == 3);
}

TEST_CASE("scalars and densities may change at a restart") {
  layout const l(400, 2);
  for (int const lag : {0, 1, 2, 4}) {
    CAPTURE(lag);
    run_threads(2, [&](thread_communicator& comm) {
      sparse_rig<adams> before(comm, l, options(lag));
      train(before, comm.rank(), 0, 6);
      auto changed = options(lag);
      changed.density = 0.2;
      changed.density_ramp_steps = 0;
      changed.beta2 = 0.99F;
      sparse_rig<adams> after(comm, l, changed);
      after.weights = before.weights;
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

TEST_CASE("a cut or altered file is refused and changes nothing") {
  layout const l(40, 2, layout_options{.alignment = 1});
  for (int const lag : {0, 1, 2}) {
    CAPTURE(lag);
    run_threads(2, [&](thread_communicator& comm) {
      sparse_rig<adamw> r(comm, l, options(lag)), undisturbed(comm, l, options(lag));
      train(r, comm.rank(), 0, 5);
      auto const good = r.saved();
      train(r, comm.rank(), 5, 8);
      train(undisturbed, comm.rank(), 0, 8);
      auto const state = r.state();
      bool cuts_refused = true, flips_refused = true, unchanged = true;
      for (std::size_t length = 0; length < good.size(); ++length) {
        auto const text = good.substr(0, length);
        cuts_refused = cuts_refused && raises<checkpoint_error>([&] { r.load(text); }, {"load"});
        unchanged = unchanged && r.state() == state;
      }
      for (std::size_t i = 0; i < good.size(); ++i) {
        auto text = good;
        text[i] = static_cast<char>(text[i] ^ (1 << (i % 8)));
        flips_refused = flips_refused && raises<checkpoint_error>([&] { r.load(text); }, {"load"});
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

TEST_CASE("a file of another layout, rank, size, rule or lag is refused by name") {
  layout const l(40, 2, layout_options{.alignment = 1});
  std::vector<std::string> files(2);
  run_threads(2, [&](thread_communicator& comm) {
    sparse_rig<adams> r(comm, l, options(1));
    train(r, comm.rank(), 0, 3);
    files[at(comm.rank())] = r.saved();
    auto const own = files[at(comm.rank())];
    comm.barrier(r.ctx).wait(r.ctx);
    auto const& others = files[at(1 - comm.rank())];

    sparse_rig<adams> same(comm, l, options(1));
    auto const fresh = same.state();
    CHECK(raises<checkpoint_error>([&] { same.load(others); }, {"rank", "1", "0"}));
    CHECK(same.state() == fresh);

    sparse_rig<adams> moved(comm, {40, 2, layout_options{.boundaries = {0, 19, 40}}}, options(1));
    CHECK(raises<checkpoint_error>([&] { moved.load(own); }, {"layout's fingerprint"}));
    sparse_rig<adamw> other_rule(comm, l, options(1));
    CHECK(raises<checkpoint_error>([&] { other_rule.load(own); }, {"rule"}));
    sparse_rig<adams> other_lag(comm, l, options(2));
    CHECK(raises<checkpoint_error>([&] { other_lag.load(own); }, {"lag", "1", "2"}));
    sparse_rig<adams> synchronous(comm, l, options(0));  // as many slots as with lag 1
    CHECK(raises<checkpoint_error>([&] { synchronous.load(own); }, {"lag", "1", "0"}));
    dense_rig<adams> dense(comm, l, adam_options{});
    CHECK(raises<checkpoint_error>([&] { dense.load(own); }, {"rule"}));
    CHECK(raises<checkpoint_error>([&] { same.load(dense.saved()); }, {"rule"}));

    same.load(own);
    train(r, comm.rank(), 3, 6);
    same.weights = r.weights;  // not compared
    train(same, comm.rank(), 3, 6);
    CHECK(same_bits(r.optimizer.residual(), same.optimizer.residual()));
  });
  self_communicator self;
  sparse_rig<adams, float, self_communicator> alone(self, {40, 1}, options(1));
  CHECK(raises<checkpoint_error>([&] { alone.load(files[0]); }, {"number of ranks", "2", "1"}));
}

TEST_CASE("several states may follow each other in one stream, and a failing stream is reported") {
  self_communicator self;
  layout const l(50, 1);
  using rig_type = sparse_rig<adams, float, self_communicator>;
  rig_type a(self, l, options(1)), b(self, l, options(1)), c(self, l, options(1));
  train(a, 0, 0, 3);
  train(b, 0, 10, 15);
  std::stringstream stream;
  a.optimizer.save(a.ctx, stream);
  b.optimizer.save(b.ctx, stream);
  c.optimizer.load(c.ctx, stream);
  CHECK(c.optimizer.steps() == 3);
  c.optimizer.load(c.ctx, stream);
  CHECK(c.optimizer.steps() == 5);
  CHECK(same_bits(c.optimizer.residual(), b.optimizer.residual()));
  CHECK(raises<checkpoint_error>([&] { c.optimizer.load(c.ctx, stream); }, {"ends early"}));

  std::ostringstream broken;
  broken.setstate(std::ios::badbit);
  CHECK(raises<checkpoint_error>([&] { a.optimizer.save(a.ctx, broken); }, {"writing failed"}));
}

TEST_CASE("the dense optimizer resumes and refuses likewise") {
  layout const l(40, 2, layout_options{.alignment = 1});
  run_threads(2, [&](thread_communicator& comm) {
    dense_rig<adamw> whole(comm, l, adam_options{}), half(comm, l, adam_options{});
    train(whole, comm.rank(), 0, 20);
    auto const good = whole.saved();
    half.weights = whole.weights;
    half.load(good);
    CHECK(half.optimizer.steps() == 20);
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
    CHECK(same_bits(whole.weights, half.weights));
    CHECK(whole.saved() == half.saved());
  });
}

TEST_CASE("ranks restored at different steps find out before anything is changed") {
  layout const l(200, 3);
  run_threads(3, [&](thread_communicator& comm) {
    sparse_rig<adams> r(comm, l, options(1));
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

TEST_CASE("a step that failed half-way is neither continued nor saved") {
  layout const l(200, 2);
  CHECK_THROWS_AS(run_threads(2,
                              [&](thread_communicator& comm) {
                                auto o = options(1);
                                o.skip_nonfinite = false;  // so that the mask is the first to fail
                                sparse_rig<adams> r(comm, l, o);
                                train(r, comm.rank(), 0, 3);
                                auto const text = r.saved();
                                if (comm.rank() == 1) throw std::runtime_error("gone");
                                CHECK_THROWS_AS(train(r, 0, 3, 4), scape::peer_error);
                                CHECK(rejects([&] { return r.saved(); }, {"failed half-way"}));
                                CHECK(rejects([&] { train(r, 0, 3, 4); }, {"failed half-way"}));
                                r.load(text);
                                CHECK(r.saved() == text);
                              }),
                  std::runtime_error);
}
