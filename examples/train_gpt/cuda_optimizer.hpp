// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The optimizers of scape on CUDA devices, one per rank, over NCCL.

#include <memory>
#include <optional>
#include <scape/comm/threads.hpp>
#include <scape/layout.hpp>

#include "optimizer.hpp"
#include "options.hpp"

namespace train_gpt {

//! The number of CUDA devices; none if the program was built without CUDA.
[[nodiscard]] std::optional<int> cuda_devices();

//! Collective: rank r of `comm`, whose thread calls this, uses device r from now on. Each step
//! copies the gradient there and the weights back.
[[nodiscard]] std::unique_ptr<rank_optimizer> make_cuda_optimizer(scape::thread_communicator& comm,
                                                                  scape::layout const& layout,
                                                                  options const& o,
                                                                  run_spec const& run);

}  // namespace train_gpt
