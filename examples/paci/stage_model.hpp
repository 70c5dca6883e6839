// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a stage computes.

#include <cstddef>
#include <cstdint>
#include <span>

namespace paci {

//! Which micro-batch passes the stage, and with what. The activations that its backward needs are
//! in the slot.
struct pass {
  std::int64_t micro_batch = 0;
  std::size_t slot = 0;
  std::span<float const> weights;
};

class stage_model {
 public:
  virtual ~stage_model() = default;

  //! Values of one micro-batch between two stages: of `in`, `out` and their gradients, which are
  //! empty at the ends of the pipeline.
  [[nodiscard]] virtual std::int64_t stream_size() const = 0;
  //! Bytes of the activations in a slot.
  [[nodiscard]] virtual std::int64_t slot_bytes() const = 0;

  //! Returns the loss on the last stage.
  virtual double forward(pass const& p, std::span<float const> in, std::span<float> out) = 0;
  //! Overwrites in_gradient and `gradient`, which is as long as the weights. These may have changed
  //! since the forward.
  virtual void backward(pass const& p, std::span<float const> out_gradient,
                        std::span<float> in_gradient, std::span<float> gradient) = 0;
};

}  // namespace paci
