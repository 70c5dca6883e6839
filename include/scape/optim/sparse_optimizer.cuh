// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The whole step of sparse optimizer-state sync on streams.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/context/cuda.hpp>
#include <scape/detail/cuda/nvtx.cuh>
#include <scape/detail/cuda/optimizer_kernels.cuh>
#include <scape/detail/cuda/optimizer_state.cuh>
#include <scape/detail/cuda/residual_offload.cuh>
#include <scape/optim/sparse_optimizer.hpp>
#include <scape/partitioned_topk_mask.cuh>
#include <scape/single_buffer_moment_rebuild.cuh>
#include <scape/sparse_all_gather.cuh>
#include <scape/sparse_reduce_scatter.cuh>

namespace scape {

//! The sparse optimizer over a communicator of streams. The arithmetic, the masks and the saved
//! state are those of the host; a file of one can be loaded by the other. What differs:
//!
//! - step() enqueues and returns. Storage, scratch, weights and gradient are device memory.
//! - A step is skipped on the device, without the host. Only while the number of values still
//!   changes from step to step (the first dense steps, a ramp, a mask out of a file) does a step
//!   wait for the verdict on the one before, and only with skip_nonfinite.
//! - Failures of the communicator show in synchronize(), which never waits beyond its deadline. The
//!   residual then has again what was not delivered; step() and save() refuse until load().
//! - The mask's all-gather runs on a stream of the optimizer's own. With lag > 1 it has until the
//!   next step's selection.
//! - A step can be captured once settled() is true and synchronize() was called: capture slots()
//!   of them in a row as graph[slot()], then launch graph[slot()] and call replayed() each time.
//!   Inside a graph the mask's all-gather is part of the step. The learning rate of a captured
//!   step(ctx, weights, gradient) is what set_arguments() enqueued last.
//!
//! Weights are float; with options.master_weights they may be __half or __nv_bfloat16 too (or
//! scape's types), and the owner keeps its shard in float. The master weights are taken from the
//! model's weights in the first step; a saved state with them is for this backend alone.
//!
//! All calls use one stream, or streams that the caller orders, and are made outside of any NCCL
//! group. load() and copy_residual() wait for the stream without a deadline: after a failure of an
//! adopted communicator, call them once its owner has aborted it.
template <class Rule, cuda_communicator C, class Wire, class Statistic>
requires has_reduce_scatter<C, Wire> && has_all_gather<C, float> && has_all_gather<C, mask_word> &&
    has_all_gather<C, std::uint16_t> && has_all_reduce<C, double> && statistic_choice<Statistic>
class sparse_optimizer<Rule, C, Wire, Statistic> {
 public:
  using context_type = cuda_context;

  //! Device bytes of the state of one rank.
  [[nodiscard]] static std::size_t storage_bytes(layout const& layout,
                                                 sparse_optimizer_options const& options) {
    auto const shard = layout.max_shard_size();
    auto const offload = options.offload_residual;
    workspace_size size;
    size.add<float>(offload ? shard : layout.size()).template add<float>(shard);
    if (Rule::keeps_second_moment) size.add<float>(shard);
    size.add<std::uint16_t>(shard)
        .template add<mask_word>(lagged_mask_allgather<C>::storage_words(layout, options.lag))
        .template add<detail::cuda::optimizer_state>(1)
        .template add<topk_hint>(max_groups(layout));
    if (options.master_weights) size.add<float>(shard);
    if (offload) size.add<float>(2 * chunk_size(layout, options));
    return size.bytes();
  }

  //! Bytes of pinned host memory for the residual; 0 unless it is offloaded.
  [[nodiscard]] static std::size_t pinned_bytes(layout const& layout,
                                                sparse_optimizer_options const& options) {
    return options.offload_residual ? workspace_size().add<float>(layout.size()).bytes() : 0;
  }

  //! Device scratch bytes of step().
  [[nodiscard]] static std::size_t scratch_bytes(layout const& layout,
                                                 sparse_optimizer_options const&) {
    auto const reduce_scatter = workspace_size()
                                    .add<Wire>(layout.size())
                                    .template add<Wire>(detail::cuda::receipt_count(layout));
    auto const all_gather = workspace_size().add<float>(layout.size());
    return workspace_size()
        .add<Wire>(layout.max_shard_size())
        .template add<mask_word>(layout.words_per_shard())
        .add_bytes(
            detail::cuda::mask_ranks::scratch_bytes(layout.words_per_shard(), layout.shards()))
        .add_bytes(std::max({detail::cuda::sum_of_squares_bytes(), reduce_scatter.bytes(),
                             all_gather.bytes(), detail::cuda::topk_scratch_bytes(layout)}))
        .bytes();
  }

  //! `comm` and the memory (zero-filled) must outlive the optimizer. The current device is the
  //! communicator's, for the optimizer's own streams. CUDA may wait for other devices when
  //! such memory comes and goes: where ranks are threads of one process, make and destroy
  //! optimizers while no rank waits in a collective for another.
  sparse_optimizer(C& comm, layout layout, sparse_optimizer_options const& options,
                   std::span<std::byte> storage, std::span<std::byte> pinned = {},
                   Statistic statistic = {})
      : sparse_optimizer(comm, std::move(layout), options, carver(storage, caller_of(comm)),
                         carver(pinned, caller_of(comm)), std::move(statistic)) {}
  sparse_optimizer(sparse_optimizer const&) = delete;
  sparse_optimizer& operator=(sparse_optimizer const&) = delete;

  //! Enqueues the learning rate and divisor of the steps to come.
  void set_arguments(cuda_context const& ctx, step_arguments const& arguments) {
    auto const op = who("sparse_optimizer::set_arguments");
    detail::expect_valid(op, arguments);
    detail::expect_device_of(op, ctx, *comm_);
    detail::cuda::launch(op, ctx, detail::cuda::set_arguments<detail::cuda::optimizer_state>, 1, 1,
                         state_, arguments);
  }

  //! Enqueues one step. Weights and gradient have n elements each and stay untouched until it is
  //! done. Throws argument_error before anything is enqueued. The report has the step's plan and
  //! bytes; what the device knows is in report(ctx).
  template <class Weight, class Gradient>
  step_report const& step(cuda_context const& ctx, std::span<Weight> weights,
                          std::span<Gradient> gradient) {
    detail::cuda::nvtx_range const range("sparse_optimizer::step");
    auto const op = who("sparse_optimizer::step");
    auto const capturing = check_step<Weight>(op, ctx, weights.size(), gradient.size());
    if (restored_) expect_same_step(ctx, op);
    broken_ = !capturing;  // until everything is enqueued; a capture that fails has run nothing
    try {
      enqueue_step(op, ctx, weights, std::span<Gradient const>(gradient));
      if (capturing) masks_.wait_all(ctx);
    } catch (...) {
      if (capturing) forget_capture();
      throw;
    }
    finish_report(sizeof(Weight));
    ++call_;
    warm_ = true;
    broken_ = false;
    return report_;
  }

  //! The same after set_arguments(ctx, arguments).
  template <class Weight, class Gradient>
  step_report const& step(cuda_context const& ctx, std::span<Weight> weights,
                          std::span<Gradient> gradient, step_arguments const& arguments) {
    check_step<Weight>(who("sparse_optimizer::step"), ctx, weights.size(), gradient.size());
    set_arguments(ctx, arguments);
    return step(ctx, weights, gradient);
  }

  //! Whether every step from now on sends equally many values, so that it can be captured.
  [[nodiscard]] bool settled() const noexcept {
    return call_ >= std::max({detail::dense_steps(options_), std::int64_t{options_.lag},
                              options_.density_ramp_steps, restored_until_});
  }
  //! The number of different steps, as far as the masks' memory goes.
  [[nodiscard]] std::int64_t slots() const noexcept {
    return lagged_mask_allgather<C>::slots(options_.lag);
  }
  //! Which of them comes next.
  [[nodiscard]] std::int64_t slot() const noexcept { return call_ % slots(); }
  //! To be called after each launch of a captured step.
  void replayed() noexcept { ++call_; }

  //! Waits until everything that was enqueued is done, at most the communicator's deadline without
  //! it. Throws what the communicator throws.
  void synchronize(cuda_context const& ctx) {
    auto const op = who("sparse_optimizer::synchronize");
    detail::expect_device_of(op, ctx, *comm_);
    detail::expect_no_capture(op, ctx.stream);
    learn_verdict();
    try {
      masks_.wait_all(ctx);
      detail::cuda::synchronize(op, ctx, *comm_);
    } catch (...) {
      broken_ = true;
      throw;
    }
  }

  //! Synchronizes, and tells all about the last step but its times.
  [[nodiscard]] step_report report(cuda_context const& ctx) {
    auto result = report_;
    read_state(ctx).fill(result);
    if (options_.statistics) {
      std::vector<float> residual(at(layout_.size()));
      copy_residual(ctx, residual);
      double square = 0;
      for (auto const e : residual) square += double{e} * double{e};
      result.residual_norm = std::sqrt(square);
    }
    return result;
  }
  [[nodiscard]] layout const& parameters() const noexcept { return layout_; }
  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  //! Steps taken and skipped. They synchronize.
  [[nodiscard]] std::int64_t steps(cuda_context const& ctx) { return read_state(ctx).steps; }
  [[nodiscard]] std::int64_t skipped_steps(cuda_context const& ctx) {
    return read_state(ctx).skipped_steps;
  }
  //! Copies this rank's unsent part of every parameter, n elements, into host memory. Synchronizes,
  //! and works after a failure too: nothing that was accumulated is lost.
  void copy_residual(cuda_context const& ctx, std::span<float> out) {
    auto const op = who("sparse_optimizer::copy_residual");
    detail::expect_equal(op, "the length of the output", std::ssize(out), layout_.size());
    detail::expect_no_capture(op, ctx.stream);
    if (!broken_) synchronize(ctx);
    detail::check_cuda(cudaStreamSynchronize(ctx.stream), op, "cudaStreamSynchronize");
    copy_residual(op, out, [](auto* host, auto* own) { return std::pair(host, own); });
  }
  //! Moments and ages of this rank's shard, in device memory.
  [[nodiscard]] moment_state const& moments() const noexcept { return moments_; }
  //! The float weights of this rank's shard, in device memory; empty without master_weights.
  [[nodiscard]] std::span<float const> master_weights() const noexcept { return master_; }
  //! The global mask the last step used, in device memory; valid until the next step.
  [[nodiscard]] std::span<mask_word const> last_mask() const noexcept {
    return masks_.global(std::max<std::int64_t>(call_ - 1, 0));
  }

  //! As on the host. Both synchronize. load() asks nothing of the communicator: it works after a
  //! failure, and once another communicator was assigned to the failed one.
  void save(cuda_context const& ctx, std::ostream& out) {
    auto const op = who("sparse_optimizer::save");
    expect_intact(op);
    auto const state = read_state(ctx);
    host_copy copy(*this);
    copy.transfer(*this, op, [](auto* host, auto* own) { return std::pair(host, own); });
    // A file keeps the masks by the number of the step, memory by that of the call.
    auto const slots_off = (call_ - state.steps) % slots();
    std::ranges::rotate(copy.masks, copy.masks.begin() + slots_off * layout_.mask_words());
    auto header = detail::identity<Rule>(*comm_, layout_, options_);
    header.step = static_cast<std::uint64_t>(state.steps);
    header.skipped = static_cast<std::uint64_t>(state.skipped_steps);
    detail::save_checkpoint(op, out, header, layout_, copy.sections());
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
    auto const op = who("sparse_optimizer::load");
    detail::expect_no_capture(op, ctx.stream);
    masks_.forget();  // the communicator may have failed, or be another one by now
    for (auto const stream : {ctx.stream, side_.get()}) {
      detail::check_cuda(cudaStreamSynchronize(stream), op, "cudaStreamSynchronize");
    }
    host_copy copy(*this);
    auto const header =
        read(op, detail::identity<Rule>(*comm_, layout_, options_), copy.sections());
    copy.transfer(*this, op, [](auto* host, auto* own) { return std::pair(own, host); });
    detail::cuda::write_state(op, state_, header);
    detail::check_cuda(cudaMemsetAsync(hints_.data(), 0, hints_.size_bytes(), ctx.stream), op,
                       "cudaMemsetAsync");
    call_ = static_cast<std::int64_t>(header.step);
    restored_until_ = call_ + options_.lag;
    restored_plans_.assign(at(options_.lag), plan_);
    for (auto s = call_; s < restored_until_; ++s) {
      auto const words = at(layout_.mask_words());
      detail::count_into_plan(
          layout_, std::span<mask_word const>(copy.masks).subspan(at(s % slots()) * words, words),
          restored_plans_[at(s - call_)]);
    }
    restored_ = has_master_ = true;
    warm_ = broken_ = verdict_pending_ = false;
  }

  sparse_optimizer(C& comm, layout&& layout, sparse_optimizer_options const& options, carver memory,
                   carver pinned, Statistic&& statistic)
      : comm_(on_its_device(comm)),
        layout_(std::move(layout)),
        options_(detail::checked(comm, layout_, options)),
        statistic_(std::move(statistic)),
        residual_(options_.offload_residual ? pinned.take<float>(layout_.size())
                                            : memory.take<float>(layout_.size())),
        offloaded_own_(memory.take<float>(options_.offload_residual ? shard_size() : 0)),
        moments_{.m = memory.take<float>(shard_size()),
                 .v = memory.take<float>(Rule::keeps_second_moment ? shard_size() : 0),
                 .age = memory.take<std::uint16_t>(shard_size())},
        mask_storage_(
            memory.take<mask_word>(lagged_mask_allgather<C>::storage_words(layout_, options_.lag))),
        masks_(layout_, comm.rank(), options_.lag, mask_storage_),
        state_(memory.take<detail::cuda::optimizer_state>(1).data()),
        hints_(memory.take<topk_hint>(std::ssize(layout_.groups(comm.rank())))),
        master_(memory.take<float>(options_.master_weights ? shard_size() : 0)),
        side_ready_("sparse_optimizer"),
        verdict_("sparse_optimizer"),
        verdict_memory_(sizeof(int)),
        plan_(layout_.plan(1)),
        next_plan_(plan_) {
    detail::expect(!options_.check_agreement, caller_of(comm),
                   "check_agreement is for the host; on streams the ranks' plans are not compared");
    if (options_.offload_residual) {
      auto const op = caller_of(comm);
      cudaPointerAttributes attributes = {};
      detail::check_cuda(cudaPointerGetAttributes(&attributes, residual_.data()), op,
                         "cudaPointerGetAttributes");
      detail::expect(residual_.empty() || attributes.type == cudaMemoryTypeHost, op,
                     "the memory for the offloaded residual is not pinned; see pinned_buffer");
      auto const chunk = chunk_size(layout_, options_);
      offload_.emplace(memory.take<float>(chunk), memory.take<float>(chunk));
    }
  }

  static detail::caller caller_of(C const& comm) {
    return {"sparse_optimizer", comm.rank(), comm.size()};
  }
  static C* on_its_device(C& comm) {
    detail::expect_device_of(caller_of(comm), comm);
    return &comm;
  }
  static std::int64_t chunk_size(layout const& layout, sparse_optimizer_options const& options) {
    return std::min(options.offload_chunk, std::max<std::int64_t>(layout.size(), 1));
  }
  static std::int64_t max_groups(layout const& layout) {
    std::size_t most = 0;
    for (int p = 0; p < layout.shards(); ++p) most = std::max(most, layout.groups(p).size());
    return static_cast<std::int64_t>(most);
  }
  template <class I>
  static std::size_t at(I i) noexcept {
    return static_cast<std::size_t>(i);
  }
  [[nodiscard]] detail::caller who(std::string_view operation) const noexcept {
    return {operation, rank(), comm_->size()};
  }
  [[nodiscard]] std::int64_t shard_size() const noexcept { return layout_.shard_size(rank()); }
  [[nodiscard]] bool before_send() const { return detail::before_send(options_, statistic_); }
  [[nodiscard]] float* own_residual() const noexcept {
    return offload_ ? offloaded_own_.data() : residual_.data() + layout_.begin(rank());
  }

  //! The residual as it lies: the own shard or all of it in device memory, and then what is not.
  [[nodiscard]] std::array<detail::cuda::residual_part, 3> residual_parts() const noexcept {
    auto const n = layout_.size();
    if (!offload_) return {{{{0, n}, residual_.data()}, {}, {}}};
    auto const begin = layout_.begin(rank()), end = begin + shard_size();
    return {{{{begin, end}, offloaded_own_.data(), begin},
             {{0, begin}, residual_.data()},
             {{end, n}, residual_.data()}}};
  }

  //! Copies between the residual and n elements of host memory; `order` names to and from.
  template <class Order>
  void copy_residual(detail::caller op, std::span<float> host, Order const& order) const {
    for (auto const& part : residual_parts()) {
      if (part.elements.size() == 0) continue;
      auto const [to, from] =
          order(host.data() + part.elements.begin, part.data + (part.elements.begin - part.begin));
      detail::cuda::copy(op, to, from, at(part.elements.size()) * sizeof(float));
    }
  }

  //! The saved parts of the state, in host memory.
  struct host_copy {
    std::vector<float> residual, m, v, master;
    std::vector<std::uint16_t> age;
    std::vector<mask_word> masks;

    explicit host_copy(sparse_optimizer const& o)
        : residual(at(o.layout_.size())),
          m(o.moments_.m.size()),
          v(o.moments_.v.size()),
          master(o.master_.size()),
          age(o.moments_.age.size()),
          masks(o.mask_storage_.size()) {}

    //! Copies one way: order(host, device) names to and from.
    template <class Order>
    void transfer(sparse_optimizer const& o, detail::caller op, Order const& order) {
      o.copy_residual(op, residual, order);
      auto const copy = [&](auto& host, auto const& own) {
        auto const [to, from] = order(host.data(), own.data());
        detail::cuda::copy(op, to, from, own.size_bytes());
      };
      copy(m, o.moments_.m);
      copy(v, o.moments_.v);
      copy(age, o.moments_.age);
      copy(masks, o.mask_storage_);
      copy(master, o.master_);
    }

    [[nodiscard]] std::vector<detail::checkpoint_section> sections() {
      auto result = detail::sections_of<Rule>(m, v, residual, age, masks);
      if (!master.empty()) result.emplace_back(detail::spread::sharded, master);
      return result;
    }
  };

  void expect_intact(detail::caller op) const {
    detail::expect(!broken_, op, "an earlier step failed half-way; load a checkpoint first");
  }

  //! Returns whether the stream is being captured.
  template <class Weight>
  bool check_step(detail::caller op, cuda_context const& ctx, std::size_t weights,
                  std::size_t gradient) {
    static_assert(std::is_same_v<Weight, float> || detail::is_16_bit_float<Weight>,
                  "weights are float or a 16-bit float");
    detail::expect_device_of(op, ctx, *comm_);
    detail::expect(std::is_same_v<Weight, float> || options_.master_weights, op,
                   "16-bit weights need sparse_optimizer_options::master_weights");
    detail::expect_equal(op, "the length of weights", static_cast<std::int64_t>(weights),
                         layout_.size());
    detail::expect_equal(op, "the length of gradient", static_cast<std::int64_t>(gradient),
                         layout_.size());
    detail::expect_scratch(op, ctx.scratch.size(), scratch_bytes(layout_, options_));
    expect_intact(op);
    auto const capturing = detail::is_capturing(op, ctx.stream);
    if (capturing) {
      detail::expect(warm_ && !verdict_pending_ && !masks_.in_flight() && settled(), op,
                     "a captured step needs steps before it, outside of the capture, until "
                     "settled() is true, and then synchronize()");
    } else {
      learn_verdict();
    }
    return capturing;
  }

  template <class Weight, class Gradient>
  void enqueue_step(detail::caller op, cuda_context const& ctx, std::span<Weight> weights,
                    std::span<Gradient const> gradient) {
    carver scratch(ctx.scratch, op);
    auto const values = scratch.take<Wire>(layout_.max_shard_size());
    auto const pending = scratch.take<mask_word>(layout_.words_per_shard());
    if (options_.master_weights && !has_master_) take_master(op, ctx, weights);

    auto inner = ctx;
    inner.scratch = scratch.rest();
    detail::cuda::guard_gradient(op, inner, *comm_, options_, gradient, state_);
    detail::cuda::launch(op, ctx, detail::cuda::begin_step<detail::cuda::optimizer_state>, 1, 1,
                         state_, static_cast<adam_options const&>(options_),
                         options_.moment_scaling, options_.step_scaling, options_.tau_max,
                         comm_->size());
    if (!settled() && options_.skip_nonfinite) request_verdict(op, ctx);

    report_ = step_report{};
    report_.step = call_;
    detail::cuda::accumulated_residual<Gradient> const accumulated{
        gradient.data() + layout_.begin(rank()), own_residual(), state_};
    auto const mask = current_mask(inner, pending, accumulated);
    detail::cuda::mask_ranks const ranks(op, ctx, mask, layout_.words_per_shard(), scratch);
    inner.scratch = scratch.rest();
    if (options_.statistics && call_ > 0) {
      detail::cuda::enqueue_overlap(op, ctx, mask, masks_.global(call_ - 1), state_);
    }
    if (options_.lag > 0 && before_send()) {
      make_mask(inner, call_ + options_.lag, pending, accumulated);
    }
    auto const own = values.first(at(plan_.counts[at(rank())]));
    reduce_scatter(op, inner, ranks, gradient, own);
    rebuild(op, inner, ranks, std::span<Wire const>(own), weights);
    {
      detail::cuda::nvtx_range const all_gather("sparse_all_gather");
      carver packed(inner.scratch, op);
      detail::cuda::all_gather_packed(op, inner, *comm_, layout_, plan_, ranks,
                                      packed.take<Weight>(plan_.total()), weights.data(),
                                      {&state_->skipped, detail::cuda::failure_flag_of(*comm_)});
    }
    if (options_.lag > 0 && !before_send()) {
      make_mask(inner, call_ + options_.lag, pending, detail::cuda::kept_residual{own_residual()});
    }
    detail::cuda::launch(op, ctx, detail::cuda::end_step<detail::cuda::optimizer_state>, 1, 1,
                         state_);
  }
  void forget_capture() noexcept {
    masks_.forget();
    if (offload_) offload_->forget();
  }

  //! Has the host told whether this step is skipped.
  void request_verdict(detail::caller op, cuda_context const& ctx) {
    detail::check_cuda(cudaMemcpyAsync(verdict_memory_.bytes().data(), &state_->skipped,
                                       sizeof(int), cudaMemcpyDeviceToHost, ctx.stream),
                       op, "cudaMemcpyAsync");
    detail::check_cuda(cudaEventRecord(verdict_.get(), ctx.stream), op, "cudaEventRecord");
    verdict_pending_ = true;
  }
  //! Waits for it. A skipped step takes no slot.
  void learn_verdict() {
    if (!verdict_pending_) return;
    auto const op = who("sparse_optimizer");
    cuda_context const behind(verdict_stream_.get(), {});
    try {
      detail::check_cuda(cudaStreamWaitEvent(behind.stream, verdict_.get(), 0), op,
                         "cudaStreamWaitEvent");
      detail::cuda::synchronize(op, behind, *comm_);
    } catch (...) {
      broken_ = true;
      throw;
    }
    verdict_pending_ = false;
    if (*reinterpret_cast<int const*>(verdict_memory_.bytes().data()) != 0) --call_;
  }

  //! Collective: the spread of the ranks' steps is 0.
  void expect_same_step(cuda_context const& ctx, detail::caller op) {
    auto const step = static_cast<double>(call_);
    std::array<double, 2> const own = {step, step * step};
    carver scratch(ctx.scratch, op);
    auto const sums = scratch.take<double>(2);
    detail::check_cuda(
        cudaMemcpyAsync(sums.data(), own.data(), sizeof(own), cudaMemcpyHostToDevice, ctx.stream),
        op, "cudaMemcpyAsync");
    comm_->all_reduce(ctx, std::span<double const>(sums), sums, std::plus<>()).wait(ctx);
    synchronize(ctx);
    std::array<double, 2> sum = {};
    detail::cuda::copy(op, sum.data(), sums.data(), sizeof(sum));
    detail::expect_same_step(op, call_, sum);
    restored_ = false;
  }

  template <class Weight>
  void take_master(detail::caller op, cuda_context const& ctx, std::span<Weight> weights) {
    detail::cuda::enqueue_convert(op, ctx, weights.data() + layout_.begin(rank()), master_);
    has_master_ = true;
  }

  //! The mask of this step, with plan_ to match, once the stream gets so far.
  template <class Residual>
  std::span<mask_word const> current_mask(cuda_context const& ctx, std::span<mask_word> pending,
                                          Residual const& accumulated) {
    detail::cuda::nvtx_range const range("mask of this step");
    if (call_ < detail::dense_steps(options_)) {
      layout_.plan(1, 0, plan_);
      auto const words = at(layout_.words_per_shard());
      for (int p = 0; p < layout_.shards(); ++p) {
        detail::cuda::fill_mask(who("sparse_optimizer::step"), ctx, layout_, p,
                                masks_.global(call_).subspan(at(p) * words, words),
                                &state_->skipped);
      }
      return masks_.global(call_);
    }
    layout_.plan(options_.density, options_.ramp(call_), plan_);
    if (options_.lag == 0 || call_ < options_.lag) {
      make_mask(ctx, call_, pending, accumulated);
    } else if (call_ < restored_until_) {
      plan_ = restored_plans_[at(call_ + options_.lag - restored_until_)];
    }
    return masks_.wait(ctx, call_);
  }

  //! Selects this rank's bits of the mask of `call` and starts its all-gather. In a skipped step
  //! they, and the masks before, become those of the call before.
  template <class Residual>
  void make_mask(cuda_context const& ctx, std::int64_t call, std::span<mask_word> pending,
                 Residual const& residual) {
    detail::cuda::nvtx_range const range("partitioned_topk_mask");
    auto const op = who("sparse_optimizer::step");
    layout_.plan(options_.density, options_.ramp(call), next_plan_);
    topk_options topk{.exclude = {}, .hints = hints_, .nan = options_.nan};
    masks_.wait(ctx, call);
    for (auto s = call_ + 1; s < call_ + options_.lag; ++s) {
      masks_.wait(ctx, s);
      detail::cuda::enqueue_bit_or(op, ctx, masks_.local(s), pending, s == call_ + 1);
      topk.exclude = pending;
    }
    detail::with_statistic(options_, statistic_, [&](auto const& s) {
      using statistic_type = std::decay_t<decltype(s)>;
      detail::cuda::shard_score<statistic_type, Residual> const score{
          s,      residual,    moments_.m.data(), moments_.age.data(), layout_.begin(rank()),
          state_, call - call_};
      detail::cuda::partitioned_topk_mask(op, ctx, layout_, next_plan_, rank(), score,
                                          masks_.local(call), topk, &state_->skipped);
    });
    if (settled() && options_.skip_nonfinite) {
      auto const words = layout_.words_per_shard();
      detail::cuda::enqueue_shift(op, ctx,
                                  {mask_storage_.data(), slots(), layout_.mask_words(),
                                   rank() * words, (rank() + 1) * words},
                                  call_, call, state_);
    }
    report_.bytes.mask += layout_.mask_wire_bytes();
    if (call == call_) {
      masks_.start(ctx, *comm_, call);
      return;
    }
    side_ready_.order(op, ctx.stream, side_.get());
    masks_.start({side_.get(), {}}, *comm_, call);
  }

  template <class Gradient>
  void reduce_scatter(detail::caller op, cuda_context const& ctx,
                      detail::cuda::mask_ranks const& ranks, std::span<Gradient const> gradient,
                      std::span<Wire> values) {
    detail::cuda::nvtx_range const range("sparse_reduce_scatter");
    carver scratch(ctx.scratch, op);
    auto const packed = scratch.take<Wire>(plan_.total());
    detail::cuda::packed_reduce_scatter<C, Wire> const collective{
        *comm_, plan_, packed, values, scratch.take<Wire>(detail::cuda::receipt_count(layout_))};
    detail::cuda::gate const step{&state_->skipped, detail::cuda::failure_flag_of(*comm_)};
    detail::cuda::scalar_source<float> const coefficient{0, &state_->coefficient};
    auto const pass = [&](detail::cuda::residual_part const& part) {
      detail::cuda::accumulate_and_compact(op, ctx, layout_, ranks, gradient.data(), part,
                                           coefficient, packed, comm_->size(), step);
    };
    auto const parts = residual_parts();
    pass(parts[0]);
    if (offload_) {
      offload_->stream(op, ctx, parts[1], pass);
      offload_->stream(op, ctx, parts[2], pass);
    }
    auto const send = [&] {
      try {
        collective(op, ctx);
      } catch (...) {
        if (offload_) offload_->end(op, ctx);  // what is given back comes behind the copies
        throw;
      }
      if (offload_) offload_->end(op, ctx);
    };
    detail::cuda::send_packed<Wire>(op, ctx, layout_, ranks, packed, collective.result(), parts,
                                    step, &state_->failed, send);
  }

  template <class Weight>
  void rebuild(detail::caller op, cuda_context const& ctx, detail::cuda::mask_ranks const& ranks,
               std::span<Wire const> values, std::span<Weight> weights) {
    detail::cuda::nvtx_range const range("single_buffer_moment_rebuild");
    auto* const own = weights.data() + layout_.begin(rank());
    detail::cuda::shard_arrays<Weight> arrays{moments_.m.data(), moments_.v.data(),
                                              moments_.age.data(), master_.data(), own};
    if constexpr (std::is_same_v<Weight, float>) {
      if (!options_.master_weights) arrays.w = std::exchange(arrays.copy, nullptr);
    }
    detail::cuda::masked_rebuild<Rule>(
        op, ctx, layout_, rank(), ranks, plan_.offsets[at(rank())], values, {{}, &state_->scalars},
        options_.unmasked == unmasked_moment::decay, arrays, {&state_->skipped, &state_->failed});
  }

  void finish_report(std::size_t weight_bytes) {
    auto const n = layout_.size();
    report_.density = n == 0 ? 0 : static_cast<double>(plan_.total()) / static_cast<double>(n);
    report_.bytes.control = detail::control_bytes(options_, comm_->size());
    report_.bytes.values = layout_.value_wire_bytes(plan_, rank(), sizeof(Wire));
    report_.bytes.parameters = layout_.value_wire_bytes(plan_, rank(), weight_bytes);
  }

  detail::cuda::optimizer_state read_state(cuda_context const& ctx) {
    synchronize(ctx);
    return detail::cuda::read_state(who("sparse_optimizer"), state_);
  }

  C* comm_;
  layout layout_;
  sparse_optimizer_options options_;
  Statistic statistic_;
  std::span<float> residual_;       // pinned host memory if offloaded
  std::span<float> offloaded_own_;  // then the own shard's part, which stays on the device
  moment_state moments_;
  std::span<mask_word> mask_storage_;
  lagged_mask_allgather<C> masks_;
  detail::cuda::optimizer_state* state_;
  std::span<topk_hint> hints_;
  std::span<float> master_;
  std::optional<detail::cuda::residual_offload> offload_;
  cuda_stream side_, verdict_stream_;
  detail::cuda_event side_ready_, verdict_;
  pinned_buffer verdict_memory_;
  send_plan plan_, next_plan_;
  std::vector<send_plan>
      restored_plans_;     // of the steps call_ ... restored_until_ - 1 after load()
  std::int64_t call_ = 0;  // steps enqueued, less those known to be skipped
  std::int64_t restored_until_ = 0;
  bool verdict_pending_ = false;
  bool has_master_ = false;
  bool warm_ = false;
  bool broken_ = false;
  bool restored_ = false;
  step_report report_;
};

}  // namespace scape
