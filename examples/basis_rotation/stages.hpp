// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The parameters of the GPT on the stages of a simulated pipeline.

#include <cstdint>
#include <string>
#include <vector>

#include "gpt_shape.hpp"

namespace basis_rotation {

struct staged_tensor {
  std::string name;
  std::int64_t offset = 0;  //!< in the flat vector
  std::int64_t rows = 1;    //!< 1 where nothing is rotated: vectors and tables
  std::int64_t columns = 0;
  std::int64_t delay = 0;  //!< steps: stages - k on stage k = 1 ... stages

  [[nodiscard]] std::int64_t length() const noexcept { return rows * columns; }
};

//! The most stages a model has: one per matrix of its blocks.
[[nodiscard]] std::int64_t most_stages(train_gpt::gpt_shape const& shape);

//! All tensors in memory order. The matrices of the blocks are dealt out to the stages in the order
//! of depth, as evenly as possible. Biases and gains are where the matrix next to them is, both
//! embeddings on the first stage and the head on the last one.
[[nodiscard]] std::vector<staged_tensor> place_on_stages(train_gpt::gpt_shape const& shape,
                                                         std::int64_t stages);

}  // namespace basis_rotation
