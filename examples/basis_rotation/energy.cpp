// SPDX-License-Identifier: Apache-2.0
#include "energy.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "model_optimizer.hpp"

namespace basis_rotation {

double energy_share(std::span<float const> values, double part) {
  std::vector<double> squares;
  for (auto const x : values) squares.push_back(static_cast<double>(x) * static_cast<double>(x));
  auto const count = std::clamp<std::ptrdiff_t>(
      std::lround(part * static_cast<double>(values.size())), 1, std::ssize(squares));
  auto const end = squares.begin() + count;
  std::nth_element(squares.begin(), end - 1, squares.end(), std::greater());
  auto const all = std::accumulate(squares.begin(), squares.end(), 0.0);
  return all == 0 ? 0 : std::accumulate(squares.begin(), end, 0.0) / all;
}

std::vector<float> original_moments(model_optimizer& optimizer) {
  std::vector<float> all;
  for (std::size_t i = 0; i < optimizer.tensors(); ++i) {
    auto const& adam = optimizer.adam(i);
    if (!adam.rotates()) continue;
    auto const m = adam.first_moment();
    all.insert(all.end(), m.begin(), m.end());
  }
  return all;
}

std::vector<float> rotated_moments(model_optimizer& optimizer) {
  std::vector<float> all;
  for (std::size_t i = 0; i < optimizer.tensors(); ++i) {
    auto& adam = optimizer.adam(i);
    if (!adam.rotates()) continue;
    auto const m = adam.first_moment();
    all.resize(all.size() + m.size());
    adam.rotate(m, std::span(all).last(m.size()));
  }
  return all;
}

}  // namespace basis_rotation
