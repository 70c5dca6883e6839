// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The optimizers that are compared.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace basis_rotation {

enum class method : std::uint8_t {
  adam,
  stagewise_lr,  //!< Adam, with a smaller learning rate on earlier stages at the start (PipeMare)
  nesterov,      //!< Adam with a look-ahead and b1 = 0.99
  first_unilateral,
  first_bilateral,
  second_unilateral,
  second_bilateral
};

struct method_traits {
  std::string_view name;   //!< in files and on the command line
  std::string_view label;  //!< for people
};

inline constexpr std::array<method_traits, 7> methods = {{
    {"adam", "Adam"},
    {"stagewise-lr", "Adam, stage-wise lr"},
    {"nesterov", "Adam, Nesterov"},
    {"1st-uni", "rotated, 1st, unilateral"},
    {"1st-bi", "rotated, 1st, bilateral"},
    {"2nd-uni", "rotated, 2nd, unilateral"},
    {"2nd-bi", "rotated, 2nd, bilateral"},
}};

[[nodiscard]] constexpr method_traits const& traits(method m) {
  return methods[static_cast<std::size_t>(m)];
}
[[nodiscard]] constexpr bool is_rotated(method m) { return m >= method::first_unilateral; }

}  // namespace basis_rotation
