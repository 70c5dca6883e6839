// SPDX-License-Identifier: Apache-2.0

//! @file
//! The example train_gpt with its optimizers on CUDA devices: the host's losses, and checkpoints
//! that go from one to the other.

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "corpus.hpp"
#include "cuda_optimizer.hpp"
#include "options.hpp"
#include "rank_group.hpp"
#include "trainer.hpp"
#include "usage_error.hpp"

namespace {

namespace fs = std::filesystem;
using namespace train_gpt;

// A folder with a text to learn from; gone at the end of the test.
class text_folder {
 public:
  text_folder() : path_(fs::temp_directory_path() / ("scape_gpt_" + std::to_string(getpid()))) {
    fs::create_directory(path_);
    std::ofstream out(path_ / "text");
    for (int i = 0; i < 400; ++i) out << "line " << i << " of a text with " << i * i % 97 << '\n';
  }
  text_folder(text_folder const&) = delete;
  text_folder& operator=(text_folder const&) = delete;
  ~text_folder() { fs::remove_all(path_); }
  [[nodiscard]] fs::path const& path() const { return path_; }

 private:
  fs::path path_;
};

bool enough_devices() {
  bool const enough = cuda_devices().value_or(0) >= 2;
  if (!enough) MESSAGE("skipped: 2 devices are needed");
  return enough;
}

options parse(std::vector<std::string> arguments) {
  std::vector<char const*> argv{"train_gpt"};
  for (auto const& argument : arguments) argv.push_back(argument.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data(), std::nullopt);
}

// 40 steps of a small model with 2 ranks.
options small(text_folder const& folder, std::vector<std::string> const& more) {
  std::vector<std::string> arguments{"--ranks",   "2",       "--batch", "2",       "--layers",
                                     "1",         "--width", "8",       "--heads", "2",
                                     "--context", "16",      "--steps", "40"};
  for (auto const& [flag, path] :
       {std::pair("--corpus", folder.path() / "text"), std::pair("--out", folder.path())}) {
    arguments.insert(arguments.end(), {flag, path.string()});
  }
  arguments.insert(arguments.end(), {"--quiet", "--lr", "0.01"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse(arguments);
}

run_result run(options const& o, bool one_step = false) {
  corpus const text(o.corpus);
  std::atomic<bool> const stop = one_step;
  auto const ranks = make_thread_ranks();
  return train(o, text, o.runs[0], starting_point(o, text, o.runs[0]), "", stop, *ranks);
}

// The losses of both runs differ by no more than rounding explains.
//
// The two round alike, but for this: a sum over the ranks or over the squares of a gradient may be
// taken in another order, and a product that feeds a sum may be rounded on its own on one side (a
// host without fused multiply-add). So before an update is applied it differs, relative to the
// sizes of what it is summed from, by a few roundings: with 2 ranks, whose sum has but one order, 1
// of the clip factor and at most 1 in each of the 3 multiply-adds behind it (gradient to residual,
// moment, weight), that is 4 * 2^-24 = 2^-22. How far that carries a loss, through 40 steps and
// through masks in which a coordinate at the threshold gives way to its neighbour, is measured
// instead of guessed: `nudged` is the host's run at a learning rate that is larger by 2^-18, which
// moves every update by 16 times as much, all in the same direction. Losses are means in float:
// 2^-22 relative is granted on top.
void check_close(run_result const& run, run_result const& host, run_result const& nudged) {
  double reach = 0;
  bool close = run.steps.size() == host.steps.size() && nudged.steps.size() == host.steps.size();
  CHECK(close);
  for (std::size_t t = 0; close && t < host.steps.size(); ++t) {
    auto const want = host.steps[t].loss;
    reach = std::max(reach, std::abs(nudged.steps[t].loss - want));
    CAPTURE(t);
    CHECK(std::abs(run.steps[t].loss - want) <= reach + 0x1p-22 * want);
    CHECK(run.steps[t].bytes() == host.steps[t].bytes());
    CHECK(run.steps[t].density == host.steps[t].density);
    CHECK(run.steps[t].gradient_norm == doctest::Approx(host.steps[t].gradient_norm).epsilon(1e-3));
    CHECK(run.steps[t].residual_norm == doctest::Approx(host.steps[t].residual_norm).epsilon(1e-3));
    CHECK(run.steps[t].mask_overlap == doctest::Approx(host.steps[t].mask_overlap).epsilon(0.05));
  }
  CHECK(host.steps.back().loss < 0.95 * host.steps.front().loss);
}

}  // namespace

TEST_CASE("train_gpt on CUDA devices has the host's losses") {
  if (!enough_devices()) return;
  text_folder const folder;
  for (auto const& more :
       {std::vector<std::string>{"--optimizer", "dense-adamw"},
        {"--optimizer", "scape-adams", "--density", "0.1"},
        {"--optimizer", "scape-adamw", "--density", "0.02", "--wire", "bf16", "--lag", "2"}}) {
    CAPTURE(more.back());
    auto o = small(folder, more);
    auto const host = run(o);
    auto nudged = o;
    nudged.runs[0].lr *= 1 + 0x1p-18;
    o.device = device_kind::cuda;
    auto const cuda = run(o);
    check_close(cuda, host, run(nudged));
    CHECK(host.milliseconds[2] > 0);
    CHECK(cuda.milliseconds[2] == 0);
    CHECK(cuda.milliseconds.back() > 0);
  }
}

TEST_CASE("a checkpoint of the host goes on on CUDA devices, and the other way round") {
  if (!enough_devices()) return;
  text_folder const folder;
  for (auto const* optimizer : {"dense-adams", "scape-adams"}) {
    auto o = small(folder, {"--optimizer", optimizer});
    auto const host = run(o);
    auto nudged = o;
    nudged.runs[0].lr *= 1 + 0x1p-18;
    auto const reach = run(nudged);
    for (int step = 0; step < 6; ++step) {
      o.device = step % 2 == 0 ? device_kind::cuda : device_kind::host;
      CHECK_FALSE(run(o, true).finished);
      o.resume = true;
    }
    o.device = device_kind::cuda;
    check_close(run(o), host, reach);
  }
}

TEST_CASE("more ranks than devices are refused") {
  auto const devices = cuda_devices().value();
  auto const ranks = std::to_string(devices + 1);
  CHECK_THROWS_WITH_AS(parse({"--device", "cuda", "--ranks", ranks}),
                       doctest::Contains(("--ranks is " + ranks + ", the number of CUDA devices " +
                                          std::to_string(devices))
                                             .c_str()),
                       usage_error);
}
