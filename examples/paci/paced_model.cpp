// SPDX-License-Identifier: Apache-2.0
#include "paci/paced_model.hpp"

#include <algorithm>
#include <array>
#include <thread>

#include "train_gpt/random.hpp"

namespace paci {

std::chrono::nanoseconds measure_oversleep() {
  using clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds nap(1);
  std::array<std::chrono::nanoseconds, 31> over;
  for (auto& o : over) {
    auto const begin = clock::now();
    std::this_thread::sleep_until(begin + nap);
    o = clock::now() - begin - nap;
  }
  std::sort(over.begin(), over.end());
  return over[over.size() / 2];
}

double paced_model::forward(pass const& p, std::span<float const> in, std::span<float> out) {
  auto const begin = clock::now();
  double const loss = model_.forward(p, in, out);
  sleep(begin, pace_.forward, 2 * static_cast<std::uint64_t>(p.micro_batch));
  return loss;
}

void paced_model::backward(pass const& p, std::span<float const> out_gradient,
                           std::span<float> in_gradient, std::span<float> gradient) {
  auto const begin = clock::now();
  model_.backward(p, out_gradient, in_gradient, gradient);
  sleep(begin, pace_.backward, 2 * static_cast<std::uint64_t>(p.micro_batch) + 1);
}

void paced_model::sleep(clock::time_point begin, std::chrono::nanoseconds time,
                        std::uint64_t number) const {
  double const factor = 1 + pace_.jitter * (2 * train_gpt::uniform(pace_.seed, number) - 1);
  auto const whole = std::chrono::duration_cast<std::chrono::nanoseconds>(
      factor * std::chrono::duration<double>(time));
  std::this_thread::sleep_until(begin + whole - oversleep_);
}

double idle_model::forward(pass const&, std::span<float const> in, std::span<float> out) {
  if (in.size() == out.size()) std::copy(in.begin(), in.end(), out.begin());
  return 0;
}

void idle_model::backward(pass const&, std::span<float const> out_gradient,
                          std::span<float> in_gradient, std::span<float> gradient) {
  if (in_gradient.size() == out_gradient.size()) {
    std::copy(out_gradient.begin(), out_gradient.end(), in_gradient.begin());
  }
  std::fill(gradient.begin(), gradient.end(), 1.0F);
}

}  // namespace paci
