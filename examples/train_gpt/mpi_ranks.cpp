// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <scape/comm/mpi.hpp>

#include "gather.hpp"
#include "host_optimizer.hpp"
#include "rank_group.hpp"
#include "rank_trainer.hpp"

namespace train_gpt {
namespace {

class mpi_ranks final : public rank_group {
 public:
  mpi_ranks(int& argc, char**& argv) : mpi_(argc, argv) {}
  // Launchers may kill the others as soon as a process ends with an exit code that is not 0.
  ~mpi_ranks() override { std::fflush(nullptr); }

  [[nodiscard]] int process() const override { return comm_.rank(); }
  [[nodiscard]] std::optional<int> processes() const override { return comm_.size(); }
  [[nodiscard]] std::optional<int> first_with(bool value) override {
    return first(gather(comm_, static_cast<char>(value)), [](char v) { return v != 0; });
  }
  [[nodiscard]] std::optional<int> first_unlike(std::uint64_t value) override {
    auto const values = gather(comm_, value);
    return first(values, [&](std::uint64_t v) { return v != values.front(); });
  }
  void train(shared_run const& s, progress& line) override {
    rank_trainer(s, comm_, make_host_optimizer(comm_, s.layout, s.o, s.run), &line).train();
  }
  void abort(std::string const& why) override { comm_.abort(why); }

 private:
  template <class T, class Predicate>
  static std::optional<int> first(std::vector<T> const& values, Predicate const& is) {
    auto const found = std::find_if(values.begin(), values.end(), is);
    if (found == values.end()) return std::nullopt;
    return static_cast<int>(found - values.begin());
  }

  scape::mpi_environment mpi_;
  scape::mpi_communicator comm_{MPI_COMM_WORLD, {.deadline = patience}};
};

}  // namespace

std::unique_ptr<rank_group> make_mpi_ranks(int& argc, char**& argv) {
  return std::make_unique<mpi_ranks>(argc, argv);
}

}  // namespace train_gpt
