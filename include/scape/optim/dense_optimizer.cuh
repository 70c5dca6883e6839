// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The sharded dense optimizer on a stream.

#include <cstdint>
#include <functional>
#include <istream>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/dense_rebuild.cuh>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/detail/cuda/optimizer_state.cuh>
#include <scape/detail/cuda/sparse_collectives.cuh>
#include <scape/optim/dense_optimizer.hpp>

namespace scape {

//! The dense optimizer over a communicator of streams: the arithmetic and the saved state of the
//! host, storage, scratch, weights and gradient in device memory. step() enqueues and returns, a
//! step is skipped on the device; any step can be captured once one was taken. See the sparse
//! optimizer for the rest.
template <class Rule, cuda_communicator C>
requires has_reduce_scatter<C, float> && has_all_gather<C, float> && has_all_reduce<C, double> &&
    has_all_gather<C, std::uint64_t>
class dense_optimizer<Rule, C> {
 public:
  using context_type = cuda_context;

  //! Device bytes of the state of one rank.
  [[nodiscard]] static std::size_t storage_bytes(layout const& layout, adam_options const& = {}) {
    workspace_size size;
    size.add<float>(layout.max_shard_size());
    if (Rule::keeps_second_moment) size.add<float>(layout.max_shard_size());
    return size.add<detail::cuda::optimizer_state>(1).bytes();
  }
  //! Device scratch bytes of step().
  [[nodiscard]] static std::size_t scratch_bytes(layout const& layout, adam_options const& = {}) {
    return workspace_size()
        .add<float>(layout.size())
        .add<float>(layout.max_shard_size())
        .add_bytes(detail::cuda::sum_of_squares_bytes())
        .bytes();
  }

  //! `comm`, whose device is the current one, and `storage` (zero-filled) must outlive the
  //! optimizer.
  dense_optimizer(C& comm, layout layout, adam_options const& options, std::span<std::byte> storage)
      : comm_(&comm), layout_(std::move(layout)), options_(options) {
    auto const op = who("dense_optimizer");
    detail::expect_device_of(op, comm);
    detail::expect_valid(op, options_);
    detail::expect_equal(op, "the communicator's size", comm.size(), layout_.shards(),
                         "a layout has one shard per rank");
    detail::expect(!options_.check_agreement, op,
                   "check_agreement is for the host; on streams the ranks' plans are not compared");
    for (int p = 0; p < comm.size(); ++p) counts_.push_back(layout_.shard_size(p));
    carver memory(storage, op);
    m_ = memory.take<float>(shard_size());
    v_ = memory.take<float>(Rule::keeps_second_moment ? shard_size() : 0);
    state_ = memory.take<detail::cuda::optimizer_state>(1).data();
  }
  dense_optimizer(dense_optimizer const&) = delete;
  dense_optimizer& operator=(dense_optimizer const&) = delete;

  //! Enqueues the learning rate and divisor of the steps to come.
  void set_arguments(cuda_context const& ctx, step_arguments const& arguments) {
    auto const op = who("dense_optimizer::set_arguments");
    detail::expect_valid(op, arguments);
    detail::expect_device_of(op, ctx, *comm_);
    detail::cuda::launch(op, ctx, detail::cuda::set_arguments<detail::cuda::optimizer_state>, 1, 1,
                         state_, arguments);
  }

  //! Enqueues one step. Weights and gradient have n elements each. Throws argument_error before
  //! anything is enqueued.
  template <class Gradient>
  step_report const& step(cuda_context const& ctx, std::span<float> weights,
                          std::span<Gradient> gradient) {
    detail::cuda::nvtx_range const range("dense_optimizer::step");
    auto const op = who("dense_optimizer::step");
    std::span<Gradient const> const read = gradient;
    check_step(op, ctx, std::ssize(weights), std::ssize(gradient));
    carver scratch(ctx.scratch, op);
    auto const sent = scratch.take<float>(layout_.size());
    auto const sums = scratch.take<float>(layout_.max_shard_size()).first(m_.size());
    auto inner = ctx;
    inner.scratch = scratch.rest();
    detail::cuda::guard_gradient(op, inner, *comm_, options_, read, state_);
    detail::cuda::launch(op, ctx, detail::cuda::begin_step<detail::cuda::optimizer_state>, 1, 1,
                         state_, options_, age_scaling::none, age_scaling::none, 0.0F,
                         comm_->size());
    detail::cuda::enqueue_scale(op, ctx, read, sent.data(), state_);
    detail::cuda::enqueue_mark(op, ctx, sums);
    comm_->reduce_scatter(ctx, std::span<float const>(sent), sums, counts_, std::plus<>())
        .wait(ctx);
    auto const own = weights.subspan(static_cast<std::size_t>(layout_.begin(comm_->rank())),
                                     static_cast<std::size_t>(shard_size()));
    detail::cuda::enqueue_dense_rebuild<Rule>(
        op, ctx, layout_, comm_->rank(), sums, &state_->scalars,
        {m_.data(), v_.data(), nullptr, own.data(), nullptr},
        {&state_->skipped, detail::cuda::failure_flag_of(*comm_)});
    comm_->all_gather(ctx, std::span<float const>(own), weights, counts_).wait(ctx);
    detail::cuda::launch(op, ctx, detail::cuda::end_step<detail::cuda::optimizer_state>, 1, 1,
                         state_);
    report_ = step_report{};
    report_.density = 1;
    report_.bytes.control = detail::control_bytes(options_, comm_->size());
    report_.bytes.values = report_.bytes.parameters =
        (layout_.size() - shard_size()) * static_cast<std::int64_t>(sizeof(float));
    warm_ = true;
    return report_;
  }

  //! The same after set_arguments(ctx, arguments).
  template <class Gradient>
  step_report const& step(cuda_context const& ctx, std::span<float> weights,
                          std::span<Gradient> gradient, step_arguments const& arguments) {
    check_step(who("dense_optimizer::step"), ctx, std::ssize(weights), std::ssize(gradient));
    set_arguments(ctx, arguments);
    return step(ctx, weights, gradient);
  }

  //! Waits until everything that was enqueued is done; throws what the communicator throws.
  void synchronize(cuda_context const& ctx) {
    detail::cuda::synchronize(who("dense_optimizer::synchronize"), ctx, *comm_);
  }
  //! Synchronizes, and tells all about the last step but its times.
  [[nodiscard]] step_report report(cuda_context const& ctx) {
    synchronize(ctx);
    auto result = report_;
    detail::cuda::read_state(who("dense_optimizer::report"), state_).fill(result);
    return result;
  }
  [[nodiscard]] layout const& parameters() const noexcept { return layout_; }
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  //! Steps taken and skipped. They synchronize.
  [[nodiscard]] std::int64_t steps(cuda_context const& ctx) {
    synchronize(ctx);
    return detail::cuda::read_state(who("dense_optimizer::steps"), state_).steps;
  }
  [[nodiscard]] std::int64_t skipped_steps(cuda_context const& ctx) {
    synchronize(ctx);
    return detail::cuda::read_state(who("dense_optimizer::skipped_steps"), state_).skipped_steps;
  }
  //! Of this rank's shard, in device memory.
  [[nodiscard]] std::span<float const> first_moment() const noexcept { return m_; }

  //! As on the host. Both synchronize.
  void save(cuda_context const& ctx, std::ostream& out) {
    auto const op = who("dense_optimizer::save");
    synchronize(ctx);
    auto const state = detail::cuda::read_state(op, state_);
    std::vector<float> m(m_.size()), v(v_.size());
    detail::cuda::copy(op, m.data(), m_.data(), m_.size_bytes());
    detail::cuda::copy(op, v.data(), v_.data(), v_.size_bytes());
    auto header = detail::identity<Rule>(*comm_, layout_);
    header.step = static_cast<std::uint64_t>(state.steps);
    header.skipped = static_cast<std::uint64_t>(state.skipped_steps);
    detail::save_checkpoint(op, out, header, layout_, detail::sections_of<Rule>(m, v));
  }
  void load(cuda_context const& ctx, std::istream& in) {
    load_from(ctx, [&](detail::caller op, auto const& expected, auto const& sections) {
      return detail::load_checkpoint(op, in, expected, sections);
    });
  }
  void load(cuda_context const& ctx, std::span<std::istream* const> files) {
    load_from(ctx, [&](detail::caller op, auto const& expected, auto const& sections) {
      return detail::load_checkpoint(op, files, expected, layout_, sections);
    });
  }

 private:
  template <class Read>
  void load_from(cuda_context const& ctx, Read const& read) {
    auto const op = who("dense_optimizer::load");
    detail::expect_no_capture(op, ctx.stream);
    detail::check_cuda(cudaStreamSynchronize(ctx.stream), op, "cudaStreamSynchronize");
    std::vector<float> m(m_.size()), v(v_.size());
    auto const header =
        read(op, detail::identity<Rule>(*comm_, layout_), detail::sections_of<Rule>(m, v));
    detail::cuda::copy(op, m_.data(), m.data(), m_.size_bytes());
    detail::cuda::copy(op, v_.data(), v.data(), v_.size_bytes());
    detail::cuda::write_state(op, state_, header);
  }
  [[nodiscard]] detail::caller who(std::string_view operation) const noexcept {
    return {operation, comm_->rank(), comm_->size()};
  }
  [[nodiscard]] std::int64_t shard_size() const noexcept {
    return layout_.shard_size(comm_->rank());
  }

  void check_step(detail::caller op, cuda_context const& ctx, std::int64_t weights,
                  std::int64_t gradient) const {
    detail::expect_device_of(op, ctx, *comm_);
    detail::expect_equal(op, "the length of weights", weights, layout_.size());
    detail::expect_equal(op, "the length of gradient", gradient, layout_.size());
    detail::expect_scratch(op, ctx.scratch.size(), scratch_bytes(layout_));
    detail::expect(warm_ || !detail::is_capturing(op, ctx.stream), op,
                   "the first step cannot be captured; take one before the capture begins");
  }

  C* comm_;
  layout layout_;
  adam_options options_;
  std::vector<std::int64_t> counts_;
  std::span<float> m_, v_;
  detail::cuda::optimizer_state* state_ = nullptr;
  bool warm_ = false;
  step_report report_;
};

}  // namespace scape
