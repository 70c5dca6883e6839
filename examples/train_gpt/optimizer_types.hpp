// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! From a run's options to the type of its optimizer, on every backend.

#include <memory>
#include <scape/float16.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/options.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "optimizer.hpp"
#include "options.hpp"

namespace train_gpt {

inline scape::sparse_optimizer_options optimizer_options(options const& o, run_spec const& run) {
  auto sparse = run.preset == sparse_preset::literal
                    ? scape::sparse_optimizer_options::literal(run.density)
                    : scape::sparse_optimizer_options::staleness_aware(run.density);
  sparse.beta1 = static_cast<float>(o.beta1);
  sparse.beta2 = static_cast<float>(o.beta2);
  sparse.weight_decay = static_cast<float>(o.weight_decay);
  sparse.clip_norm = static_cast<float>(o.clip);
  sparse.density_ramp_steps = run.ramp;
  sparse.lag = o.lag;
  sparse.statistics = true;
  return sparse;
}

//! Makes a Holder<Optimizer, its options>(arguments..., its options) of the optimizer of scape over
//! Comm that `run` asks for.
template <class Comm, template <class, class> class Holder, class... Arguments>
std::unique_ptr<rank_optimizer> make_for(options const& o, run_spec const& run,
                                         Arguments&... arguments) {
  auto const options = optimizer_options(o, run);
  auto const hold = [&]<class Optimizer, class Options>(std::type_identity<Optimizer>,
                                                        Options const& chosen) {
    return std::make_unique<Holder<Optimizer, Options>>(arguments..., chosen);
  };
  auto const with_rule = [&]<class Rule>(Rule) -> std::unique_ptr<rank_optimizer> {
    if (!run.sparse) {
      return hold(std::type_identity<scape::dense_optimizer<Rule, Comm>>(),
                  static_cast<scape::adam_options const&>(options));
    }
    auto const with_wire = [&]<class Wire>(std::type_identity<Wire>) {
      return hold(std::type_identity<scape::sparse_optimizer<Rule, Comm, Wire>>(), options);
    };
    switch (o.wire) {
      case wire_type::bf16:
        return with_wire(std::type_identity<scape::bfloat16>());
      case wire_type::fp16:
        return with_wire(std::type_identity<scape::float16>());
      case wire_type::fp32:
        break;
    }
    return with_wire(std::type_identity<float>());
  };
  return run.rule == update_rule::adams ? with_rule(scape::adams()) : with_rule(scape::adamw());
}

}  // namespace train_gpt
