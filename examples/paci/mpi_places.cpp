// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <scape/comm/mpi.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "paci/place.hpp"
#include "paci/stage_job.hpp"
#include "train_gpt/gather.hpp"

namespace paci {
namespace {

template <class T>
void put(std::string& bytes, std::span<T const> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  auto const count = std::ssize(values);
  bytes.append(reinterpret_cast<char const*>(&count), sizeof(count));
  bytes.append(reinterpret_cast<char const*>(values.data()), values.size_bytes());
}

template <class T>
std::vector<T> take(std::string_view& bytes) {
  std::ptrdiff_t count = 0;
  std::memcpy(&count, bytes.data(), sizeof(count));
  bytes.remove_prefix(sizeof(count));
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  bytes.remove_prefix(values.size() * sizeof(T));
  return values;
}

std::string pack(stage_result const& r) {
  std::string bytes;
  put<event>(bytes, r.log);
  for (auto const number : {r.slot_bytes, r.peak_in_flight, r.max_drift, r.skipped}) {
    put<std::int64_t>(bytes, std::span(&number, 1));
  }
  for (auto const& s : r.snapshots) {
    put<std::int64_t>(bytes, std::array{s.backwards, s.time});
    put<float>(bytes, s.weights);
  }
  return bytes;
}

stage_result unpack(std::string_view bytes) {
  stage_result r;
  r.log = take<event>(bytes);
  for (auto* const number : {&r.slot_bytes, &r.peak_in_flight, &r.max_drift, &r.skipped}) {
    *number = take<std::int64_t>(bytes).front();
  }
  while (!bytes.empty()) {
    auto const when = take<std::int64_t>(bytes);
    r.snapshots.push_back({when[0], when[1], take<float>(bytes)});
  }
  return r;
}

// A communicator of the processes of one colour, in the order of `key`.
scape::mpi_communicator split(int colour, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, colour, key, &part);
  scape::mpi_communicator comm(part, {.deadline = deadline});
  MPI_Comm_free(&part);
  return comm;
}

class mpi_places final : public grid {
 public:
  mpi_places(int& argc, char**& argv) : mpi_(argc, argv) {}
  // Launchers may kill the others as soon as a process ends with an exit code that is not 0.
  ~mpi_places() override { std::fflush(nullptr); }

  [[nodiscard]] int process() const override { return world_.rank(); }
  [[nodiscard]] std::optional<int> processes() const override { return world_.size(); }
  [[nodiscard]] std::optional<int> first_with(bool value) override {
    auto const values = train_gpt::gather(world_, static_cast<char>(value));
    auto const first = std::find(values.begin(), values.end(), 1);
    if (first == values.end()) return std::nullopt;
    return static_cast<int>(first - values.begin());
  }

  [[nodiscard]] std::vector<stage_result> run(stage_job const& job) override {
    int const stages = job.o.stages;
    place const at{process() % stages, process() / stages};
    if (!pipeline_) pipeline_ = split(at.replica, at.stage);
    if (!replicas_) replicas_ = split(at.stage, at.replica);
    return collect(run_stage(job, at, *pipeline_, *replicas_));
  }

  void abort(std::string const& why) override {
    for (auto* const comm : {&pipeline_, &replicas_}) {
      if (*comm) (*comm)->abort(why);
    }
    world_.abort(why);
  }

 private:
  // Everything goes to process 0.
  std::vector<stage_result> collect(stage_result mine) {
    scape::host_context const context;
    std::string const bytes = process() == 0 ? std::string() : pack(mine);
    auto const lengths = train_gpt::gather(world_, bytes.size());
    if (process() != 0) {
      world_.send(context, std::span<char const>(bytes), 0).wait(context);
      return {};
    }
    std::vector<stage_result> results;
    results.push_back(std::move(mine));
    for (int from = 1; from < world_.size(); ++from) {
      std::string theirs(lengths[static_cast<std::size_t>(from)], '\0');
      world_.recv(context, std::span(theirs), from).wait(context);
      results.push_back(unpack(theirs));
    }
    return results;
  }

  scape::mpi_environment mpi_;
  scape::mpi_communicator world_{MPI_COMM_WORLD, {.deadline = deadline}};
  std::optional<scape::mpi_communicator> pipeline_, replicas_;
};

}  // namespace

std::unique_ptr<grid> make_mpi_grid(int& argc, char**& argv) {
  return std::make_unique<mpi_places>(argc, argv);
}

}  // namespace paci
