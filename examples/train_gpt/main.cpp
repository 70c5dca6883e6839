// SPDX-License-Identifier: Apache-2.0

//! @file
//! Trains a small GPT with dense and with sparse optimizer sync and compares the two.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "corpus.hpp"
#include "files.hpp"
#include "options.hpp"
#include "random.hpp"
#include "rank_group.hpp"
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

int train_all(options const& o, corpus const& text, std::vector<checkpoint> points,
              rank_group& ranks) {
  bool const prints = ranks.process() == 0;
  std::vector<run_result> results;
  // Whether a run has finished is the same in all processes; whether a signal came is not.
  for (std::size_t i = 0; i < o.runs.size() && (i == 0 || results.back().finished); ++i) {
    auto title = fmt::format("[{}/{}] {}", i + 1, o.runs.size(), o.runs[i].label);
    results.push_back(
        train(o, text, o.runs[i], std::move(points[i]), title, stop_requested, ranks));
    if (prints) write_results(o, results);
  }
  if (prints) {
    fmt::print("{}\nReport: {}\n", text_table(summarise(results)),
               (o.out / "report.html").string());
  }
  if (results.back().finished) return 0;
  if (prints) {
    fmt::print(stderr,
               "train_gpt: interrupted; the same command with --resume goes on from here\n");
  }
  return exit_interrupted;
}

// A request without mistakes, with all that it needs.
struct job {
  options o;
  corpus text;
  std::vector<checkpoint> points;
};

job prepare(int argc, char const* const* argv, rank_group const& ranks) {
  auto o = parse_options(argc, argv, ranks.processes());
  corpus text(o.corpus);
  check_size(text, o);
  auto points = starting_points(o, text);
  if (ranks.process() == 0)
    prepare_folder(o.out);
  else
    o.quiet = true;
  return {std::move(o), std::move(text), std::move(points)};
}

// Of what must be the same in all processes, so that they do the same.
std::uint64_t fingerprint(job const& work) {
  auto const add = [](auto const& elements, std::uint64_t hash) {
    return fnv1a(std::as_bytes(std::span(elements)), hash);
  };
  auto hash = static_cast<std::uint64_t>(work.o.checkpoint_every);
  for (auto const& c : work.points) {
    hash = add(c.weights, add(c.settings + std::to_string(c.step), hash));
  }
  return hash;
}

int run(int argc, char const* const* argv, rank_group& ranks) {
  std::optional<job> work;
  std::string mistake;
  try {
    work = prepare(argc, argv, ranks);
  } catch (help_request const& help) {
    if (ranks.process() == 0) fmt::print("{}", help.what());
    return 0;
  } catch (usage_error const& e) {
    mistake = e.what();
  }
  if (auto const first = ranks.first_with(!work)) {
    if (ranks.process() == *first) fmt::print(stderr, "train_gpt: {}\n", mistake);
    return exit_usage;
  }
  if (auto const unlike = ranks.first_unlike(fingerprint(*work))) {
    if (ranks.process() == *unlike) {
      fmt::print(stderr,
                 "train_gpt: rank {} has other arguments, another corpus or another checkpoint "
                 "than rank 0; give all ranks the same\n",
                 *unlike);
    }
    return exit_usage;
  }
  handle_signals();
  return train_all(work->o, work->text, std::move(work->points), ranks);
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<rank_group> ranks;
  try {
    ranks = requested_comm(argc, argv) == comm_kind::mpi ? make_mpi_ranks(argc, argv)
                                                         : make_thread_ranks();
    return run(argc, argv, *ranks);
  } catch (usage_error const& e) {
    fmt::print(stderr, "train_gpt: {}\n", e.what());
    return exit_usage;
  } catch (std::exception const& e) {
    bool const several = ranks != nullptr && ranks->processes();
    fmt::print(stderr, "train_gpt: {}{}\n",
               several ? fmt::format("rank {}: ", ranks->process()) : "", e.what());
    if (ranks != nullptr) ranks->abort(e.what());
    return exit_failure;
  }
}
