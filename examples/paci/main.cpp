// SPDX-License-Identifier: Apache-2.0

//! @file
//! Trains a small GPT in pipeline stages, synchronously and asynchronously, and compares the two.

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paci/grid.hpp"
#include "paci/options.hpp"
#include "paci/report.hpp"
#include "paci/run.hpp"
#include "paci/summary.hpp"
#include "train_gpt/corpus.hpp"
#include "train_gpt/files.hpp"
#include "train_gpt/usage_error.hpp"

namespace {

using namespace paci;
using train_gpt::usage_error;

constexpr int exit_failure = 1, exit_usage = 2;

// A request without mistakes, with all that it needs.
struct job {
  options o;
  train_gpt::corpus text;
};

job prepare(int argc, char const* const* argv, grid const& places) {
  auto o = parse_options(argc, argv, places.processes());
  train_gpt::corpus text(o.training.corpus);
  auto const least = o.training.shape.context + 1;
  if (std::min(std::ssize(text.training()), std::ssize(text.held_out())) < least) {
    throw usage_error(
        fmt::format("corpus '{}' is too small: context {} needs {} bytes to train on "
                    "and as many held out",
                    o.training.corpus.string(), o.training.shape.context, least));
  }
  if (places.process() == 0)
    train_gpt::prepare_folder(o.training.out);
  else
    o.training.quiet = true;
  return {std::move(o), std::move(text)};
}

void write_results(options const& o, std::vector<run_result> const& results) {
  auto const& last = results.back();
  auto const stem = fmt::format("{}-seed{}", last.spec.name(), last.spec.seed);
  auto const write = [&](std::string const& name, std::string const& content) {
    train_gpt::write_atomically(o.training.out / name, content);
  };
  write(stem + ".events.csv", events_csv(o, last));
  if (!last.validation.empty()) write(stem + ".csv", curve_csv(last));
  write("summary.csv", summary_csv(o, results));
  write("report.html", report_html(o, results));
}

void run_all(options const& o, train_gpt::corpus const& text, grid& places) {
  std::vector<run_result> results;
  for (auto const& spec : o.runs) {
    results.push_back(run(o, text, spec, places));
    if (places.process() != 0) continue;
    write_results(o, results);
    if (o.training.quiet) continue;
    auto const row = summarise(o, std::span(&results.back(), 1)).front();
    fmt::print(stderr, "[{}/{}] {}, seed {}: {:.1f} s{}\n", results.size(), o.runs.size(),
               spec.label(), spec.seed, row.seconds,
               row.loss ? fmt::format(", loss {:.4f}", *row.loss) : std::string());
  }
  if (places.process() != 0) return;
  fmt::print("{}\nReport: {}\n", bench::text(summary_table(o, summarise(o, results))),
             (o.training.out / "report.html").string());
}

int run_program(int argc, char const* const* argv, grid& places) {
  std::optional<job> work;
  std::string mistake;
  try {
    work = prepare(argc, argv, places);
  } catch (train_gpt::help_request const& help) {
    if (places.process() == 0) fmt::print("{}", help.what());
    return 0;
  } catch (usage_error const& e) {
    mistake = e.what();
  }
  if (auto const first = places.first_with(!work)) {
    if (places.process() == *first) fmt::print(stderr, "paci: {}\n", mistake);
    return exit_usage;
  }
  run_all(work->o, work->text, places);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::unique_ptr<grid> places;
  try {
    bool const mpi = train_gpt::requested_comm(argc, argv) == train_gpt::comm_kind::mpi;
    places = mpi ? make_mpi_grid(argc, argv) : make_thread_grid();
    return run_program(argc, argv, *places);
  } catch (usage_error const& e) {
    fmt::print(stderr, "paci: {}\n", e.what());
    return exit_usage;
  } catch (std::exception const& e) {
    bool const several = places != nullptr && places->processes();
    fmt::print(stderr, "paci: {}{}\n",
               several ? fmt::format("process {}: ", places->process()) : "", e.what());
    if (places != nullptr) places->abort(e.what());
    return exit_failure;
  }
}
