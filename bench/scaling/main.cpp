// SPDX-License-Identifier: Apache-2.0

//! @file
//! Predicts how dense and sparse optimizer sync scale with the number of ranks.

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "files.hpp"
#include "options.hpp"
#include "paper.hpp"
#include "report.hpp"
#include "sweep.hpp"
#include "usage_error.hpp"

namespace {

using namespace scaling;

constexpr int exit_failure = 1, exit_usage = 2;

report predict(options const& o) {
  auto runs = sweep(o, rank_counts(o.from, o.to));
  std::vector<std::string> notes = {
      "A model, not a measurement: nothing here was timed. The global batch stays the same, so the "
      "compute of a rank falls with their number; nothing overlaps but the mask's all-gather."};
  if (o.cost.network.algorithm == scape::exchange_algorithm::ring) {
    notes.push_back(fmt::format(
        "A ring sends its messages one after the other: on {} ranks every exchange takes at least "
        "{:.1f} ms, however few its bytes. --algorithm tree is what a library does about it.",
        o.to, 1e3 * o.cost.network.exchange(o.to, 0)));
  }
  return {"Predicted strong scaling",
          std::move(notes),
          {parameter_table(o.parameters), step_table(runs), phase_table(runs)},
          std::move(runs)};
}

int run_program(options const& o) {
  auto const result = o.paper ? reproduce_paper(o) : predict(o);
  train_gpt::prepare_folder(o.out);
  train_gpt::write_atomically(o.out / "scaling.csv", csv(raw_table(result.runs)));
  train_gpt::write_atomically(o.out / "scaling.html", html(result, o));
  fmt::print("{}Plots: {}\n", text(result), (o.out / "scaling.html").string());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(parse_options(argc, argv));
  } catch (train_gpt::help_request const& help) {
    fmt::print("{}", help.what());
    return 0;
  } catch (train_gpt::usage_error const& e) {
    fmt::print(stderr, "scaling: {}\n", e.what());
    return exit_usage;
  } catch (scape::argument_error const& e) {
    fmt::print(stderr, "scaling: {}\n", e.what());
    return exit_usage;
  } catch (std::exception const& e) {
    fmt::print(stderr, "scaling: {}\n", e.what());
    return exit_failure;
  }
}
