// SPDX-License-Identifier: Apache-2.0

//! @file
//! Adam in the Hessian's eigenbasis under the delays of an asynchronous pipeline.

#include <fmt/format.h>

#include <exception>
#include <vector>

#include "corpus.hpp"
#include "experiments.hpp"
#include "files.hpp"
#include "page.hpp"
#include "settings.hpp"
#include "tables.hpp"
#include "usage_error.hpp"

namespace {

using namespace basis_rotation;

constexpr int exit_failure = 1, exit_usage = 2;

void run(settings const& s) {
  train_gpt::corpus const text(s.corpus);
  auto const least = s.shape.context + 1;
  if (std::ssize(text.training()) < least || std::ssize(text.held_out()) < least) {
    throw train_gpt::usage_error(
        fmt::format("corpus '{}' is too small for context {}", s.corpus.string(), s.shape.context));
  }
  train_gpt::prepare_folder(s.out);
  std::vector<noted_table> tables;
  run_experiments(s, text, [&](results const& r) {
    tables = make_tables(s, r);
    train_gpt::write_atomically(s.out / "runs.csv", runs_csv(r));
    train_gpt::write_atomically(s.out / "curves.csv", curves_csv(r));
    train_gpt::write_atomically(s.out / "energy.csv", energy_csv(r));
    train_gpt::write_atomically(s.out / "sync.csv", sync_csv(r));
    train_gpt::write_atomically(s.out / "report.html", page_html(s, r));
  });
  for (auto const& [table, note] : tables) fmt::print("{}{}\n\n", bench::text(table), note);
  fmt::print("Report: {}\n", (s.out / "report.html").string());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse_settings(argc, argv));
    return 0;
  } catch (train_gpt::help_request const& help) {
    fmt::print("{}", help.what());
    return 0;
  } catch (train_gpt::usage_error const& e) {
    fmt::print(stderr, "basis_rotation: {}\n", e.what());
    return exit_usage;
  } catch (std::exception const& e) {
    fmt::print(stderr, "basis_rotation: {}\n", e.what());
    return exit_failure;
  }
}
