// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One rank's optimizer with the memory it needs, and what can be compared of it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <scape/comm/threads.hpp>
#include <scape/context/host.hpp>
#include <scape/layout.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>
#include <scape/workspace.hpp>

#include "rank_data.hpp"
#include "reference_optimizer.hpp"

namespace scape::testing {

//! The observable state of a sparse optimizer and its weights.
struct optimizer_state {
  std::vector<float> weights, residual, m, v;
  std::vector<std::uint16_t> age;
  std::vector<mask_word> mask;
  std::int64_t steps = 0;

  friend bool operator==(optimizer_state const& a, optimizer_state const& b) {
    return same_bits(a.weights, b.weights) && same_bits(a.residual, b.residual) &&
           same_bits(a.m, b.m) && same_bits(a.v, b.v) && a.age == b.age && a.mask == b.mask &&
           a.steps == b.steps;
  }
};

//! The dense or the sparse optimizer's.
template <class Optimizer>
std::span<float const> first_moment_of(Optimizer const& optimizer) {
  if constexpr (requires { optimizer.first_moment(); }) {
    return optimizer.first_moment();
  } else {
    return optimizer.moments().m;
  }
}

//! Scratch memory is filled with rubbish before every step.
template <class Optimizer>
struct rig {
  host_buffer storage, scratch;
  host_context ctx;
  Optimizer optimizer;
  std::vector<float> weights;

  template <class Comm, class Options, class... More>
  rig(Comm& comm, layout const& l, Options const& options, host_pool* pool = nullptr,
      More... statistic)
      : storage(Optimizer::storage_bytes(l, options)),
        scratch(Optimizer::scratch_bytes(l, options)),
        ctx{scratch.bytes(), pool},
        optimizer(comm, l, options, storage.bytes(), statistic...),
        weights(initial_weights(l.size())) {}

  template <class Gradient>
  step_report const& step(std::vector<Gradient> const& gradient,
                          step_arguments const& arguments = {}) {
    std::ranges::fill(scratch.bytes(), std::byte{0xcb});
    return optimizer.step(ctx, weights, std::span<Gradient const>(gradient), arguments);
  }

  [[nodiscard]] std::string saved() {
    std::ostringstream out;
    optimizer.save(ctx, out);
    return out.str();
  }
  void load(std::string const& text) {
    std::istringstream in(text);
    optimizer.load(ctx, in);
  }

  [[nodiscard]] std::int64_t steps() const { return optimizer.steps(); }
  [[nodiscard]] std::int64_t skipped_steps() const { return optimizer.skipped_steps(); }
  [[nodiscard]] std::vector<float> const& current_weights() const { return weights; }
  void set_weights(std::vector<float> const& values) { weights = values; }
  [[nodiscard]] std::span<float> weight_span() { return weights; }
  [[nodiscard]] std::span<float const> first_moment() const { return first_moment_of(optimizer); }

  [[nodiscard]] optimizer_state state() const {
    auto const copy = [](auto const& s) {
      return std::vector<std::remove_cv_t<typename std::decay_t<decltype(s)>::element_type>>(
          s.begin(), s.end());
    };
    auto const& moments = optimizer.moments();
    return {weights,           copy(optimizer.residual()),  copy(moments.m),  copy(moments.v),
            copy(moments.age), copy(optimizer.last_mask()), optimizer.steps()};
  }
};

//! The rig of an optimizer on the host or on devices.
template <class Optimizer, bool Cuda>
struct rig_choice {
  using type = rig<Optimizer>;
};
template <class Backend, class Optimizer>
using rig_on = typename rig_choice<Optimizer, Backend::cuda>::type;
template <class Backend, class Rule, class Wire = float>
using sparse_rig_on = rig_on<Backend, sparse_optimizer<Rule, typename Backend::communicator, Wire>>;

template <class Backend, class Rule>
using dense_rig_on = rig_on<Backend, dense_optimizer<Rule, typename Backend::communicator>>;

template <class Rule, class Wire = float, class Comm = thread_communicator>
using sparse_rig = rig<sparse_optimizer<Rule, Comm, Wire>>;
template <class Rule, class Comm = thread_communicator>
using dense_rig = rig<dense_optimizer<Rule, Comm>>;

//! One value per element from a global mask.
inline std::vector<char> elements_of(layout const& l, std::span<mask_word const> mask) {
  std::vector<char> bits(at(l.size()));
  for (int p = 0; p < l.shards(); ++p) {
    for (std::int64_t i = 0; i < l.shard_size(p); ++i) {
      auto const word = mask[at(p * l.words_per_shard() + i / 64)];
      bits[at(l.begin(p) + i)] = static_cast<char>(word >> (i % 64) & 1U);
    }
  }
  return bits;
}

//! The other way round.
inline std::vector<mask_word> mask_of(layout const& l, std::span<char const> bits) {
  std::vector<mask_word> mask(at(l.mask_words()));
  for (int p = 0; p < l.shards(); ++p) {
    for (std::int64_t i = 0; i < l.shard_size(p); ++i) {
      auto const bit = mask_word{bits[at(l.begin(p) + i)] != 0};
      mask[at(p * l.words_per_shard() + i / 64)] |= bit << (i % 64);
    }
  }
  return mask;
}

inline reference_layout reference_of(layout const& l, topk_scope scope = topk_scope::shard) {
  reference_layout result;
  for (int p = 0; p < l.shards(); ++p) result.boundaries.push_back(l.begin(p));
  result.boundaries.push_back(l.size());
  result.spans.assign(l.spans().begin(), l.spans().end());
  result.scope = scope;
  return result;
}

//! For exact sums: coefficients of gradients and moments are powers of two.
inline sparse_optimizer_options exact_options(double density) {
  auto o = sparse_optimizer_options::staleness_aware(density);
  o.beta1 = 0.5F;
  o.beta2 = 0.75F;
  o.weight_decay = 0.125F;
  o.statistics = true;
  return o;
}

}  // namespace scape::testing
