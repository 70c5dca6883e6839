// SPDX-License-Identifier: Apache-2.0
#include "paci/gpt_stage.hpp"

#include <algorithm>
#include <cstddef>

namespace paci {

train_gpt::gpt_cut cut_of(train_gpt::gpt_shape const& shape, int stages, int stage) {
  // Layer 0 is the embedding, the last one the head.
  auto const layers = shape.layers + 2;
  auto const first = layers * stage / stages;
  auto const last = layers * (stage + 1) / stages;
  return {.embedding = first == 0,
          .first = std::clamp<std::int64_t>(first - 1, 0, shape.layers),
          .last = std::clamp<std::int64_t>(last - 1, 0, shape.layers),
          .head = last == layers};
}

scape::layout layout_of(train_gpt::gpt_shape const& shape, train_gpt::gpt_cut const& cut,
                        int replicas) {
  auto const range = train_gpt::parameters_of(shape, cut);
  std::vector<scape::parameter_span> spans;
  for (auto const& t : train_gpt::parameter_tensors(shape)) {
    if (t.offset < range.begin || t.offset >= range.end) continue;
    spans.push_back(
        {.name = t.name,
         .offset = t.offset - range.begin,
         .length = t.length,
         .policy = t.one_dimensional ? scape::span_policy::always : scape::span_policy::sparse});
  }
  return scape::layout(range.end - range.begin, replicas, std::move(spans));
}

gpt_stage::gpt_stage(gpt_task const& task, train_gpt::gpt_cut const& cut, std::int64_t slots)
    : task_(task),
      part_(task.shape, cut, task.batch, slots),
      batches_(static_cast<std::size_t>(slots), {task.batch, task.shape.context}) {}

double gpt_stage::forward(pass const& p, std::span<float const> in, std::span<float> out) {
  auto& batch = batches_[p.slot];
  train_gpt::sample(batch, task_.text.training(), task_.seed, p.micro_batch, task_.replica);
  return static_cast<double>(
      part_.forward(p.slot, p.weights, batch.inputs, batch.targets, in, out));
}

void gpt_stage::backward(pass const& p, std::span<float const> out_gradient,
                         std::span<float> in_gradient, std::span<float> gradient) {
  auto const& batch = batches_[p.slot];
  part_.backward(p.slot, p.weights, batch.inputs, batch.targets, out_gradient, in_gradient,
                 gradient);
}

}  // namespace paci
