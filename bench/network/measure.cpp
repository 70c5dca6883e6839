// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/cost_model.hpp>
#include <scape/float16.hpp>
#include <scape/lagged_mask_allgather.hpp>
#include <scape/network_cost.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>

namespace network {
namespace {

using clock = std::chrono::steady_clock;
using scape::adams;
using scape::host_context;

double milliseconds_since(clock::time_point start) {
  return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

// Bytes that this host's network interfaces, but the loopback, have received.
double received_bytes() {
  double sum = 0;
  std::error_code none;
  for (auto const& entry : std::filesystem::directory_iterator("/sys/class/net", none)) {
    if (entry.path().filename() == "lo") continue;
    double bytes = 0;
    std::ifstream(entry.path() / "statistics" / "rx_bytes") >> bytes;
    sum += bytes;
  }
  return sum;
}

// A communicator that gathers no masks but the first ones.
class without_masks {
 public:
  using context_type = host_context;
  using handle_type = scape::mpi_handle;

  without_masks(scape::mpi_communicator& comm, std::int64_t first) : comm_(&comm), left_(first) {}
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }

  template <class T>
  handle_type all_gather(host_context const& ctx, std::type_identity_t<std::span<T const>> send,
                         std::span<T> recv, std::span<std::int64_t const> counts) {
    bool const mask = std::is_same_v<T, scape::mask_word> || std::is_same_v<T, std::uint16_t>;
    if (mask && left_-- <= 0) return {};
    return comm_->all_gather(ctx, send, recv, counts);
  }
  template <class T, class Op = std::plus<>>
  handle_type reduce_scatter(host_context const& ctx, std::type_identity_t<std::span<T const>> send,
                             std::span<T> recv, std::span<std::int64_t const> counts, Op op = {}) {
    return comm_->reduce_scatter(ctx, send, recv, counts, op);
  }
  template <class T, class Op = std::plus<>>
  handle_type all_reduce(host_context const& ctx, std::type_identity_t<std::span<T const>> send,
                         std::span<T> recv, Op op = {}) {
    return comm_->all_reduce(ctx, send, recv, op);
  }
  handle_type barrier(host_context const& ctx) { return comm_->barrier(ctx); }

 private:
  scape::mpi_communicator* comm_;
  std::int64_t left_;  // masks that are gathered
};

class trainer {
 public:
  trainer(scape::mpi_communicator& comm, settings const& s)
      : comm_(&comm), s_(s), weights_(static_cast<std::size_t>(s.elements), 0.1F) {
    auto bits = 12345U + static_cast<std::uint32_t>(comm.rank());
    for (std::int64_t j = 0; j < s.elements; ++j) {
      bits = bits * 1664525U + 1013904223U;
      gradient_.push_back(static_cast<float>(bits >> 8U) * 0x1p-24F - 0.5F);
    }
  }

  // The dense run and the sparse ones.
  void run(std::function<void(measurement const&)> const& done) {
    auto const model = calibrated();
    auto narrow = model.options();
    narrow.value_bytes = s_.wire;
    scape::cost_model const sparse_model(narrow);
    scape::layout const layout(s_.elements, comm_->size());
    auto options = scape::sparse_optimizer_options::staleness_aware(1);
    auto const finish = [&](measurement m, std::string name, double density,
                            scape::step_prediction const& predicted) {
      m.link = s_.link;
      m.hosts = comm_->size();
      m.elements = s_.elements;
      m.run = std::move(name);
      m.density = density;
      m.compute = compute_;
      m.predicted = 1e3 * predicted.total() + compute_;
      m.latency = model.options().network.link.latency;
      m.bandwidth = 1 / model.options().network.link.inverse_bandwidth;
      done(m);
      return m.step;
    };
    compute_ = s_.compute;
    using dense = scape::dense_optimizer<adams, scape::mpi_communicator>;
    auto const plain = steps<dense>(*comm_, layout, scape::adam_options(options));
    if (s_.compute_share > 0) {
      // Step = compute + rest, and compute is to be that share of it.
      compute_ = plain.step * s_.compute_share / (1 - s_.compute_share);
      finish(steps<dense>(*comm_, layout, scape::adam_options(options)), "dense", 1,
             model.dense(layout));
    } else {
      finish(plain, "dense", 1, model.dense(layout));
    }
    for (auto const density : s_.densities) {
      options.density = density;
      options.lag = s_.lag;
      auto const name = fmt::format("SCAPE {:.6g} %{}", 100 * (1 - density),
                                    s_.masks ? "" : " without mask gather");
      finish(
          s_.wire == 2 ? sparse<scape::bfloat16>(layout, options) : sparse<float>(layout, options),
          name, density, sparse_model.sparse(layout, density));
    }
  }

 private:
  template <class Wire>
  measurement sparse(scape::layout const& layout, scape::sparse_optimizer_options const& options) {
    using scape::mpi_communicator;
    if (s_.masks) {
      return steps<scape::sparse_optimizer<adams, mpi_communicator, Wire>>(*comm_, layout, options);
    }
    // As many as there are slots.
    without_masks comm(*comm_, scape::lagged_mask_allgather<mpi_communicator>::slots(options.lag));
    return steps<scape::sparse_optimizer<adams, without_masks, Wire>>(comm, layout, options);
  }

  template <class Optimizer, class Comm, class Options>
  measurement steps(Comm& comm, scape::layout const& layout, Options const& options) {
    scape::host_buffer const storage(Optimizer::storage_bytes(layout, options));
    scape::host_buffer const scratch(Optimizer::scratch_bytes(layout, options));
    host_context const ctx{scratch.bytes()};
    Optimizer optimizer(comm, layout, options, storage.bytes());
    auto const step = [&]() -> scape::step_report const& {
      if (compute_ > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(compute_));
      }
      return optimizer.step(ctx, std::span(weights_), std::span<float const>(gradient_),
                            {.lr = 1e-3F});
    };
    // The first steps are dense; the one after the next finds out how many the time allows.
    for (int t = 0; t <= std::max(s_.lag, 1); ++t) step();
    auto const one = clock::now();
    step();
    std::array<double, 1> const mine = {milliseconds_since(one)};
    std::array<double, 1> slowest = {};
    comm.all_reduce(ctx, std::span<double const>(mine), std::span<double>(slowest),
                    scape::maximum{})
        .wait(ctx);
    auto const count = static_cast<int>(
        std::clamp<double>(1e3 * s_.seconds / slowest[0], std::min(3, s_.steps), s_.steps));

    comm.barrier(ctx).wait(ctx);
    auto const before = received_bytes();
    measurement result;
    std::vector<double> times;
    for (int t = 0; t < count; ++t) {
      auto const start = clock::now();
      auto const& report = step();
      times.push_back(milliseconds_since(start));
      auto const& ms = report.milliseconds;
      std::array<double, 6> const phases = {ms.guard,   ms.mask_wait,  ms.reduce_scatter,
                                            ms.rebuild, ms.all_gather, ms.select};
      for (std::size_t i = 0; i < phases.size(); ++i) result.phases[i] += phases[i];
      result.wire += static_cast<double>(report.bytes.total());
      if (!s_.masks) result.wire -= static_cast<double>(report.bytes.mask);
    }
    comm.barrier(ctx).wait(ctx);
    result.counted = received_bytes() - before;

    auto const own = times;
    comm.all_reduce(ctx, std::span<double const>(own), std::span(times), scape::maximum{})
        .wait(ctx);
    std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
    result.step = times[times.size() / 2];
    std::array<double, 8> sums = {}, all = {};
    std::ranges::copy(result.phases, sums.begin());
    sums[6] = result.wire;
    sums[7] = result.counted;
    comm.all_reduce(ctx, std::span<double const>(sums), std::span<double>(all), std::plus<>())
        .wait(ctx);
    for (auto& x : all) x /= count * comm.size();
    std::copy_n(all.begin(), 6, result.phases.begin());
    result.wire = all[6];
    result.counted = all[7];
    return result;
  }

  // Latency and bandwidth of the network, and of memory while all ranks use it: the passes of a
  // step of a rank alone, as the model counts their bytes, over their time. Of fp32 values, as the
  // dense optimizer sends them.
  scape::cost_model calibrated() {
    // The largest ones are beyond what a link's queues take at once.
    scape::calibration_options const c{.sizes = {1 << 10, 1 << 20, 1 << 22, 1 << 24, 1 << 26},
                                       .repetitions = 3,
                                       .algorithm = scape::exchange_algorithm::direct};
    scape::host_buffer const scratch(scape::calibration_bytes(c, comm_->size()));
    host_context const ctx{scratch.bytes()};
    scape::cost_model_options o;
    o.network.algorithm = c.algorithm;
    o.network.link = scape::calibrate(ctx, *comm_, c);
    o.lag = s_.lag;
    o.memory_bandwidth = 1;
    scape::layout const alone(s_.elements, 1);
    scape::self_communicator self;
    using optimizer = scape::sparse_optimizer<adams, scape::self_communicator>;
    auto options = scape::sparse_optimizer_options::staleness_aware(0.1);
    scape::host_buffer const storage(optimizer::storage_bytes(alone, options));
    scape::host_buffer const memory(optimizer::scratch_bytes(alone, options));
    optimizer local(self, alone, options, storage.bytes());
    std::vector<double> times;
    auto weights = weights_;
    for (int t = 0; t < 6; ++t) {
      comm_->barrier(ctx).wait(ctx);
      auto const start = clock::now();
      local.step({memory.bytes()}, std::span(weights), std::span<float const>(gradient_), {});
      times.push_back(milliseconds_since(start));
    }
    auto const own = times;
    comm_->all_reduce(ctx, std::span<double const>(own), std::span(times), scape::maximum{})
        .wait(ctx);
    std::sort(times.begin() + 2, times.end());
    o.memory_bandwidth = scape::cost_model(o).sparse(alone, 0.1).total() / (1e-3 * times[4]);
    return scape::cost_model(o);
  }

  scape::mpi_communicator* comm_;
  settings s_;
  double compute_ = 0;
  std::vector<float> weights_, gradient_;
};

}  // namespace

void measure(scape::mpi_communicator& comm, settings const& s,
             std::function<void(measurement const&)> const& done) {
  trainer(comm, s).run(done);
}

}  // namespace network
