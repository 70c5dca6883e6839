// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace scape::detail::cuda {

struct topk_tuning {
  static constexpr int threads = 256;
  static constexpr int blocks_per_processor = 4;  //!< of a pass
  static constexpr int words = 4;        //!< of 64 elements a warp loads before it looks at them
  static constexpr int digit_bits = 12;  //!< by which a pass over all elements narrows the bracket
  static constexpr int list_digit_bits = 10;  //!< by which one block narrows it over a list
  static constexpr int flushed = 64;          //!< candidates a warp keeps before it writes them out
  static constexpr int sample_threads = 512;
  static constexpr int sample_size = 8192;
  //! Groups up to this length are collected as a whole; so is at least room for as many.
  static constexpr std::int64_t collected_length = 16384;
  //! Candidates at the threshold that are worth a list of their own.
  static constexpr std::int64_t rest_capacity = 16384;
};

}  // namespace scape::detail::cuda
