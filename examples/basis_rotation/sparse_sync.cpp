// SPDX-License-Identifier: Apache-2.0
#include "sparse_sync.hpp"

#include <scape/comm/threads.hpp>
#include <scape/context/host.hpp>
#include <scape/lagged_mask_allgather.hpp>
#include <scape/layout.hpp>
#include <scape/packed_bitmask.hpp>
#include <scape/partitioned_topk_mask.hpp>
#include <scape/sparse_all_reduce.hpp>
#include <scape/workspace.hpp>

#include <algorithm>
#include <stdexcept>

#include "gather.hpp"
#include "gpt.hpp"
#include "held_out_loss.hpp"
#include "model_optimizer.hpp"
#include "random.hpp"
#include "rank_group.hpp"

namespace basis_rotation {
namespace {

using comm_type = scape::thread_communicator;

scape::layout make_layout(settings const& s) {
  std::vector<scape::parameter_span> spans;
  for (auto const& t : parameter_tensors(s.shape)) {
    spans.push_back(
        {.name = t.name,
         .offset = t.offset,
         .length = t.length,
         .policy = t.one_dimensional ? scape::span_policy::always : scape::span_policy::sparse});
  }
  return scape::layout(train_gpt::parameter_count(s.shape), s.ranks, std::move(spans));
}

class sync_rank {
 public:
  sync_rank(settings const& s, train_gpt::corpus const& text, sync_run const& run,
            scape::layout const& layout, comm_type& comm)
      : s_(s),
        text_(text),
        run_(run),
        layout_(layout),
        comm_(comm),
        dense_(layout.plan(1)),
        sparse_(layout.plan(run.density)),
        tensors_(place_on_stages(s.shape, 1)),
        optimizer_(run.how, tensors_, std::vector(tensors_.size(), s.interval)),
        model_(s.shape, s.batch / s.ranks),
        batch_(s.batch / s.ranks, s.shape.context),
        scratch_(std::max(scape::partitioned_topk_mask_bytes(layout),
                          scape::sparse_collective_bytes<float>(dense_.total()))),
        mask_words_(static_cast<std::size_t>(
            scape::lagged_mask_allgather<comm_type>::storage_words(layout, 0))),
        masks_(layout, comm.rank(), 0, mask_words_) {
    auto const initial = train_gpt::initial_parameters(s.shape, run.seed);
    weights_.assign(initial.begin(), initial.end());
    for (auto* const v : {&gradient_, &residual_, &moment_, &age_}) v->resize(weights_.size());
    values_.resize(static_cast<std::size_t>(dense_.total()));
  }

  std::vector<loss_point> train() {
    std::vector<loss_point> validation;
    for (std::int64_t step = 0; step < s_.sync_steps; ++step) {
      take_step(step);
      bool const due = (step + 1) % s_.validate_every == 0 || step + 1 == s_.sync_steps;
      if (!due || comm_.rank() != 0) continue;
      validation.push_back(
          {step + 1, held_out_loss(model_, weights_, text_, batch_, s_.validation_rows)});
    }
    auto const hash = train_gpt::fnv1a(std::as_bytes(std::span(weights_)));
    for (auto const other : train_gpt::gather(comm_, hash)) {
      if (other != hash) throw std::logic_error("the ranks' weights differ");
    }
    return validation;
  }

 private:
  static constexpr float beta1 = 0.9F;

  void take_step(std::int64_t step) {
    train_gpt::sample(batch_, text_.training(), run_.seed, step, comm_.rank());
    model_.loss_and_gradient(weights_, batch_.inputs, batch_.targets, gradient_);
    turn(gradient_, &scape::rotated_adam::rotate);
    turn(residual_, &scape::rotated_adam::rotate);
    auto const& plan = step == 0 ? dense_ : sparse_;
    auto const mask = choose(step, plan);
    auto const values = std::span(values_).first(static_cast<std::size_t>(plan.total()));
    scape::sparse_all_reduce(context(), comm_, layout_, plan, mask,
                             std::span<float const>(gradient_), std::span<float>(residual_),
                             1 - beta1, values);
    spread(plan, mask, values);
    turn(gradient_, &scape::rotated_adam::rotate_back);
    turn(residual_, &scape::rotated_adam::rotate_back);
    double const lr =
        run_.lr * std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(s_.warmup));
    optimizer_.step(weights_, gradient_, std::vector(tensors_.size(), lr));
  }

  // Into the basis of the mask, or back.
  void turn(train_gpt::aligned_vector<float>& flat,
            void (scape::rotated_adam::*to)(std::span<float const>, std::span<float>)) {
    if (run_.basis == mask_basis::original) return;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      auto const part = part_of(flat, i);
      (optimizer_.adam(i).*to)(part, part);
    }
  }

  std::span<float> part_of(train_gpt::aligned_vector<float>& flat, std::size_t i) const {
    return std::span(flat).subspan(static_cast<std::size_t>(tensors_[i].offset),
                                   static_cast<std::size_t>(tensors_[i].length()));
  }

  std::span<scape::mask_word const> choose(std::int64_t step, scape::send_plan const& plan) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::ranges::copy(optimizer_.adam(i).first_moment(), part_of(moment_, i).begin());
    }
    turn(moment_, &scape::rotated_adam::rotate);
    auto const begin = layout_.begin(comm_.rank());
    auto const statistic = [&](std::int64_t i) {
      auto const j = static_cast<std::size_t>(begin + i);
      auto const u = residual_[j] + (1 - beta1) * gradient_[j];
      return (moment_[j] + u) * (1 + age_[j]);
    };
    partitioned_topk_mask(context(), layout_, plan, comm_.rank(), statistic, masks_.local(step));
    masks_.start(context(), comm_, step);
    return masks_.wait(context(), step);
  }

  // gradient = mean of the values / (1 - beta1) under the mask, 0 elsewhere.
  void spread(scape::send_plan const& plan, std::span<scape::mask_word const> mask,
              std::span<float> values) {
    auto const scale = 1 / (static_cast<float>(comm_.size()) * (1 - beta1));
    for (auto& v : values) v *= scale;
    std::ranges::fill(gradient_, 0.0F);
    for (auto& a : age_) a += 1;
    auto const words = static_cast<std::size_t>(layout_.words_per_shard());
    for (int p = 0; p < layout_.shards(); ++p) {
      auto const shard = static_cast<std::size_t>(p);
      auto const own = [&](auto& flat) {
        return std::span(flat).subspan(static_cast<std::size_t>(layout_.begin(p)),
                                       static_cast<std::size_t>(layout_.shard_size(p)));
      };
      scape::const_bitmask_view const bits{mask.subspan(shard * words, words),
                                           layout_.shard_size(p)};
      auto const count = static_cast<std::size_t>(plan.counts[shard]);
      scape::packed_bitmask::scatter<float>(
          context(), bits, values.subspan(static_cast<std::size_t>(plan.offsets[shard]), count),
          own(gradient_));
      std::vector<float> const zeros(count);
      scape::packed_bitmask::scatter<float>(context(), bits, zeros, own(age_));
    }
  }

  [[nodiscard]] scape::host_context context() const { return {scratch_.bytes()}; }

  settings const& s_;
  train_gpt::corpus const& text_;
  sync_run const& run_;
  scape::layout const& layout_;
  comm_type& comm_;
  scape::send_plan dense_, sparse_;
  std::vector<staged_tensor> tensors_;
  model_optimizer optimizer_;
  train_gpt::gpt<float> model_;
  train_gpt::batch batch_;
  scape::host_buffer scratch_;
  std::vector<scape::mask_word> mask_words_;
  scape::lagged_mask_allgather<comm_type> masks_;
  train_gpt::aligned_vector<float> weights_, gradient_, residual_, moment_, age_;
  std::vector<float> values_;
};

}  // namespace

sync_result train_with_sparse_sync(settings const& s, train_gpt::corpus const& text,
                                   sync_run const& run) {
  sync_result result{.run = run};
  auto const layout = make_layout(s);
  scape::run_threads(s.ranks,
                     [&](comm_type& comm) {
                       auto validation = sync_rank(s, text, run, layout, comm).train();
                       if (comm.rank() == 0) result.validation = std::move(validation);
                     },
                     {.deadline = train_gpt::patience});
  return result;
}

}  // namespace basis_rotation
