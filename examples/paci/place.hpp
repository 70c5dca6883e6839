// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Who is who in a grid of stages times replicas.

#include <cstddef>

namespace paci {

struct place {
  int stage = 0;
  int replica = 0;
};

//! The place's number among all.
[[nodiscard]] inline std::size_t number_of(place const& at, int stages) noexcept {
  return static_cast<std::size_t>(at.replica * stages + at.stage);
}

}  // namespace paci
