// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A small byte-level GPT with hand-written backward pass on one flat parameter vector.

#include <Eigen/Core>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gpt_shape.hpp"

namespace train_gpt {

inline constexpr std::int64_t vocabulary = 256;

//! One parameter tensor inside the flat vector.
struct tensor {
  std::string name;
  std::int64_t offset = 0;
  std::int64_t length = 0;
  bool one_dimensional = false;  //!< a bias or a layer-norm gain
};

//! The tensors of a model, in memory order and without gaps. Weights are stored [input, output].
[[nodiscard]] std::vector<tensor> parameter_tensors(gpt_shape const& shape);

[[nodiscard]] std::int64_t parameter_count(gpt_shape const& shape);

//! GPT-2 initialisation: N(0, 0.02), output projections scaled by 1/sqrt(2 layers), unit gains,
//! zero biases. A pure function of shape and seed.
[[nodiscard]] std::vector<float> initial_parameters(gpt_shape const& shape, std::uint64_t seed);

//! Memory for parameters and gradients. Eigen groups sums by alignment, so runs give equal bits
//! only if theirs is equal.
template <class T>
using aligned_vector = std::vector<T, Eigen::aligned_allocator<T>>;

//! Pre-layer-norm transformer with learned positions, GELU (tanh form) and a tied output head.
//! Owns the activations of one batch: nothing is allocated after construction. One object per
//! thread. Defined in gpt_definitions.hpp; instantiated for float.
template <class T>
class gpt {
 public:
  //! `batch` rows of `shape.context` bytes each.
  gpt(gpt_shape const& shape, std::int64_t batch);

  //! Mean cross-entropy in nats per byte. `inputs` and `targets` hold batch * context bytes.
  T loss(std::span<T const> parameters, std::span<std::uint8_t const> inputs,
         std::span<std::uint8_t const> targets);

  //! The same loss, and its gradient, which overwrites `gradient` (as long as `parameters`).
  T loss_and_gradient(std::span<T const> parameters, std::span<std::uint8_t const> inputs,
                      std::span<std::uint8_t const> targets, std::span<T> gradient);

  //! The forward pass with some parameters and the backward pass with others, as where a pipeline
  //! updates its only copy of the weights between the two.
  T loss_and_gradient(std::span<T const> forward_parameters, std::span<T const> backward_parameters,
                      std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets,
                      std::span<T> gradient);

 private:
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using column = Eigen::Array<T, Eigen::Dynamic, 1>;

  struct layer_norm {
    matrix normalised;  // [tokens, width]
    matrix output;      // [tokens, width]
    column scale;       // [tokens], 1 / standard deviation
  };
  struct block {
    layer_norm attention_norm, mlp_norm;
    matrix qkv;                      // [tokens, 3 width]
    matrix probabilities;            // [batch * heads * context, context]
    matrix mixed;                    // [tokens, width]
    matrix hidden, tanh, activated;  // [tokens, 4 width]
  };

  void normalise(T const* gain, matrix const& input, layer_norm& norm) const;
  void normalise_backward(T const* gain, layer_norm const& norm, T* gain_gradient);
  void attend(block& b) const;
  void attend_backward(block const& b);
  void block_forward(T const* parameters, block& b);
  void block_backward(T const* parameters, block const& b, T* gradient);
  void forward(T const* parameters, std::span<std::uint8_t const> inputs);
  T cross_entropy(std::span<std::uint8_t const> targets);

  gpt_shape shape_;
  std::int64_t batch_;
  std::int64_t tokens_;
  std::vector<block> blocks_;
  layer_norm final_norm_;
  matrix stream_;           // the residual stream, [tokens, width]
  matrix logits_;           // [tokens, vocabulary]; turned into probabilities by cross_entropy
  matrix stream_gradient_;  // [tokens, width]
  matrix width_gradient_;   // [tokens, width], of whatever fed the stream last
  matrix hidden_gradient_;  // [tokens, 4 width]
  matrix qkv_gradient_;     // [tokens, 3 width]
  matrix score_gradient_;   // [context, context]
};

extern template class gpt<float>;

}  // namespace train_gpt
