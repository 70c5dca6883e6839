// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The optimizers of scape on the host, over any of its communicators.

#include <memory>
#include <scape/context/host.hpp>
#include <scape/layout.hpp>
#include <scape/workspace.hpp>
#include <span>

#include "optimizer.hpp"
#include "optimizer_types.hpp"
#include "options.hpp"

namespace train_gpt {

template <class Optimizer, class Options>
class host_optimizer final : public rank_optimizer {
 public:
  template <class Comm>
  host_optimizer(Comm& comm, scape::layout const& layout, Options const& options)
      : storage_(Optimizer::storage_bytes(layout, options)),
        scratch_(Optimizer::scratch_bytes(layout, options)),
        context_{scratch_.bytes()},
        optimizer_(comm, layout, options, storage_.bytes()) {}

  scape::step_report const& step(std::span<float> weights, std::span<float const> gradient,
                                 double lr) override {
    return optimizer_.step(context_, weights, gradient, {.lr = static_cast<float>(lr)});
  }
  void save(std::ostream& out) override { optimizer_.save(context_, out); }
  void load(std::istream& in) override { optimizer_.load(context_, in); }

 private:
  scape::host_buffer storage_, scratch_;
  scape::host_context context_;
  Optimizer optimizer_;
};

//! `comm` and `layout` must outlive the result.
template <class Comm>
std::unique_ptr<rank_optimizer> make_host_optimizer(Comm& comm, scape::layout const& layout,
                                                    options const& o, run_spec const& run) {
  return make_for<Comm, host_optimizer>(o, run, comm, layout);
}

}  // namespace train_gpt
