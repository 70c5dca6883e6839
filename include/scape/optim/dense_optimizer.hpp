// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The sharded dense optimizer (ZeRO stage 1): reduce-scatter of all gradients, a step on the own
//! shard, all-gather of all parameters. The baseline, and what density 1 equals bit for bit.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <istream>
#include <ostream>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <scape/agreement.hpp>
#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/checkpoint.hpp>
#include <scape/detail/host/guard_gradient.hpp>
#include <scape/detail/moment_rebuild.hpp>
#include <scape/detail/stopwatch.hpp>
#include <scape/layout.hpp>
#include <scape/optim/options.hpp>
#include <scape/workspace.hpp>

namespace scape {

namespace detail {

//! What a saved state of the dense optimizer belongs to; the same on every backend.
template <class Rule, communicator C>
checkpoint_header identity(C const& comm, layout const& layout) {
  return {.fingerprint = layout.fingerprint(),
          .model = layout.model_fingerprint(),
          .rule = hash_of("dense") ^ hash_of(Rule::name),
          .rank = static_cast<std::uint64_t>(comm.rank()),
          .size = static_cast<std::uint64_t>(comm.size())};
}

}  // namespace detail

//! @tparam Rule adams or adamw
template <class Rule, communicator C>
requires has_reduce_scatter<C, float> && has_all_gather<C, float> && has_all_reduce<C, double> &&
    has_all_gather<C, std::uint64_t>
class dense_optimizer {
 public:
  using context_type = typename C::context_type;

  //! Bytes of the state of one rank.
  [[nodiscard]] static std::size_t storage_bytes(layout const& layout, adam_options const& = {}) {
    workspace_size size;
    size.add<float>(layout.max_shard_size());
    if (Rule::keeps_second_moment) size.add<float>(layout.max_shard_size());
    return size.bytes();
  }
  //! Scratch bytes of step().
  [[nodiscard]] static std::size_t scratch_bytes(layout const& layout, adam_options const& = {}) {
    return workspace_size()
        .add<float>(layout.size())
        .add<float>(layout.max_shard_size())
        .add_bytes(detail::sum_of_squares_bytes(layout.size()))
        .bytes();
  }

  //! `comm` and `storage` (zero-filled) must outlive the optimizer.
  dense_optimizer(C& comm, layout layout, adam_options const& options, std::span<std::byte> storage)
      : comm_(&comm), layout_(std::move(layout)), options_(options) {
    auto const op = who("dense_optimizer");
    detail::expect_valid(op, options_);
    detail::expect_equal(op, "the communicator's size", comm.size(), layout_.shards(),
                         "a layout has one shard per rank");
    for (int p = 0; p < comm.size(); ++p) counts_.push_back(layout_.shard_size(p));
    carver memory(storage, op);
    m_ = memory.take<float>(shard_size());
    if (Rule::keeps_second_moment) v_ = memory.take<float>(shard_size());
  }
  dense_optimizer(dense_optimizer const&) = delete;
  dense_optimizer& operator=(dense_optimizer const&) = delete;

  //! One step. Every rank passes its own gradient and its copy of the weights, n elements each;
  //! afterwards the weights are equal on all ranks. Blocks until done.
  template <class Gradient>
  step_report const& step(context_type const& ctx, std::span<float> weights,
                          std::span<Gradient const> gradient, step_arguments const& arguments) {
    auto const op = who("dense_optimizer::step");
    detail::expect_valid(op, arguments);
    detail::expect_equal(op, "the length of weights", std::ssize(weights), layout_.size());
    detail::expect_equal(op, "the length of gradient", std::ssize(gradient), layout_.size());
    detail::expect_scratch(op, ctx.scratch.size(), scratch_bytes(layout_));
    if (options_.check_agreement) expect_agreement(ctx, op, weights);
    carver scratch(ctx.scratch, op);
    auto const sent = scratch.take<float>(layout_.size());
    auto const sums = scratch.take<float>(shard_size());
    auto inner = ctx;
    inner.scratch = scratch.rest();

    detail::stopwatch watch;
    report_ = step_report{};
    report_.step = step_;
    auto const guard = detail::guard_gradient(inner, *comm_, options_, arguments, gradient);
    report_.gradient_norm = guard.norm;
    report_.clip_factor = guard.clip_factor;
    report_.bytes.control = detail::control_bytes(options_, comm_->size());
    report_.milliseconds.guard = watch.lap();
    if (!guard.finite) {
      report_.skipped = true;
      ++skipped_;
      return report_;
    }

    ctx.parallel([&](int part, int parts) {
      auto const [first, last] = detail::part_of(layout_.size(), part, parts);
      auto const* g = gradient.data();
      auto* u = sent.data();
      for (auto j = first; j < last; ++j) {
        u[j] = detail::fmadd(guard.coefficient, static_cast<float>(g[j]), 0.0F);
      }
    });
    comm_->reduce_scatter(ctx, std::span<float const>(sent), sums, counts_, std::plus<>())
        .wait(ctx);
    report_.milliseconds.reduce_scatter = watch.lap();

    auto const own = weights.subspan(static_cast<std::size_t>(layout_.begin(comm_->rank())),
                                     static_cast<std::size_t>(shard_size()));
    update(ctx, detail::scalars_of(options_, arguments, comm_->size(), step_), sums, own);
    report_.milliseconds.rebuild = watch.lap();

    comm_->all_gather(ctx, std::span<float const>(own), weights, counts_).wait(ctx);
    report_.milliseconds.all_gather = watch.lap();
    report_.density = 1;
    report_.bytes.values = report_.bytes.parameters =
        (layout_.size() - shard_size()) * static_cast<std::int64_t>(sizeof(float));
    ++step_;
    return report_;
  }
  step_report const& step(context_type const& ctx, std::span<float> weights,
                          std::span<float const> gradient, step_arguments const& arguments) {
    return step<float>(ctx, weights, gradient, arguments);
  }

  //! The layout of weights and gradient that it was made with.
  [[nodiscard]] layout const& parameters() const noexcept { return layout_; }
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] std::int64_t steps() const noexcept { return step_; }
  [[nodiscard]] std::int64_t skipped_steps() const noexcept { return skipped_; }
  [[nodiscard]] std::span<float const> first_moment() const noexcept { return m_; }

  //! Writes this rank's state. Throws checkpoint_error when the stream fails.
  void save(context_type const&, std::ostream& out) {
    auto header = detail::identity<Rule>(*comm_, layout_);
    header.step = static_cast<std::uint64_t>(step_);
    header.skipped = static_cast<std::uint64_t>(skipped_);
    detail::save_checkpoint(who("dense_optimizer::save"), out, header, layout_, sections());
  }
  //! Restores it bit for bit, or throws checkpoint_error and leaves the state as it is.
  void load(context_type const&, std::istream& in) {
    adopt(detail::load_checkpoint(who("dense_optimizer::load"), in,
                                  detail::identity<Rule>(*comm_, layout_), sections()));
  }
  //! The same from the files of all ranks of a run that had another number of them or other shards,
  //! in rank order.
  void load(context_type const&, std::span<std::istream* const> files) {
    adopt(detail::load_checkpoint(who("dense_optimizer::load"), files,
                                  detail::identity<Rule>(*comm_, layout_), layout_, sections()));
  }

 private:
  [[nodiscard]] auto sections() { return detail::sections_of<Rule>(m_, v_); }
  void adopt(detail::checkpoint_header const& header) {
    step_ = static_cast<std::int64_t>(header.step);
    skipped_ = static_cast<std::int64_t>(header.skipped);
    agreed_ = false;
  }
  //! Collective.
  void expect_agreement(context_type const& ctx, detail::caller who,
                        std::span<float const> weights) {
    scape::expect_agreement(ctx, *comm_,
                            {.operation = who.operation,
                             .element = "float",
                             .n = layout_.size(),
                             .shards = layout_.shards(),
                             .k = layout_.size(),
                             .step = step_,
                             .layout = layout_.fingerprint(),
                             .weights = agreed_ ? 0 : hash_of(weights)});
    agreed_ = true;
  }

  [[nodiscard]] detail::caller who(std::string_view operation) const noexcept {
    return {operation, comm_->rank(), comm_->size()};
  }
  [[nodiscard]] std::int64_t shard_size() const noexcept {
    return layout_.shard_size(comm_->rank());
  }

  void update(host_context const& ctx, rebuild_scalars const& scalars, std::span<float const> sums,
              std::span<float> w) {
    ctx.parallel([&](int part, int parts) {
      auto const [first, last] = detail::part_of(shard_size(), part, parts);
      float no_second_moment = 0;
      for (auto const& scale : layout_.scales(comm_->rank())) {
        if (scale.frozen) continue;
        auto scaled = scalars;
        scaled.learning_rate *= scale.lr_scale;
        scaled.weight_decay *= scale.decay_scale;
        auto const end = std::min(last, scale.range.end);
        for (auto i = std::max(first, scale.range.begin); i < end; ++i) {
          auto const j = static_cast<std::size_t>(i);
          auto& v = Rule::keeps_second_moment ? v_[j] : no_second_moment;
          detail::rebuild_element<Rule>(scaled, sums[j], 1.0F, m_[j], v, w[j]);
        }
      }
    });
  }

  C* comm_;
  layout layout_;
  adam_options options_;
  std::vector<std::int64_t> counts_;
  std::span<float> m_, v_;
  std::int64_t step_ = 0;
  std::int64_t skipped_ = 0;
  bool agreed_ = false;  // the weights were compared since the start or load()
  step_report report_;
};

}  // namespace scape
