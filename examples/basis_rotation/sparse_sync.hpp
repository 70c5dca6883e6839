// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Data-parallel training with a sparse sync whose mask is taken in either basis.

#include <cstdint>
#include <vector>

#include "corpus.hpp"
#include "delayed_training.hpp"
#include "method.hpp"
#include "settings.hpp"

namespace basis_rotation {

enum class mask_basis : std::uint8_t { original, rotated };

struct sync_run {
  method how = method::adam;
  double density = 1;  //!< of the matrices; biases and gains are always sent
  mask_basis basis = mask_basis::original;
  double lr = 0;
  std::uint64_t seed = 1;
};

struct sync_result {
  sync_run run;
  std::vector<loss_point> validation = {};
};

//! settings.sync_steps steps on settings.ranks threads that share settings.batch. Every rank holds
//! the whole optimizer, which takes the reduced values for the gradient:
//!
//!     rank i     u_i = e_i + (1 - b1) g_i          in the original or in the rotated basis
//!     owner      of each shard: mask where |M + u| (1 + age) is largest; gathered at once
//!     all        g = mean of u_i / (1 - b1) under the mask, 0 elsewhere: sparse_all_reduce
//!     rank i     e_i keeps the rest
//!     all        rotated_adam steps with g, turned back into the original basis
//!
//! The first step is dense. All ranks make the same bases of the same values, so no basis travels.
[[nodiscard]] sync_result train_with_sparse_sync(settings const& s, train_gpt::corpus const& text,
                                                 sync_run const& run);

}  // namespace basis_rotation
