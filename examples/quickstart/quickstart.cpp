// SPDX-License-Identifier: Apache-2.0
// Four ranks fit a noisy quadratic; each step moves 10 % of gradients and parameters.
#include <cstdio>
#include <random>
#include <vector>

#include <scape/scape.hpp>

int main() {
  constexpr int ranks = 4, steps = 500;
  constexpr std::int64_t n = 100'000;

  scape::run_threads(ranks, [](scape::thread_communicator& comm) {
    using optimizer = scape::sparse_optimizer<scape::adams, scape::thread_communicator>;
    auto const layout = scape::layout(n, comm.size());
    auto const options = scape::sparse_optimizer_options::staleness_aware(/*density=*/0.1);
    scape::host_buffer const storage(optimizer::storage_bytes(layout, options));
    scape::host_buffer const scratch(optimizer::scratch_bytes(layout, options));
    scape::host_context const ctx{scratch.bytes()};
    optimizer opt(comm, layout, options, storage.bytes());

    std::mt19937 random(static_cast<unsigned>(comm.rank()));  // each rank sees data of its own
    std::normal_distribution<float> noise(0.0F, 0.5F);
    std::vector<float> weights(n), gradient(n);
    for (int step = 0; step < steps; ++step) {
      double loss = 0;
      for (std::size_t j = 0; j < weights.size(); ++j) {
        auto const error = weights[j] - 1.0F;
        loss += 0.5 * error * error / n;
        gradient[j] = error + noise(random);
      }
      auto const lr = 1e-2F * (1.0F - static_cast<float>(step) / steps);
      auto const& report = opt.step(ctx, weights, gradient, {.lr = lr});
      if (comm.rank() == 0 && step % 100 == 99) {
        auto const dense = 2.0 * sizeof(float) * n * (ranks - 1) / ranks;
        std::printf("step %4d  loss %.5f  bytes received %6lld (%.1f %% of dense)\n", step + 1,
                    loss, static_cast<long long>(report.bytes.total()),
                    100.0 * static_cast<double>(report.bytes.total()) / dense);
      }
    }
  });
}
