// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The GPT of train_gpt, cut into stages.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <scape/layout.hpp>

#include "paci/stage_model.hpp"
#include "train_gpt/corpus.hpp"
#include "train_gpt/gpt.hpp"

namespace paci {

//! Which layers stage `stage` of `stages` has: embedding, blocks and head in as equal parts as
//! whole layers allow. At most layers + 2 stages.
[[nodiscard]] train_gpt::gpt_cut cut_of(train_gpt::gpt_shape const& shape, int stages, int stage);

//! The part's parameters for `replicas` data-parallel ranks. 1-D tensors are sent in every step,
//! the others compete.
[[nodiscard]] scape::layout layout_of(train_gpt::gpt_shape const& shape,
                                      train_gpt::gpt_cut const& cut, int replicas);

//! What a stage of the GPT learns from.
struct gpt_task {
  train_gpt::gpt_shape shape;
  train_gpt::corpus const& text;
  std::int64_t batch = 4;  //!< rows in a micro-batch
  std::uint64_t seed = 1;
  int replica = 0;
};

//! Micro-batch m of a replica is a pure function of seed, m and replica, so that the first stage
//! and the last one draw it by themselves.
class gpt_stage final : public stage_model {
 public:
  //! `slots` micro-batches between forward and backward.
  gpt_stage(gpt_task const& task, train_gpt::gpt_cut const& cut, std::int64_t slots);

  [[nodiscard]] std::int64_t stream_size() const override { return part_.stream_size(); }
  [[nodiscard]] std::int64_t slot_bytes() const override { return part_.slot_bytes(); }
  double forward(pass const& p, std::span<float const> in, std::span<float> out) override;
  void backward(pass const& p, std::span<float const> out_gradient, std::span<float> in_gradient,
                std::span<float> gradient) override;

 private:
  gpt_task task_;
  train_gpt::gpt_part<float> part_;
  std::vector<train_gpt::batch> batches_;  // by slot
};

}  // namespace paci
