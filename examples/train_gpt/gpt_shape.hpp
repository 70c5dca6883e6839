// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The size of a model.

#include <cstdint>

namespace train_gpt {

struct gpt_shape {
  std::int64_t layers = 2;
  std::int64_t width = 64;  //!< a multiple of `heads`
  std::int64_t heads = 4;
  std::int64_t context = 64;  //!< bytes seen by one prediction
  bool tied = true;           //!< the head's matrix is the token embedding
};

}  // namespace train_gpt
