// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One whole step of sparse optimizer-state sync, composed from the primitives.

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <istream>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/agreement.hpp>
#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/checkpoint.hpp>
#include <scape/detail/host/guard_gradient.hpp>
#include <scape/detail/mask_ranges.hpp>
#include <scape/detail/stopwatch.hpp>
#include <scape/detail/type_name.hpp>
#include <scape/lagged_mask_allgather.hpp>
#include <scape/layout.hpp>
#include <scape/optim/options.hpp>
#include <scape/optim/statistics.hpp>
#include <scape/partitioned_topk_mask.hpp>
#include <scape/single_buffer_moment_rebuild.hpp>
#include <scape/sparse_all_gather.hpp>
#include <scape/sparse_reduce_scatter.hpp>
#include <scape/workspace.hpp>

namespace scape {

namespace detail {

//! Calls f with the statistic that was chosen: one of the caller's own, or the options' one.
template <statistic_choice Statistic, class F>
auto with_statistic(sparse_optimizer_options const& options, Statistic const& own, F&& f) {
  if constexpr (coordinate_statistic<Statistic>) {
    return f(own);
  } else if (options.statistic == statistic_kind::literal) {
    return f(literal_statistic{options.beta1});
  } else if (options.statistic == statistic_kind::random) {
    return f(random_statistic{options.seed});
  } else {
    return f(staleness_aware_statistic{});
  }
}

template <statistic_choice Statistic>
bool before_send(sparse_optimizer_options const& options, Statistic const& own) {
  return with_statistic(options, own,
                        [](auto const& s) { return bool{std::decay_t<decltype(s)>::before_send}; });
}

template <communicator C>
sparse_optimizer_options const& checked(C const& comm, layout const& layout,
                                        sparse_optimizer_options const& options) {
  caller const op{"sparse_optimizer", comm.rank(), comm.size()};
  expect_valid(op, options);
  expect_equal(op, "the communicator's size", comm.size(), layout.shards(),
               "a layout has one shard per rank");
  return options;
}

//! What a saved state belongs to; the same on every backend.
template <class Rule, communicator C>
checkpoint_header identity(C const& comm, layout const& layout,
                           sparse_optimizer_options const& options) {
  return {.fingerprint = layout.fingerprint(),
          .model = layout.model_fingerprint(),
          .rule = hash_of(Rule::name),
          .rank = static_cast<std::uint64_t>(comm.rank()),
          .size = static_cast<std::uint64_t>(comm.size()),
          .lag = static_cast<std::uint64_t>(options.lag)};
}

//! The steps whose masks are dense because no lagged one can be there.
inline std::int64_t dense_steps(sparse_optimizer_options const& options) noexcept {
  return options.first == first_mask::dense ? std::max(options.lag, 1) : 0;
}

//! Makes the plan fit a mask out of a file, which may have been made at another density.
inline void count_into_plan(layout const& layout, std::span<mask_word const> mask,
                            send_plan& plan) noexcept {
  auto const words = static_cast<std::size_t>(layout.words_per_shard());
  for (std::size_t p = 0; p < plan.counts.size(); ++p) {
    plan.counts[p] = count_bits(mask.subspan(p * words, words));
    plan.offsets[p + 1] = plan.offsets[p] + plan.counts[p];
  }
}

//! `sum` is that of step and step^2 over the ranks: their spread is 0.
inline void expect_same_step(caller who, std::int64_t step, std::array<double, 2> const& sum) {
  expect(who.size * sum[1] == sum[0] * sum[0], who, [&] {
    return "this rank was restored at step " + std::to_string(step) + ", the ranks' mean is " +
           std::to_string(sum[0] / who.size) + "; load files of the same step";
  });
}

}  // namespace detail

//! Each step is one reduce-scatter of k values per shard, the update of the owned ones, one
//! all-gather of the changed parameters, and one all-gather of the mask bits of a later step, which
//! nobody waits for until then. What is not sent stays in this rank's residual.
//!
//! @tparam Rule      adams or adamw
//! @tparam Wire      type of the values on the wire: float, bfloat16 or float16
//! @tparam Statistic a coordinate_statistic of your own, or the one named in the options
//!
//! State and scratch are the caller's; step() allocates nothing. All methods
//! are collective, except save() and load() and the observers.
template <class Rule, communicator C, class Wire = float, class Statistic = statistic_of_options>
requires has_reduce_scatter<C, Wire> && has_all_gather<C, float> && has_all_gather<C, mask_word> &&
    has_all_gather<C, std::uint16_t> && has_all_reduce<C, double> && statistic_choice<Statistic>
class sparse_optimizer {
 public:
  using context_type = typename C::context_type;

  //! Bytes of the state of one rank: residual, moments, ages, masks.
  [[nodiscard]] static std::size_t storage_bytes(layout const& layout,
                                                 sparse_optimizer_options const& options) {
    auto const shard = layout.max_shard_size();
    workspace_size size;
    size.add<float>(layout.size()).add<float>(shard);
    if (Rule::keeps_second_moment) size.add<float>(shard);
    return size.add<std::uint16_t>(shard)
        .template add<mask_word>(lagged_mask_allgather<C>::storage_words(layout, options.lag))
        .template add<std::uint16_t>(index_words(layout, options))
        .bytes();
  }

  //! Scratch bytes of step().
  [[nodiscard]] static std::size_t scratch_bytes(layout const& layout,
                                                 sparse_optimizer_options const&) {
    auto const n = layout.size();
    return workspace_size()
        .add<Wire>(layout.max_shard_size())
        .template add<mask_word>(layout.words_per_shard())
        .add_bytes(
            std::max({detail::sum_of_squares_bytes(n), sparse_collective_bytes<Wire>(n),
                      sparse_collective_bytes<float>(n), partitioned_topk_mask_bytes(layout)}))
        .bytes();
  }

  //! `comm` and `storage` (zero-filled, storage_bytes() of it) must outlive the optimizer.
  sparse_optimizer(C& comm, layout layout, sparse_optimizer_options const& options,
                   std::span<std::byte> storage, Statistic statistic = {})
      : sparse_optimizer(comm, std::move(layout), options,
                         carver(storage, {"sparse_optimizer", comm.rank(), comm.size()}),
                         std::move(statistic)) {}
  sparse_optimizer(sparse_optimizer const&) = delete;
  sparse_optimizer& operator=(sparse_optimizer const&) = delete;

  //! One step. Every rank passes its own gradient (float, bfloat16 or float16) and its copy of the
  //! weights, n elements each; afterwards the weights are equal on all ranks. Blocks until done,
  //! except for the mask that travels on. Throws argument_error before anything is changed.
  //! A peer_error leaves this step's gradient in the residual where it was not delivered. A step
  //! that failed half-way leaves ranks that disagree: step() and save() refuse until load().
  template <class Gradient>
  step_report const& step(context_type const& ctx, std::span<float> weights,
                          std::span<Gradient const> gradient, step_arguments const& arguments) {
    auto const op = who("sparse_optimizer::step");
    detail::expect_valid(op, arguments);
    detail::expect_equal(op, "the length of weights", std::ssize(weights), layout_.size());
    detail::expect_equal(op, "the length of gradient", std::ssize(gradient), layout_.size());
    detail::expect_scratch(op, ctx.scratch.size(), scratch_bytes(layout_, options_));
    expect_intact(op);
    if (options_.check_agreement) expect_agreement(ctx, op, weights);
    if (restored_) expect_same_step(ctx, op);
    carver scratch(ctx.scratch, op);
    auto const values = scratch.take<Wire>(layout_.max_shard_size());
    auto const pending = scratch.take<mask_word>(layout_.words_per_shard());
    auto inner = ctx;
    inner.scratch = scratch.rest();

    detail::stopwatch watch;
    report_ = step_report{};
    report_.step = step_;
    auto& ms = report_.milliseconds;
    auto const guard = detail::guard_gradient(inner, *comm_, options_, arguments, gradient);
    report_.gradient_norm = guard.norm;
    report_.clip_factor = guard.clip_factor;
    report_.bytes.control = detail::control_bytes(options_, comm_->size());
    ms.guard = watch.lap();
    if (!guard.finite) {
      report_.skipped = true;
      ++skipped_;
      return report_;
    }

    broken_ = true;  // until the step is complete
    auto const accumulated = [this, g = gradient.data(), c = guard.coefficient](std::int64_t j) {
      return detail::fmadd(c, static_cast<float>(g[j]), residual_[static_cast<std::size_t>(j)]);
    };
    auto const mask = current_mask(inner, pending, accumulated);
    if (options_.statistics && step_ > 0) {
      report_.mask_overlap = detail::overlap(mask, masks_.global(step_ - 1));
    }
    ms.mask_wait = watch.lap();
    if (options_.lag > 0 && before_send()) {
      make_mask(inner, step_ + options_.lag, pending, accumulated);
    }
    ms.select = watch.lap();

    auto const own_values = values.first(static_cast<std::size_t>(plan_.counts[at(rank())]));
    sparse_reduce_scatter(inner, *comm_, layout_, plan_, mask, gradient,
                          std::span<float>(residual_), guard.coefficient, own_values);
    ms.reduce_scatter = watch.lap();

    auto scalars = detail::scalars_of(options_, arguments, comm_->size(), step_);
    scalars.moment_scaling = options_.moment_scaling;
    scalars.step_scaling = options_.step_scaling;
    if (options_.tau_max > 0) scalars.tau_max = options_.tau_max;
    auto const own_words = static_cast<std::size_t>(layout_.words_per_shard());
    single_buffer_moment_rebuild<Rule>(
        inner, layout_, rank(), mask.subspan(at(rank()) * own_words, own_words),
        std::span<Wire const>(own_values), scalars, options_.unmasked, moments_,
        weights.subspan(static_cast<std::size_t>(layout_.begin(rank())), moments_.m.size()));
    ms.rebuild = watch.lap();

    sparse_all_gather(inner, *comm_, layout_, plan_, mask, weights);
    ms.all_gather = watch.lap();

    if (options_.lag > 0 && !before_send()) {
      make_mask(inner, step_ + options_.lag, pending,
                [this](std::int64_t j) { return residual_[static_cast<std::size_t>(j)]; });
    }
    ms.select += watch.lap();
    finish_report(inner);
    ++step_;
    broken_ = false;
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
  //! This rank's unsent part of every parameter, n elements.
  [[nodiscard]] std::span<float const> residual() const noexcept { return residual_; }
  //! Moments and ages of this rank's shard.
  [[nodiscard]] moment_state const& moments() const noexcept { return moments_; }
  //! The global mask the last step used; valid until the next step.
  [[nodiscard]] std::span<mask_word const> last_mask() const noexcept {
    return masks_.global(std::max<std::int64_t>(step_ - 1, 0));
  }

  //! Writes this rank's whole state, masks in flight included (it waits for them). Call it on
  //! every rank after the same step. Throws checkpoint_error when the stream fails.
  void save(context_type const& ctx, std::ostream& out) {
    auto const op = who("sparse_optimizer::save");
    expect_intact(op);
    broken_ = true;
    masks_.wait_all(ctx);
    broken_ = false;
    auto header = detail::identity<Rule>(*comm_, layout_, options_);
    header.step = static_cast<std::uint64_t>(step_);
    header.skipped = static_cast<std::uint64_t>(skipped_);
    detail::save_checkpoint(op, out, header, layout_, sections());
  }

  //! Restores it bit for bit, or throws checkpoint_error and leaves the state as it is. The file
  //! must be of the same layout, rule, lag and rank; the options' density and scalars may have
  //! changed. Every rank must load; the next step makes sure that all are at the same one.
  void load(context_type const& ctx, std::istream& in) {
    masks_.wait_all(ctx);
    adopt(detail::load_checkpoint(who("sparse_optimizer::load"), in,
                                  detail::identity<Rule>(*comm_, layout_, options_), sections()));
  }

  //! The same from the files of all ranks of a run that had another number of them or other shards,
  //! in rank order. Moments, ages and masks keep their bits. The unsent parts keep their sum: rank
  //! p takes those of the old ranks p, p + P, p + 2P, ..., which rounds only where it takes
  //! several.
  void load(context_type const& ctx, std::span<std::istream* const> files) {
    masks_.wait_all(ctx);
    adopt(detail::load_checkpoint(who("sparse_optimizer::load"), files,
                                  detail::identity<Rule>(*comm_, layout_, options_), layout_,
                                  sections()));
  }

 private:
  sparse_optimizer(C& comm, layout&& layout, sparse_optimizer_options const& options, carver memory,
                   Statistic&& statistic)
      : comm_(&comm),
        layout_(std::move(layout)),
        options_(detail::checked(comm, layout_, options)),
        statistic_(std::move(statistic)),
        residual_(memory.take<float>(layout_.size())),
        moments_{.m = memory.take<float>(shard_size()),
                 .v = memory.take<float>(Rule::keeps_second_moment ? shard_size() : 0),
                 .age = memory.take<std::uint16_t>(shard_size())},
        mask_storage_(
            memory.take<mask_word>(lagged_mask_allgather<C>::storage_words(layout_, options_.lag))),
        masks_(layout_, comm.rank(), options_.lag, mask_storage_,
               memory.take<std::uint16_t>(index_words(layout_, options_))),
        hints_(layout_.groups(comm.rank()).size()),
        plan_(layout_.plan(1)),
        next_plan_(plan_) {}

  [[nodiscard]] detail::caller who(std::string_view operation) const noexcept {
    return {operation, rank(), comm_->size()};
  }
  static std::int64_t index_words(layout const& layout, sparse_optimizer_options const& options) {
    return lagged_mask_allgather<C>::index_words(layout, options.lag, layout.plan(options.density));
  }

  [[nodiscard]] auto sections() {
    return detail::sections_of<Rule>(moments_.m, moments_.v, residual_, moments_.age,
                                     mask_storage_);
  }
  void adopt(detail::checkpoint_header const& header) {
    step_ = static_cast<std::int64_t>(header.step);
    skipped_ = static_cast<std::int64_t>(header.skipped);
    restored_until_ = step_ + options_.lag;
    std::ranges::fill(hints_, topk_hint{});
    restored_ = true;
    broken_ = agreed_ = false;
  }

  void expect_intact(detail::caller who) const {
    detail::expect(!broken_, who, "an earlier step failed half-way; load a checkpoint first");
  }

  //! Collective.
  void expect_agreement(context_type const& ctx, detail::caller who,
                        std::span<float const> weights) {
    bool const dense = step_ < detail::dense_steps(options_);
    layout_.plan(dense ? 1 : options_.density, dense ? 0 : options_.ramp(step_), next_plan_);
    agreement own{.operation = who.operation,
                  .element = detail::type_name<Wire>(),
                  .n = layout_.size(),
                  .shards = layout_.shards(),
                  .k = next_plan_.total(),
                  .step = step_,
                  .layout = layout_.fingerprint()};
    if (step_ >= std::max(options_.lag, 1)) {
      own.mask = hash_of(options_.lag > 0 ? masks_.wait(ctx, step_) : last_mask());
    }
    if (!agreed_) own.weights = hash_of(weights);
    scape::expect_agreement(ctx, *comm_, own);
    agreed_ = true;
  }

  //! Collective: the spread of the ranks' steps is 0.
  void expect_same_step(context_type const& ctx, detail::caller who) {
    auto const step = static_cast<double>(step_);
    std::array<double, 2> const own = {step, step * step};
    std::array<double, 2> sum = {};
    comm_->all_reduce(ctx, std::span<double const>(own), std::span<double>(sum), std::plus<>())
        .wait(ctx);
    detail::expect_same_step(who, step_, sum);
    restored_ = false;
  }

  static std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t shard_size() const noexcept { return layout_.shard_size(rank()); }

  [[nodiscard]] bool before_send() const { return detail::before_send(options_, statistic_); }

  //! The mask of this step, complete, with plan_ to match.
  template <class Residual>
  std::span<mask_word const> current_mask(context_type const& ctx, std::span<mask_word> pending,
                                          Residual const& accumulated) {
    if (step_ < detail::dense_steps(options_)) {
      layout_.plan(1, 0, plan_);
      auto const words = static_cast<std::size_t>(layout_.words_per_shard());
      for (int p = 0; p < layout_.shards(); ++p) {
        detail::set_unfrozen(layout_, p, masks_.global(step_).subspan(at(p) * words, words));
      }
      return masks_.global(step_);
    }
    layout_.plan(options_.density, options_.ramp(step_), plan_);
    if (options_.lag == 0 || step_ < options_.lag) make_mask(ctx, step_, pending, accumulated);
    auto const mask = masks_.wait(ctx, step_);
    if (step_ < restored_until_) detail::count_into_plan(layout_, mask, plan_);
    return mask;
  }

  //! A coordinate_statistic as a statistic of shard-relative indices.
  template <class S, class Residual>
  struct shard_score {
    S const& s;
    Residual const& residual_at;
    float const* m;
    std::uint16_t const* age;
    float const* residual;
    std::int64_t begin;
    std::int64_t step;

    float operator()(std::int64_t i) const {
      return s(statistic_input{.moment = m[i],
                               .residual = residual_at(begin + i),
                               .age = static_cast<float>(age[i]),
                               .element = begin + i,
                               .step = step});
    }
    void prefetch(std::int64_t i) const noexcept {
      prefetch_word(m + i);
      prefetch_word(age + i);
      prefetch_word(residual + begin + i);
    }
  };

  //! Selects this rank's bits of the mask of `step` and starts its all-gather.
  template <class Residual>
  void make_mask(context_type const& ctx, std::int64_t step, std::span<mask_word> pending,
                 Residual const& residual_at) {
    layout_.plan(options_.density, options_.ramp(step), next_plan_);
    topk_options topk{.exclude = {}, .hints = hints_, .nan = options_.nan};
    if (options_.lag > 1) {
      std::ranges::fill(pending, mask_word{0});
      for (auto s = step_ + 1; s < step_ + options_.lag; ++s) {
        std::ranges::transform(pending, masks_.local(s), pending.begin(), std::bit_or<>());
      }
      topk.exclude = pending;
    }
    detail::with_statistic(options_, statistic_, [&](auto const& s) {
      shard_score<std::decay_t<decltype(s)>, Residual> const score{s,
                                                                   residual_at,
                                                                   moments_.m.data(),
                                                                   moments_.age.data(),
                                                                   residual_.data(),
                                                                   layout_.begin(rank()),
                                                                   step};
      partitioned_topk_mask(ctx, layout_, next_plan_, rank(), score, masks_.local(step), topk);
    });
    masks_.start(ctx, *comm_, step, next_plan_);
    report_.bytes.mask += layout_.mask_wire_bytes(next_plan_, rank());
  }

  void finish_report(context_type const& ctx) {
    auto const n = layout_.size();
    report_.density = n == 0 ? 0 : static_cast<double>(plan_.total()) / static_cast<double>(n);
    report_.bytes.values = layout_.value_wire_bytes(plan_, rank(), sizeof(Wire));
    report_.bytes.parameters = layout_.value_wire_bytes(plan_, rank(), sizeof(float));
    if (options_.statistics) {
      report_.residual_norm =
          std::sqrt(detail::sum_of_squares(ctx, std::span<float const>(residual_)));
    }
  }

  C* comm_;
  layout layout_;
  sparse_optimizer_options options_;
  Statistic statistic_;
  std::span<float> residual_;
  moment_state moments_;
  std::span<mask_word> mask_storage_;
  lagged_mask_allgather<C> masks_;
  std::vector<topk_hint> hints_;
  send_plan plan_, next_plan_;
  std::int64_t step_ = 0;
  std::int64_t skipped_ = 0;
  bool broken_ = false;              // a step or save() began and did not end
  bool restored_ = false;            // no step since load()
  bool agreed_ = false;              // the weights were compared since the start or load()
  std::int64_t restored_until_ = 0;  // the masks of the steps before were loaded
  step_report report_;
};

}  // namespace scape
