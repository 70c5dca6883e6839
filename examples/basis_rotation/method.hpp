// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The optimizers that are compared.

#include <array>
#include <cstdint>
#include <scape/optim/rotated_adam.hpp>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "stages.hpp"

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

//! Adam with Nesterov's look-ahead (NAdam): the step is (b1 m + (1 - b1) g) / (sqrt(v) + eps), each
//! part with its own bias correction.
class nesterov_adam {
 public:
  nesterov_adam(std::int64_t size, float beta1, float beta2, float epsilon);
  void step(std::span<float> weights, std::span<float const> gradient, float lr);

 private:
  float beta1_, beta2_, epsilon_;
  std::int64_t steps_ = 0;
  std::vector<float> m_, v_;
};

//! One optimizer per tensor.
class model_optimizer {
 public:
  //! `intervals`: between refreshes, by tensor.
  model_optimizer(method m, std::span<staged_tensor const> tensors,
                  std::span<std::int64_t const> intervals);

  //! `lr` by tensor. Weights and gradient are the flat vectors of the model.
  void step(std::span<float> weights, std::span<float const> gradient, std::span<double const> lr);

  //! Refreshes of all tensors.
  [[nodiscard]] std::int64_t refreshes() const;

  [[nodiscard]] std::size_t tensors() const noexcept { return tensors_.size(); }
  //! The optimizer of tensor `i`. Not for method::nesterov.
  [[nodiscard]] scape::rotated_adam& adam(std::size_t i);

 private:
  std::vector<staged_tensor> tensors_;
  std::vector<std::variant<scape::rotated_adam, nesterov_adam>> optimizers_;
};

}  // namespace basis_rotation
