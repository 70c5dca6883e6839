// SPDX-License-Identifier: Apache-2.0

//! @file
//! Trains a small GPT with dense and with sparse optimizer sync and compares the two.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <exception>
#include <vector>

#include "corpus.hpp"
#include "files.hpp"
#include "options.hpp"
#include "report.hpp"
#include "summary.hpp"
#include "trainer.hpp"
#include "usage_error.hpp"

namespace {

using namespace train_gpt;

constexpr int exit_failure = 1, exit_usage = 2, exit_interrupted = 130;

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// The first signal ends the run after its step, a second one ends the process.
void handle_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int const signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

void check_size(corpus const& text, options const& o) {
  auto const least = o.shape.context + 1;
  if (std::ssize(text.training()) < least || std::ssize(text.held_out()) < least) {
    throw usage_error(fmt::format(
        "corpus '{}' is too small: {} bytes to train on and {} held out; context {} needs {} of "
        "each",
        o.corpus.string(), text.training().size(), text.held_out().size(), o.shape.context, least));
  }
}

// Everything that can be wrong with the request shows here, before a file is written.
std::vector<checkpoint> starting_points(options const& o, corpus const& text) {
  auto const has_checkpoint = [&](run_spec const& run) {
    return std::filesystem::exists(checkpoint_path(o, run));
  };
  if (o.resume && std::none_of(o.runs.begin(), o.runs.end(), has_checkpoint)) {
    throw usage_error(fmt::format("--resume: no checkpoint of these runs in '{}'", o.out.string()));
  }
  std::vector<checkpoint> points;
  for (auto const& run : o.runs) points.push_back(starting_point(o, text, run));
  return points;
}

void write_results(options const& o, std::vector<run_result> const& results) {
  write_atomically(o.out / (results.back().spec.stem() + ".csv"), steps_csv(results.back()));
  write_atomically(o.out / "summary.csv", summary_csv(results));
  write_atomically(o.out / "report.html", report_html(o, results));
}

int train_all(options const& o, corpus const& text, std::vector<checkpoint> points) {
  std::vector<run_result> results;
  for (std::size_t i = 0; i < o.runs.size() && (i == 0 || !stop_requested); ++i) {
    auto title = fmt::format("[{}/{}] {}", i + 1, o.runs.size(), o.runs[i].label);
    results.push_back(train(o, text, o.runs[i], std::move(points[i]), title, stop_requested));
    write_results(o, results);
  }
  fmt::print("{}\nReport: {}\n", text_table(summarise(results)), (o.out / "report.html").string());
  if (results.size() == o.runs.size() && results.back().finished) return 0;
  fmt::print(stderr, "train_gpt: interrupted; the same command with --resume goes on from here\n");
  return exit_interrupted;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto const o = parse_options(argc, argv);
    if (!o) return 0;
    corpus const text(o->corpus);
    check_size(text, *o);
    auto points = starting_points(*o, text);
    prepare_folder(o->out);
    handle_signals();
    return train_all(*o, text, std::move(points));
  } catch (usage_error const& e) {
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return exit_usage;
  } catch (std::exception const& e) {
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return exit_failure;
  }
}
