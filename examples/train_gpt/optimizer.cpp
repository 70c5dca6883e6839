// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include <scape/context/host.hpp>
#include <scape/float16.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>
#include <scape/workspace.hpp>

namespace train_gpt {
namespace {

template <class Optimizer, class Options>
class rank_optimizer_of final : public rank_optimizer {
 public:
  rank_optimizer_of(scape::thread_communicator& comm, scape::layout const& layout,
                    Options const& options)
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

using comm = scape::thread_communicator;

template <class Rule, class Wire>
std::unique_ptr<rank_optimizer> make_sparse(comm& c, scape::layout const& layout,
                                            scape::sparse_optimizer_options const& o) {
  using optimizer = scape::sparse_optimizer<Rule, comm, Wire>;
  return std::make_unique<rank_optimizer_of<optimizer, scape::sparse_optimizer_options>>(c, layout,
                                                                                         o);
}

template <class Rule>
std::unique_ptr<rank_optimizer> make(comm& c, scape::layout const& layout, options const& o,
                                     run_spec const& run) {
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
  if (!run.sparse) {
    using optimizer = scape::dense_optimizer<Rule, comm>;
    return std::make_unique<rank_optimizer_of<optimizer, scape::adam_options>>(c, layout, sparse);
  }
  switch (o.wire) {
    case wire_type::bf16:
      return make_sparse<Rule, scape::bfloat16>(c, layout, sparse);
    case wire_type::fp16:
      return make_sparse<Rule, scape::float16>(c, layout, sparse);
    case wire_type::fp32:
      break;
  }
  return make_sparse<Rule, float>(c, layout, sparse);
}

}  // namespace

scape::layout make_layout(options const& o) {
  std::vector<scape::parameter_span> spans;
  for (auto const& t : parameter_tensors(o.shape)) {
    spans.push_back(
        {.name = t.name,
         .offset = t.offset,
         .length = t.length,
         .policy = t.one_dimensional ? scape::span_policy::always : scape::span_policy::sparse});
  }
  return scape::layout(parameter_count(o.shape), o.ranks, std::move(spans));
}

std::unique_ptr<rank_optimizer> make_optimizer(scape::thread_communicator& c,
                                               scape::layout const& layout, options const& o,
                                               run_spec const& run) {
  return run.rule == update_rule::adams ? make<scape::adams>(c, layout, o, run)
                                        : make<scape::adamw>(c, layout, o, run);
}

}  // namespace train_gpt
