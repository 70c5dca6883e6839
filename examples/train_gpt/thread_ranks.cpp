// SPDX-License-Identifier: Apache-2.0
#include <scape/comm/threads.hpp>

#include "rank_group.hpp"
#include "rank_trainer.hpp"

namespace train_gpt {
namespace {

class thread_ranks final : public rank_group {
 public:
  [[nodiscard]] int process() const override { return 0; }
  [[nodiscard]] std::optional<int> processes() const override { return std::nullopt; }
  [[nodiscard]] std::optional<int> first_with(bool value) override {
    return value ? std::optional(0) : std::nullopt;
  }
  [[nodiscard]] std::optional<int> first_unlike(std::uint64_t) override { return std::nullopt; }
  void train(shared_run const& s, progress& line) override {
    auto const rank_main = [&](scape::thread_communicator& comm) {
      rank_trainer(s, comm, make_optimizer(comm, s.layout, s.o, s.run),
                   comm.rank() == 0 ? &line : nullptr)
          .train();
    };
    scape::run_threads(s.o.ranks, rank_main, {.deadline = patience});
  }
  void abort(std::string const&) override {}
};

}  // namespace

std::unique_ptr<rank_group> make_thread_ranks() { return std::make_unique<thread_ranks>(); }

}  // namespace train_gpt
