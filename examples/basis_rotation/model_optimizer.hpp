// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A method's optimizer of all tensors of a model.

#include <cstddef>
#include <cstdint>
#include <scape/optim/rotated_adam.hpp>
#include <span>
#include <variant>
#include <vector>

#include "method.hpp"
#include "stages.hpp"

namespace basis_rotation {

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
