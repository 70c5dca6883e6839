// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace scape::detail::cuda {

struct masked_pass_tuning {
  static constexpr int threads = 256;
  static constexpr int accumulate_words = 4;  //!< of 64 elements a warp loads before it stores
  static constexpr int copy_words = 4;
  static constexpr int rebuild_words = 2;
};

}  // namespace scape::detail::cuda
