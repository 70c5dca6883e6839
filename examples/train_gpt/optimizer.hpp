// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The optimizers of scape behind one run-time interface.

#include <iosfwd>
#include <memory>
#include <scape/comm/threads.hpp>
#include <scape/layout.hpp>
#include <scape/optim/options.hpp>
#include <span>

#include "options.hpp"

namespace train_gpt {

//! One rank's optimizer, with the memory it works in.
class rank_optimizer {
 public:
  virtual ~rank_optimizer() = default;

  //! Collective: all ranks step together, and hold equal weights afterwards.
  virtual scape::step_report const& step(std::span<float> weights, std::span<float const> gradient,
                                         double lr) = 0;
  virtual void save(std::ostream& out) = 0;
  virtual void load(std::istream& in) = 0;
};

//! 1-D tensors are sent in every step, the others compete.
[[nodiscard]] scape::layout make_layout(options const& o);

//! `comm` and `layout` must outlive the result.
[[nodiscard]] std::unique_ptr<rank_optimizer> make_optimizer(scape::thread_communicator& comm,
                                                             scape::layout const& layout,
                                                             options const& o, run_spec const& run);

}  // namespace train_gpt
