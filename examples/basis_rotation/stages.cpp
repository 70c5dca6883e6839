// SPDX-License-Identifier: Apache-2.0
#include "stages.hpp"

#include <algorithm>

#include "gpt.hpp"

namespace basis_rotation {
namespace {

std::int64_t rows_of(train_gpt::tensor const& t, train_gpt::gpt_shape const& shape) {
  if (t.one_dimensional || !t.name.starts_with("block")) return 1;
  return t.name.ends_with("contract.weight") ? 4 * shape.width : shape.width;
}

}  // namespace

std::int64_t most_stages(train_gpt::gpt_shape const& shape) { return 4 * shape.layers; }

std::vector<staged_tensor> place_on_stages(train_gpt::gpt_shape const& shape, std::int64_t stages) {
  auto const matrices = most_stages(shape);
  std::vector<staged_tensor> placed;
  std::int64_t matrix = 0;  // the next one, or that of the bias
  for (auto const& t : parameter_tensors(shape)) {
    // A norm precedes the matrix it feeds, a bias follows its own.
    bool const follows = t.name.ends_with("bias") && !t.name.ends_with("norm.bias");
    auto const at = std::clamp<std::int64_t>(follows ? matrix - 1 : matrix, 0, matrices - 1);
    auto const rows = rows_of(t, shape);
    placed.push_back({.name = t.name,
                      .offset = t.offset,
                      .rows = rows,
                      .columns = t.length / rows,
                      .delay = stages - 1 - at * stages / matrices});
    if (rows > 1) ++matrix;
  }
  return placed;
}

}  // namespace basis_rotation
