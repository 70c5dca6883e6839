// SPDX-License-Identifier: Apache-2.0
#include "paci/place.hpp"
#include "paci/stage_job.hpp"
#include "paci/thread_grid.hpp"

namespace paci {
namespace {

class thread_places final : public grid {
 public:
  [[nodiscard]] int process() const override { return 0; }
  [[nodiscard]] std::optional<int> processes() const override { return std::nullopt; }
  [[nodiscard]] std::optional<int> first_with(bool value) override {
    return value ? std::optional(0) : std::nullopt;
  }
  [[nodiscard]] std::vector<stage_result> run(stage_job const& job) override {
    std::vector<stage_result> results(static_cast<std::size_t>(job.o.stages * job.o.replicas));
    auto const stage = [&](place const& at, scape::thread_communicator& pipeline,
                           scape::thread_communicator& replicas) {
      results[number_of(at, job.o.stages)] = run_stage(job, at, pipeline, replicas);
    };
    run_thread_grid(job.o.stages, job.o.replicas, stage, {.deadline = deadline});
    return results;
  }
  void abort(std::string const&) override {}
};

}  // namespace

std::unique_ptr<grid> make_thread_grid() { return std::make_unique<thread_places>(); }

}  // namespace paci
