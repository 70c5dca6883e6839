// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The definitions behind gpt.hpp, for the files that instantiate gpt_part<T>.

#include <cmath>
#include <stdexcept>

#include "gpt.hpp"

namespace train_gpt {
namespace detail {

// Offsets inside the parameters of one block, which begin with the gain of its first norm.
struct block_offsets {
  explicit block_offsets(std::int64_t width)
      : attention_gain(0),
        qkv_weight(2 * width),
        qkv_bias(qkv_weight + 3 * width * width),
        projection_weight(qkv_bias + 3 * width),
        projection_bias(projection_weight + width * width),
        mlp_gain(projection_bias + width),
        expand_weight(mlp_gain + 2 * width),
        expand_bias(expand_weight + 4 * width * width),
        contract_weight(expand_bias + 4 * width),
        contract_bias(contract_weight + 4 * width * width),
        end(contract_bias + width) {}

  std::int64_t attention_gain, qkv_weight, qkv_bias, projection_weight, projection_bias, mlp_gain,
      expand_weight, expand_bias, contract_weight, contract_bias, end;
};

inline std::int64_t blocks_offset(gpt_shape const& s) { return (vocabulary + s.context) * s.width; }

inline std::int64_t final_gain_offset(gpt_shape const& s) {
  return blocks_offset(s) + s.layers * block_offsets(s.width).end;
}

inline std::int64_t head_offset(gpt_shape const& s) {
  return s.tied ? 0 : final_gain_offset(s) + 2 * s.width;
}

template <class T>
using matrix_map = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using const_matrix_map =
    Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> const>;
template <class T>
using row_map = Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>>;
template <class T>
using const_row_map = Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic> const>;

// out = in * weight + bias
template <class T, class In, class Out>
void linear(In const& in, T const* weight, T const* bias, Out& out) {
  out.rowwise() = const_row_map<T>(bias, out.cols());
  out.noalias() += in * const_matrix_map<T>(weight, in.cols(), out.cols());
}

// The gradients of `linear` with respect to weight and bias.
template <class T, class In, class Out>
void linear_gradient(In const& in, Out const& out_gradient, T* weight, T* bias) {
  matrix_map<T>(weight, in.cols(), out_gradient.cols()).noalias() = in.transpose() * out_gradient;
  row_map<T>(bias, out_gradient.cols()) = out_gradient.colwise().sum();
}

// gelu(h) = h (1 + tanh(a (h + b h^3))) / 2
template <class T>
constexpr T gelu_a = T(0.7978845608028654);
template <class T>
constexpr T gelu_b = T(0.044715);

}  // namespace detail

template <class T>
gpt_part<T>::gpt_part(gpt_shape const& shape, gpt_cut const& cut, std::int64_t batch,
                      std::int64_t kept)
    : shape_(shape),
      cut_(cut),
      batch_(batch),
      tokens_(batch * shape.context),
      slots_(static_cast<std::size_t>(kept)),
      stream_(tokens_, shape.width),
      stream_gradient_(tokens_, shape.width),
      width_gradient_(tokens_, shape.width),
      hidden_gradient_(tokens_, 4 * shape.width),
      qkv_gradient_(tokens_, 3 * shape.width),
      score_gradient_(shape.context, shape.context) {
  if (shape.tied && !(cut.embedding && cut.head)) {
    throw std::invalid_argument("a model whose head is tied to its embedding cannot be cut");
  }
  auto const begin = parameters_of(shape, cut).begin;
  blocks_offset_ =
      detail::blocks_offset(shape) + cut.first * detail::block_offsets(shape.width).end - begin;
  final_gain_offset_ = detail::final_gain_offset(shape) - begin;
  head_offset_ = detail::head_offset(shape) - begin;
  for (auto& slot : slots_) {
    slot.blocks.resize(static_cast<std::size_t>(cut.last - cut.first));
    for (auto& b : slot.blocks) {
      size_norm(b.attention_norm);
      size_norm(b.mlp_norm);
      b.qkv.resize(tokens_, 3 * shape.width);
      b.probabilities.resize(batch * shape.heads * shape.context, shape.context);
      b.mixed.resize(tokens_, shape.width);
      b.hidden.resize(tokens_, 4 * shape.width);
      b.tanh.resize(tokens_, 4 * shape.width);
      b.activated.resize(tokens_, 4 * shape.width);
    }
    if (cut.head) {
      size_norm(slot.final_norm);
      slot.logits.resize(tokens_, vocabulary);
    }
  }
}

template <class T>
void gpt_part<T>::size_norm(layer_norm& norm) const {
  norm.normalised.resize(tokens_, shape_.width);
  norm.output.resize(tokens_, shape_.width);
  norm.scale.resize(tokens_);
}

template <class T>
std::int64_t gpt_part<T>::slot_bytes() const {
  auto const norm = [](layer_norm const& n) {
    return n.normalised.size() + n.output.size() + n.scale.size();
  };
  auto const& slot = slots_.front();
  std::int64_t values = norm(slot.final_norm) + slot.logits.size();
  for (auto const& b : slot.blocks) {
    values += norm(b.attention_norm) + norm(b.mlp_norm) + b.qkv.size() + b.probabilities.size() +
              b.mixed.size() + b.hidden.size() + b.tanh.size() + b.activated.size();
  }
  return values * static_cast<std::int64_t>(sizeof(T));
}

// `gain` is followed by the bias, as in parameter_tensors().
template <class T>
void gpt_part<T>::normalise(T const* gain, matrix const& input, layer_norm& norm) const {
  auto const width = static_cast<T>(shape_.width);
  detail::const_row_map<T> const g(gain, shape_.width);
  detail::const_row_map<T> const bias(gain + shape_.width, shape_.width);
  for (std::int64_t i = 0; i < tokens_; ++i) {
    auto normalised = norm.normalised.row(i);
    normalised.array() = input.row(i).array() - input.row(i).sum() / width;
    norm.scale(i) = T(1) / std::sqrt(normalised.squaredNorm() / width + T(1e-5));
    normalised *= norm.scale(i);
    norm.output.row(i).array() = normalised.array() * g.array() + bias.array();
  }
}

// width_gradient_ holds the gradient of norm.output; that of the input is added to
// stream_gradient_.
template <class T>
void gpt_part<T>::normalise_backward(T const* gain, layer_norm const& norm, T* gain_gradient) {
  auto const width = static_cast<T>(shape_.width);
  detail::const_row_map<T> const g(gain, shape_.width);
  detail::row_map<T> g_gradient(gain_gradient, shape_.width);
  detail::row_map<T> bias_gradient(gain_gradient + shape_.width, shape_.width);
  g_gradient.setZero();
  bias_gradient.setZero();
  for (std::int64_t i = 0; i < tokens_; ++i) {
    auto gradient = width_gradient_.row(i);
    auto const normalised = norm.normalised.row(i);
    g_gradient.array() += gradient.array() * normalised.array();
    bias_gradient += gradient;
    gradient.array() *= g.array();
    T const mean = gradient.sum() / width;
    T const along = gradient.dot(normalised) / width;
    stream_gradient_.row(i).array() +=
        norm.scale(i) * (gradient.array() - mean - along * normalised.array());
  }
}

template <class T>
void gpt_part<T>::attend(block& b) const {
  std::int64_t const context = shape_.context;
  std::int64_t const size = shape_.width / shape_.heads;
  T const scale = T(1) / std::sqrt(static_cast<T>(size));
  for (std::int64_t row = 0; row < batch_; ++row) {
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      auto part = [&](std::int64_t which) {
        return b.qkv.block(row * context, which * shape_.width + head * size, context, size);
      };
      auto probabilities =
          b.probabilities.middleRows((row * shape_.heads + head) * context, context);
      probabilities.noalias() = part(0) * part(1).transpose();
      for (std::int64_t i = 0; i < context; ++i) {
        auto seen = probabilities.row(i).head(i + 1).array();
        T const largest = seen.maxCoeff();
        seen = ((seen - largest) * scale).exp();
        seen /= seen.sum();
        probabilities.row(i).tail(context - i - 1).setZero();
      }
      b.mixed.block(row * context, head * size, context, size).noalias() = probabilities * part(2);
    }
  }
}

// width_gradient_ holds the gradient of b.mixed; fills qkv_gradient_.
template <class T>
void gpt_part<T>::attend_backward(block const& b) {
  std::int64_t const context = shape_.context;
  std::int64_t const size = shape_.width / shape_.heads;
  T const scale = T(1) / std::sqrt(static_cast<T>(size));
  for (std::int64_t row = 0; row < batch_; ++row) {
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      auto part = [&](auto& qkv, std::int64_t which) {
        return qkv.block(row * context, which * shape_.width + head * size, context, size);
      };
      auto const probabilities =
          b.probabilities.middleRows((row * shape_.heads + head) * context, context);
      auto const gradient = width_gradient_.block(row * context, head * size, context, size);
      part(qkv_gradient_, 2).noalias() = probabilities.transpose() * gradient;
      score_gradient_.noalias() = gradient * part(b.qkv, 2).transpose();
      for (std::int64_t i = 0; i < context; ++i) {
        auto const p = probabilities.row(i);
        T const mean = p.dot(score_gradient_.row(i));
        score_gradient_.row(i).array() =
            p.array() * (score_gradient_.row(i).array() - mean) * scale;
      }
      part(qkv_gradient_, 0).noalias() = score_gradient_ * part(b.qkv, 1);
      part(qkv_gradient_, 1).noalias() = score_gradient_.transpose() * part(b.qkv, 0);
    }
  }
}

template <class T>
void gpt_part<T>::block_forward(T const* parameters, block& b) {
  detail::block_offsets const at(shape_.width);
  normalise(parameters + at.attention_gain, stream_, b.attention_norm);
  detail::linear(b.attention_norm.output, parameters + at.qkv_weight, parameters + at.qkv_bias,
                 b.qkv);
  attend(b);
  stream_.rowwise() += detail::const_row_map<T>(parameters + at.projection_bias, shape_.width);
  stream_.noalias() += b.mixed * detail::const_matrix_map<T>(parameters + at.projection_weight,
                                                             shape_.width, shape_.width);

  normalise(parameters + at.mlp_gain, stream_, b.mlp_norm);
  detail::linear(b.mlp_norm.output, parameters + at.expand_weight, parameters + at.expand_bias,
                 b.hidden);
  auto const h = b.hidden.array();
  b.tanh.array() = (detail::gelu_a<T> * h * (T(1) + detail::gelu_b<T> * h.square())).tanh();
  b.activated.array() = T(0.5) * h * (T(1) + b.tanh.array());
  stream_.rowwise() += detail::const_row_map<T>(parameters + at.contract_bias, shape_.width);
  stream_.noalias() += b.activated * detail::const_matrix_map<T>(parameters + at.contract_weight,
                                                                 4 * shape_.width, shape_.width);
}

// stream_gradient_ holds the gradient of the block's output on entry, of its input on return.
template <class T>
void gpt_part<T>::block_backward(T const* parameters, block const& b, T* gradient) {
  detail::block_offsets const at(shape_.width);
  std::int64_t const width = shape_.width;
  detail::linear_gradient(b.activated, stream_gradient_, gradient + at.contract_weight,
                          gradient + at.contract_bias);
  hidden_gradient_.noalias() =
      stream_gradient_ *
      detail::const_matrix_map<T>(parameters + at.contract_weight, 4 * width, width).transpose();
  auto const h = b.hidden.array();
  auto const t = b.tanh.array();
  hidden_gradient_.array() *= T(0.5) * (T(1) + t +
                                        h * (T(1) - t.square()) * detail::gelu_a<T> *
                                            (T(1) + T(3) * detail::gelu_b<T> * h.square()));
  detail::linear_gradient(b.mlp_norm.output, hidden_gradient_, gradient + at.expand_weight,
                          gradient + at.expand_bias);
  width_gradient_.noalias() =
      hidden_gradient_ *
      detail::const_matrix_map<T>(parameters + at.expand_weight, width, 4 * width).transpose();
  normalise_backward(parameters + at.mlp_gain, b.mlp_norm, gradient + at.mlp_gain);

  detail::linear_gradient(b.mixed, stream_gradient_, gradient + at.projection_weight,
                          gradient + at.projection_bias);
  width_gradient_.noalias() =
      stream_gradient_ *
      detail::const_matrix_map<T>(parameters + at.projection_weight, width, width).transpose();
  attend_backward(b);
  detail::linear_gradient(b.attention_norm.output, qkv_gradient_, gradient + at.qkv_weight,
                          gradient + at.qkv_bias);
  width_gradient_.noalias() =
      qkv_gradient_ *
      detail::const_matrix_map<T>(parameters + at.qkv_weight, width, 3 * width).transpose();
  normalise_backward(parameters + at.attention_gain, b.attention_norm,
                     gradient + at.attention_gain);
}

template <class T>
T gpt_part<T>::cross_entropy(matrix& logits, std::span<std::uint8_t const> targets) const {
  double total = 0;
  for (std::int64_t i = 0; i < tokens_; ++i) {
    auto row = logits.row(i).array();
    T const largest = row.maxCoeff();
    T const target = row(targets[static_cast<std::size_t>(i)]) - largest;
    row = (row - largest).exp();
    T const sum = row.sum();
    row /= sum;
    total += static_cast<double>(std::log(sum) - target);
  }
  // The sign of a NaN says nothing, and would be printed.
  return static_cast<T>(std::abs(total) / static_cast<double>(tokens_));
}

template <class T>
T gpt_part<T>::forward(std::size_t slot, std::span<T const> parameters,
                       std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets,
                       std::span<T const> in, std::span<T> out) {
  auto& kept = slots_[slot];
  if (cut_.embedding) {
    detail::const_matrix_map<T> const embedding(parameters.data(), vocabulary, shape_.width);
    detail::const_matrix_map<T> const position(parameters.data() + vocabulary * shape_.width,
                                               shape_.context, shape_.width);
    for (std::int64_t i = 0; i < tokens_; ++i) {
      stream_.row(i) =
          embedding.row(inputs[static_cast<std::size_t>(i)]) + position.row(i % shape_.context);
    }
  } else {
    stream_ = detail::const_matrix_map<T>(in.data(), tokens_, shape_.width);
  }
  std::int64_t offset = blocks_offset_;
  for (auto& b : kept.blocks) {
    block_forward(parameters.data() + offset, b);
    offset += detail::block_offsets(shape_.width).end;
  }
  if (!cut_.head) {
    detail::matrix_map<T>(out.data(), tokens_, shape_.width) = stream_;
    return T(0);
  }
  normalise(parameters.data() + final_gain_offset_, stream_, kept.final_norm);
  detail::const_matrix_map<T> const head(parameters.data() + head_offset_, vocabulary,
                                         shape_.width);
  kept.logits.noalias() = kept.final_norm.output * head.transpose();
  return cross_entropy(kept.logits, targets);
}

template <class T>
void gpt_part<T>::backward(std::size_t slot, std::span<T const> parameters,
                           std::span<std::uint8_t const> inputs,
                           std::span<std::uint8_t const> targets, std::span<T const> out_gradient,
                           std::span<T> in_gradient, std::span<T> gradient) {
  auto& kept = slots_[slot];
  if (cut_.head) {
    auto& logits = kept.logits;
    for (std::int64_t i = 0; i < tokens_; ++i) {
      logits(i, targets[static_cast<std::size_t>(i)]) -= T(1);
    }
    logits /= static_cast<T>(tokens_);
    detail::const_matrix_map<T> const head(parameters.data() + head_offset_, vocabulary,
                                           shape_.width);
    detail::matrix_map<T> head_gradient(gradient.data() + head_offset_, vocabulary, shape_.width);
    head_gradient.noalias() = logits.transpose() * kept.final_norm.output;
    width_gradient_.noalias() = logits * head;
    stream_gradient_.setZero();
    normalise_backward(parameters.data() + final_gain_offset_, kept.final_norm,
                       gradient.data() + final_gain_offset_);
  } else {
    stream_gradient_ = detail::const_matrix_map<T>(out_gradient.data(), tokens_, shape_.width);
  }

  std::int64_t offset =
      blocks_offset_ + std::ssize(kept.blocks) * detail::block_offsets(shape_.width).end;
  for (auto b = kept.blocks.rbegin(); b != kept.blocks.rend(); ++b) {
    offset -= detail::block_offsets(shape_.width).end;
    block_backward(parameters.data() + offset, *b, gradient.data() + offset);
  }

  if (!cut_.embedding) {
    detail::matrix_map<T>(in_gradient.data(), tokens_, shape_.width) = stream_gradient_;
    return;
  }
  detail::matrix_map<T> embedding_gradient(gradient.data(), vocabulary, shape_.width);
  detail::matrix_map<T> position_gradient(gradient.data() + vocabulary * shape_.width,
                                          shape_.context, shape_.width);
  if (!shape_.tied) embedding_gradient.setZero();
  position_gradient.setZero();
  for (std::int64_t i = 0; i < tokens_; ++i) {
    embedding_gradient.row(inputs[static_cast<std::size_t>(i)]) += stream_gradient_.row(i);
    position_gradient.row(i % shape_.context) += stream_gradient_.row(i);
  }
}

}  // namespace train_gpt
