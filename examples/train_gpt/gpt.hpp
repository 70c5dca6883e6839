// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A small byte-level GPT with hand-written backward pass on one flat parameter vector, whole or in
//! parts.

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

//! Consecutive layers of a model: the embedding, blocks [first, last), the head. A part without the
//! embedding starts with a block and one without the head ends with a block, or has none at all.
struct gpt_cut {
  bool embedding = true;
  std::int64_t first = 0, last = 0;
  bool head = true;
};

//! All layers.
[[nodiscard]] gpt_cut whole(gpt_shape const& shape);

//! Where the parameters of a part lie in those of the model: elements [begin, end). Those of parts
//! that follow each other do so as well, unless the model is tied.
struct parameter_range {
  std::int64_t begin = 0, end = 0;
};
[[nodiscard]] parameter_range parameters_of(gpt_shape const& shape, gpt_cut const& cut);

//! Part of a pre-layer-norm transformer with learned positions, GELU (tanh form) and an output head
//! without bias. Owns the activations of `kept` batches, in slots: nothing is allocated after
//! construction. One object per thread. Defined in gpt_definitions.hpp; instantiated for float.
//!
//! `parameters` and gradients are those of the part; `inputs` and `targets` hold batch * context
//! bytes and are read by the embedding and by the head. The stream between two parts is
//! stream_size() values; the embedding has no `in`, the head no `out`.
template <class T>
class gpt_part {
 public:
  //! `batch` rows of `shape.context` bytes each. Throws std::invalid_argument if a tied model is to
  //! be cut.
  gpt_part(gpt_shape const& shape, gpt_cut const& cut, std::int64_t batch, std::int64_t kept = 1);

  //! The head returns the mean cross-entropy in nats per byte, other parts 0.
  T forward(std::size_t slot, std::span<T const> parameters, std::span<std::uint8_t const> inputs,
            std::span<std::uint8_t const> targets, std::span<T const> in, std::span<T> out);

  //! After the slot's forward, with the same bytes. Overwrites the gradients of the parameters and
  //! of `in`. The slot must not be used for another backward.
  void backward(std::size_t slot, std::span<T const> parameters,
                std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets,
                std::span<T const> out_gradient, std::span<T> in_gradient, std::span<T> gradient);

  [[nodiscard]] std::int64_t stream_size() const noexcept { return tokens_ * shape_.width; }
  //! Bytes of the activations that one slot keeps.
  [[nodiscard]] std::int64_t slot_bytes() const;

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
  struct activations {
    std::vector<block> blocks;
    layer_norm final_norm;
    matrix logits;  // [tokens, vocabulary]; turned into probabilities by cross_entropy
  };

  void size_norm(layer_norm& norm) const;
  void normalise(T const* gain, matrix const& input, layer_norm& norm) const;
  void normalise_backward(T const* gain, layer_norm const& norm, T* gain_gradient);
  void attend(block& b) const;
  void attend_backward(block const& b);
  void block_forward(T const* parameters, block& b);
  void block_backward(T const* parameters, block const& b, T* gradient);
  T cross_entropy(matrix& logits, std::span<std::uint8_t const> targets) const;

  gpt_shape shape_;
  gpt_cut cut_;
  std::int64_t batch_;
  std::int64_t tokens_;
  std::int64_t blocks_offset_, final_gain_offset_, head_offset_;  // inside the part's parameters
  std::vector<activations> slots_;
  matrix stream_;           // the residual stream, [tokens, width]
  matrix stream_gradient_;  // [tokens, width]
  matrix width_gradient_;   // [tokens, width], of whatever fed the stream last
  matrix hidden_gradient_;  // [tokens, 4 width]
  matrix qkv_gradient_;     // [tokens, 3 width]
  matrix score_gradient_;   // [context, context]
};

extern template class gpt_part<float>;

//! The whole model, on one batch at a time.
template <class T>
class gpt {
 public:
  //! `batch` rows of `shape.context` bytes each.
  gpt(gpt_shape const& shape, std::int64_t batch) : part_(shape, whole(shape), batch) {}

  //! Mean cross-entropy in nats per byte. `inputs` and `targets` hold batch * context bytes.
  T loss(std::span<T const> parameters, std::span<std::uint8_t const> inputs,
         std::span<std::uint8_t const> targets) {
    return part_.forward(0, parameters, inputs, targets, {}, {});
  }

  //! The same loss, and its gradient, which overwrites `gradient` (as long as `parameters`).
  T loss_and_gradient(std::span<T const> parameters, std::span<std::uint8_t const> inputs,
                      std::span<std::uint8_t const> targets, std::span<T> gradient) {
    return loss_and_gradient(parameters, parameters, inputs, targets, gradient);
  }

  //! The forward pass with some parameters and the backward pass with others, as where a pipeline
  //! updates its only copy of the weights between the two.
  T loss_and_gradient(std::span<T const> forward_parameters, std::span<T const> backward_parameters,
                      std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets,
                      std::span<T> gradient) {
    T const result = loss(forward_parameters, inputs, targets);
    part_.backward(0, backward_parameters, inputs, targets, {}, {}, gradient);
    return result;
  }

 private:
  gpt_part<T> part_;
};

}  // namespace train_gpt
