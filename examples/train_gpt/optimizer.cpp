// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include "cuda_optimizer.hpp"
#include "gpt.hpp"
#include "host_optimizer.hpp"

namespace train_gpt {
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
  return make_host_optimizer(comm, layout, o, run);
}

}  // namespace train_gpt
