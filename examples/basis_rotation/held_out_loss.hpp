// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The loss on held-out text.

#include <cstdint>
#include <span>

#include "corpus.hpp"
#include "gpt.hpp"

namespace basis_rotation {

//! The mean over about `rows` rows that spread evenly over the held-out text; `b` is overwritten.
inline double held_out_loss(train_gpt::gpt<float>& model, std::span<float const> weights,
                            train_gpt::corpus const& text, train_gpt::batch& b, std::int64_t rows) {
  auto const rows_per_batch = std::ssize(b.inputs) / b.context;
  auto const batches = (rows + rows_per_batch - 1) / rows_per_batch;
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    train_gpt::take_spread(b, text.held_out(), i, batches);
    sum += static_cast<double>(model.loss(weights, b.inputs, b.targets));
  }
  return sum / static_cast<double>(batches);
}

}  // namespace basis_rotation
