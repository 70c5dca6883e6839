// SPDX-License-Identifier: Apache-2.0

//! @file
//! Times steps of the dense and the sparse optimizer over MPI: a run per optimizer and density,
//! appended to network.csv, and all runs of that file as network.html and network.svg.

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include <scape/comm/mpi.hpp>

#include "command_line.hpp"
#include "files.hpp"
#include "measure.hpp"
#include "report.hpp"
#include "results.hpp"

namespace {

// CLI::Range lets a NaN pass.
CLI::Validator range(double low, double high) {
  return {[=](std::string const& text) {
            double x = 0;
            bool const ok = CLI::detail::lexical_cast(text, x) && x >= low && x <= high;
            return ok ? "" : fmt::format("{} is not in [{}, {}]", text, low, high);
          },
          fmt::format("FLOAT in [{} - {}]", low, high)};
}

}  // namespace

int main(int argc, char** argv) {
  network::settings s;
  std::filesystem::path out = "network_out";
  auto const command = train_gpt::command_of(argc, argv);
  CLI::App app("Times steps of the dense and the sparse optimizer over MPI; start it with mpirun.");
  app.option_defaults()->always_capture_default();
  app.add_option("--link", s.link, "name of the network in the tables")
      ->check([](std::string const& name) {
        return name.find_first_of(",\n") == name.npos ? "" : "a cell of network.csv has no comma";
      });
  app.add_option("--parameters", s.elements, "parameters")->check(CLI::Range(1L, 1L << 33));
  app.add_option("--density", s.densities, "densities of the sparse runs")->check(range(0, 1));
  app.add_option("--wire", s.wire, "bytes of a value: 4, or 2 for bfloat16")
      ->check(CLI::IsMember({2, 4}));
  app.add_option("--lag", s.lag, "steps between choosing a mask and using it")
      ->check(CLI::Range(0, 8));
  auto* compute = app.add_option("--compute", s.compute, "ms of a sleep for forward and backward")
                      ->check(range(0, 1e6));
  app.add_option("--compute-share", s.compute_share, "or its share of the dense step")
      ->check(range(0, 0.99))
      ->excludes(compute);
  app.add_flag("--masks,!--no-masks", s.masks, "gather masks; without them weights diverge");
  app.add_option("--steps", s.steps, "timed steps of a run, at most")->check(CLI::Range(1, 10000));
  app.add_option("--seconds", s.seconds, "of a run, after which fewer steps will do")
      ->check(range(0, 1e6));
  app.add_option("--out", out, "output folder");
  CLI11_PARSE(app, argc, argv);
  try {
    scape::mpi_environment const mpi(argc, argv, MPI_THREAD_MULTIPLE);
    try {
      scape::mpi_communicator comm(MPI_COMM_WORLD, {.progress = scape::mpi_progress::thread});
      bool const first = comm.rank() == 0;
      auto const file = out / "network.csv";
      if (first) {
        train_gpt::prepare_folder(out);
        if (std::filesystem::exists(file)) static_cast<void>(network::read(file));
      }
      network::measure(comm, s, [&](network::measurement const& m) {
        if (!first) return;
        fmt::print("{}", network::line(m));
        std::fflush(stdout);
        network::append(file, {m});
      });
      if (first) {
        auto const all = network::read(file);
        train_gpt::write_atomically(out / "network.svg", network::svg(all));
        train_gpt::write_atomically(out / "network.html", network::html(all, command));
      }
      return 0;
    } catch (std::exception const& e) {
      fmt::print(stderr, "network: {}\n", e.what());
      throw;
    }
  } catch (std::exception const&) {
    return 1;
  }
}
