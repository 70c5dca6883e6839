// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <scape/checkpoint.hpp>
#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {
namespace {

//! A folder of its own that goes with the object.
struct temporary_folder {
  std::filesystem::path path;

  explicit temporary_folder(std::string const& name)
      : path(std::filesystem::temp_directory_path() /
             ("scape-" + name + "-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
  }
  temporary_folder(temporary_folder const&) = delete;
  temporary_folder& operator=(temporary_folder const&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

std::vector<std::int64_t> steps_in(checkpoint_directory const& folder) {
  std::vector<std::int64_t> steps;
  for (auto const& set : folder.sets()) steps.push_back(set.step);
  return steps;
}

template <class Rig>
void train_and_save(Rig& r, checkpoint_directory const* folder, int rank, int first, int last) {
  for (int t = first; t < last; ++t) {
    r.step(integer_gradient(9, rank, t, std::ssize(r.weights)));
    if (folder != nullptr) {
      checkpoint_directory(*folder).save(r.ctx, r.optimizer, std::span<float const>(r.weights));
    }
  }
}

TEST_CASE("the newest complete set continues the training, with any number of ranks") {
  temporary_folder const place("sets");
  checkpoint_directory const folder(place.path / "deeper");
  layout const l(300, 3);
  auto const o = exact_options(0.1);
  std::vector<optimizer_state> at_six(3), at_nine(3);
  CHECK(folder.sets().empty());
  CHECK_FALSE(folder.newest());
  run_threads(3, [&](thread_communicator& comm) {
    sparse_rig<adamw> r(comm, l, o);
    CHECK_FALSE(checkpoint_directory(folder).load(r.ctx, r.optimizer, std::span(r.weights)));
    train_and_save(r, &folder, comm.rank(), 0, 6);
    at_six[at(comm.rank())] = r.state();
    train_and_save(r, nullptr, comm.rank(), 6, 9);
    at_nine[at(comm.rank())] = r.state();
  });
  CHECK(steps_in(folder) == std::vector<std::int64_t>{5, 6});
  CHECK(*folder.newest() == checkpoint_set{6, 3});

  run_threads(3, [&](thread_communicator& comm) {
    sparse_rig<adamw> r(comm, l, o);
    checkpoint_directory own(folder);
    CHECK(own.load(r.ctx, r.optimizer, std::span(r.weights)) == checkpoint_set{6, 3});
    CHECK(r.state() == at_six[at(comm.rank())]);
    train_and_save(r, nullptr, comm.rank(), 6, 9);
    CHECK(r.state() == at_nine[at(comm.rank())]);
  });
  for (int const ranks : {1, 2, 5}) {
    run_threads(ranks, [&](thread_communicator& comm) {
      sparse_rig<adamw> r(comm, {300, ranks}, o);
      checkpoint_directory own(folder);
      CHECK(own.load(r.ctx, r.optimizer, std::span(r.weights)) == checkpoint_set{6, 3});
      CHECK(same_bits(r.weights, at_six[0].weights));
      train_and_save(r, nullptr, comm.rank(), 6, 9);
    });
  }
  run_threads(2, [&](thread_communicator& comm) {  // and goes on saving
    sparse_rig<adamw> r(comm, {300, 2}, o);
    checkpoint_directory own(folder);
    own.load(r.ctx, r.optimizer, std::span(r.weights));
    train_and_save(r, &folder, comm.rank(), 6, 9);
  });
  CHECK(steps_in(folder) == std::vector<std::int64_t>{8, 9});
  CHECK(*folder.newest() == checkpoint_set{9, 2});
  std::size_t files = 0;
  for (auto const& entry : std::filesystem::directory_iterator(place.path / "deeper")) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  // Of the last step, the first rank to save still counts the set before the last two.
  CHECK((files == 4 || files == 5));
}

TEST_CASE("a rank that dies while it saves leaves the set before, and its later files go") {
  temporary_folder const place("incomplete");
  checkpoint_directory const folder(place.path, 1);
  layout const l(100, 2);
  auto const o = exact_options(0.1);
  run_threads(2, [&](thread_communicator& comm) {
    sparse_rig<adams> r(comm, l, o);
    train_and_save(r, &folder, comm.rank(), 0, 3);
    train_and_save(r, comm.rank() == 0 ? &folder : nullptr, comm.rank(), 3, 5);
  });
  std::ofstream(folder.path({5, 2}, 1).string() + ".tmp") << "half a file";
  CHECK(steps_in(folder) == std::vector<std::int64_t>{3});
  CHECK(std::filesystem::exists(folder.path({5, 2}, 0)));
  run_threads(2, [&](thread_communicator& comm) {
    sparse_rig<adams> r(comm, l, o);
    checkpoint_directory own(folder);
    CHECK(own.load(r.ctx, r.optimizer, std::span(r.weights)) == checkpoint_set{3, 2});
    CHECK(r.steps() == 3);
  });
  CHECK_FALSE(std::filesystem::exists(folder.path({4, 2}, 0)));
  CHECK_FALSE(std::filesystem::exists(folder.path({5, 2}, 0)));
}

TEST_CASE("damage is known before the files of other ranks are taken apart") {
  temporary_folder const place("reshard");
  checkpoint_directory const folder(place.path);
  auto const o = exact_options(0.1);
  run_threads(3, [&](thread_communicator& comm) {
    sparse_rig<adamw> r(comm, {300, 3}, o);
    train_and_save(r, &folder, comm.rank(), 0, 4);
  });
  auto const name = folder.path({4, 3}, 0);
  std::ostringstream content;
  content << std::ifstream(name, std::ios::binary).rdbuf();
  self_communicator self;
  sparse_rig<adamw, float, self_communicator> r(self, {300, 1}, o);
  auto const before = r.state();
  // Its last words are the masks: shards of 128, 128 and 44 bits, which end before their words do.
  for (std::size_t back = 9; back <= 8 + 2 * 48; ++back) {
    auto flipped = content.str();
    auto& byte = flipped[flipped.size() - back];
    byte = static_cast<char>(~byte);
    std::ofstream(name, std::ios::binary) << flipped;
    CHECK(raises<checkpoint_error>(
        [&] { checkpoint_directory(folder).load(r.ctx, r.optimizer, std::span(r.weights)); },
        {"checksum"}));
  }
  CHECK(r.state().m == before.m);
  CHECK(r.steps() == 0);
}

TEST_CASE("names that save() does not give are no checkpoints") {
  temporary_folder const place("names");
  checkpoint_directory folder(place.path);
  self_communicator self;
  sparse_rig<adams, float, self_communicator> r(self, {50, 1}, exact_options(0.1));
  train_and_save(r, &folder, 0, 0, 2);
  for (auto const* name :
       {"step-007.rank-0-of-1.scape", "step-9.rank-00-of-1.scape", "step-9.rank-0-of-1.scape.tmp",
        "step-9.rank-0-of-2.scape", "step-99999999999999999999.rank-0-of-1.scape"}) {
    std::ofstream(place.path / name) << "foreign";
  }
  CHECK(steps_in(folder) == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a folder of a training that has come further is refused") {
  temporary_folder const place("further");
  checkpoint_directory folder(place.path, 1);
  self_communicator self;
  using rig_type = sparse_rig<adams, float, self_communicator>;
  auto const o = exact_options(0.1);
  rig_type further(self, {50, 1}, o), r(self, {50, 1}, o);
  train_and_save(further, nullptr, 0, 0, 8);
  train_and_save(further, &folder, 0, 8, 9);
  CHECK(raises<checkpoint_error>([&] { train_and_save(r, &folder, 0, 0, 1); },
                                 {"checkpoint_directory::save", "a later set, of step 9"}));
  folder.load(r.ctx, r.optimizer, std::span(r.weights));
  train_and_save(r, &folder, 0, 9, 10);
  CHECK(steps_in(folder) == std::vector<std::int64_t>{10});
}

TEST_CASE("as many ranks as before need no more open files than one rank has") {
  temporary_folder const place("many");
  checkpoint_directory const folder(place.path);
  auto const o = exact_options(0.1);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  run_threads(40, [&](thread_communicator& comm) {
    sparse_rig<adams> r(comm, {100, 40}, o);
    train_and_save(r, &folder, comm.rank(), 0, 1);
  });
  rlimit const few{30, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  self_communicator self;
  sparse_rig<adams, float, self_communicator> alone(self, {100, 1}, o);
  CHECK(raises<checkpoint_error>(
      [&] {
        checkpoint_directory(folder).load(alone.ctx, alone.optimizer, std::span(alone.weights));
      },
      {"cannot read", "Too many open files"}));
  std::mutex one_by_one;  // the ranks are threads of a process
  run_threads(40, [&](thread_communicator& comm) {
    std::lock_guard const lock(one_by_one);
    sparse_rig<adams> r(comm, {100, 40}, o);
    CHECK(checkpoint_directory(folder).load(r.ctx, r.optimizer, std::span(r.weights)) ==
          checkpoint_set{1, 40});
  });
  CHECK(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

TEST_CASE("damaged and foreign files, and folders that cannot be written, are reported") {
  temporary_folder const place("damaged");
  CHECK(rejects([&] { checkpoint_directory(place.path, 0); }, {"keep is 0"}));
  checkpoint_directory folder(place.path);
  auto const o = exact_options(0.1);
  self_communicator self;
  using rig_type = sparse_rig<adams, float, self_communicator>;
  rig_type r(self, {50, 1}, o), other(self, {51, 1}, o);
  auto const weights = [](rig_type& x) { return std::span<float const>(x.weights); };
  r.step(integer_gradient(9, 0, 0, 50));
  folder.save(r.ctx, r.optimizer, weights(r));
  CHECK(rejects([&] { folder.save(r.ctx, r.optimizer, weights(r).first(3)); }, {"3", "50"}));
  CHECK(raises<checkpoint_error>(
      [&] { folder.load(other.ctx, other.optimizer, std::span(other.weights)); },
      {"checkpoint_directory::load [rank 0 of 1]", "n in the file is 50, expected 51"}));

  auto const name = folder.path({1, 1}, 0);
  std::ostringstream content;
  content << std::ifstream(name, std::ios::binary).rdbuf();
  auto const good = content.str();
  auto const state = r.optimizer.steps();
  bool all = true;
  for (std::size_t i = 0; i < good.size(); i += 5) {
    auto flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    for (auto const& text : {flipped, good.substr(0, i)}) {
      std::ofstream(name, std::ios::binary) << text;
      all = all && raises<checkpoint_error>(
                       [&] { folder.load(r.ctx, r.optimizer, std::span(r.weights)); }, {"load"});
    }
  }
  CHECK(all);
  CHECK(r.optimizer.steps() == state);

  std::ofstream(place.path / "file") << "not a folder";
  checkpoint_directory nowhere(place.path / "file" / "deeper");
  CHECK(raises<checkpoint_error>(
      [&] { nowhere.save(r.ctx, r.optimizer, weights(r)); },
      {"checkpoint_directory::save [rank 0 of 1]", "cannot write", "Not a directory"}));
  CHECK(nowhere.sets().empty());
}

}  // namespace
}  // namespace scape::testing
