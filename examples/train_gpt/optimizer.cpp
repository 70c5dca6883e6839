// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include <scape/context/host.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/sparse_optimizer.hpp>
#include <scape/workspace.hpp>

#include "cuda_optimizer.hpp"
#include "gpt.hpp"
#include "optimizer_types.hpp"

namespace train_gpt {
namespace {

template <class Optimizer, class Options>
class host_optimizer final : public rank_optimizer {
 public:
  host_optimizer(scape::thread_communicator& comm, scape::layout const& layout,
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

std::unique_ptr<rank_optimizer> make_optimizer(scape::thread_communicator& comm,
                                               scape::layout const& layout, options const& o,
                                               run_spec const& run) {
  if (o.device == device_kind::cuda) return make_cuda_optimizer(comm, layout, o, run);
  return make_for<scape::thread_communicator, host_optimizer>(o, run, comm, layout);
}

}  // namespace train_gpt
