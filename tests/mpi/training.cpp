// SPDX-License-Identifier: Apache-2.0

// training <folder> <steps> <deadline in ms>: trains from the newest checkpoint in the folder until
// so many steps are taken, and saves every tenth. What the ranks know together is printed after the
// start and at the end. pid-<rank> in the folder names the processes.

#include <mpi.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <scape/agreement.hpp>
#include <scape/checkpoint.hpp>
#include <scape/comm/mpi.hpp>
#include <scape/layout.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "support/optimizer_rig.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using rig_type = sparse_rig<scape::adamw, float, scape::mpi_communicator>;

constexpr std::int64_t n = 5000;

std::int64_t number(std::string_view text) {
  std::int64_t value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument("not a number: " + std::string(text));
  }
  return value;
}

// Weights, first moment of all shards, and the sum of what is unsent.
void print_state(rig_type& r, scape::mpi_communicator& comm, char const* when) {
  auto const& l = r.optimizer.parameters();
  std::vector<std::int64_t> counts;
  for (int p = 0; p < l.shards(); ++p) counts.push_back(l.shard_size(p));
  std::vector<float> m(at(n));
  comm.all_gather(r.ctx, r.optimizer.moments().m, std::span(m), counts).wait(r.ctx);
  std::vector<double> own(r.optimizer.residual().begin(), r.optimizer.residual().end());
  std::vector<double> unsent(own.size());
  comm.all_reduce(r.ctx, std::span<double const>(own), std::span(unsent), std::plus<>())
      .wait(r.ctx);
  if (comm.rank() != 0) return;
  std::printf("%s: step %lld weights %016llx moment %016llx unsent %016llx\n", when,
              static_cast<long long>(r.steps()),
              static_cast<unsigned long long>(scape::hash_of(std::span<float const>(r.weights))),
              static_cast<unsigned long long>(scape::hash_of(std::span<float const>(m))),
              static_cast<unsigned long long>(scape::hash_of(std::span<double const>(unsent))));
}

void train(scape::mpi_communicator& comm, std::filesystem::path const& folder, std::int64_t steps) {
  std::ofstream(folder / ("pid-" + std::to_string(comm.rank()))) << ::getpid() << '\n';
  auto o = exact_options(0.05);
  o.check_agreement = true;
  rig_type r(comm, {n, comm.size()}, o);
  scape::checkpoint_directory checkpoints(folder);
  checkpoints.load(r.ctx, r.optimizer, std::span(r.weights));
  print_state(r, comm, "start");
  while (r.steps() < steps) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // forward and backward
    r.step(integer_gradient(11, comm.rank(), r.steps(), n));
    if (r.steps() % 10 == 0) {
      checkpoints.save(r.ctx, r.optimizer, std::span<float const>(r.weights));
    }
  }
  print_state(r, comm, "end");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    scape::mpi_environment const mpi(argc, argv);
    try {
      if (argc != 4) throw std::invalid_argument("training <folder> <steps> <deadline in ms>");
      std::filesystem::create_directories(argv[1]);
      scape::mpi_communicator comm(MPI_COMM_WORLD,
                                   {.deadline = std::chrono::milliseconds(number(argv[3]))});
      train(comm, argv[1], number(argv[2]));
      return 0;
    } catch (std::exception const& e) {
      std::fprintf(stderr, "%s\n", e.what());
      throw;
    }
  } catch (std::exception const&) {
    return 1;
  }
}
