// SPDX-License-Identifier: Apache-2.0
#include "cuda_optimizer.hpp"

#include <cuda_runtime.h>

#include <scape/comm/nccl.hpp>
#include <scape/context/cuda.hpp>
#include <scape/context/host.hpp>
#include <scape/optim/dense_optimizer.cuh>
#include <scape/optim/sparse_optimizer.cuh>
#include <scape/workspace.hpp>
#include <span>

#include "optimizer_types.hpp"

namespace train_gpt {
namespace {

void check(cudaError_t code, char const* what) {
  if (code != cudaSuccess) throw scape::cuda_error("train_gpt", code, what);
}

// Makes device number `rank` the thread's own, and a rank of an NCCL communicator of it.
scape::nccl_communicator join(scape::thread_communicator& comm) {
  check(cudaSetDevice(comm.rank()), "cudaSetDevice");
  ncclUniqueId id = {};
  if (comm.rank() == 0) id = scape::nccl_unique_id();
  scape::host_context const host;
  comm.broadcast(host, std::span(&id, 1), 0).wait(host);
  return scape::nccl_communicator(id, comm.rank(), comm.size());
}

template <class Optimizer, class Options>
class cuda_optimizer final : public rank_optimizer {
 public:
  cuda_optimizer(scape::thread_communicator& comm, scape::layout const& layout,
                 Options const& options)
      : comm_(join(comm)),
        storage_(Optimizer::storage_bytes(layout, options)),
        scratch_(Optimizer::scratch_bytes(layout, options)),
        model_(scape::workspace_size().add<float>(layout.size()).add<float>(layout.size()).bytes()),
        context_(stream_.get(), scratch_.bytes()),
        optimizer_(comm_, layout, options, storage_.bytes()) {
    scape::carver memory(model_.bytes(), "train_gpt");
    weights_ = memory.take<float>(layout.size());
    gradient_ = memory.take<float>(layout.size());
  }

  scape::step_report const& step(std::span<float> weights, std::span<float const> gradient,
                                 double lr) override {
    if (!has_weights_) copy(weights_, weights);
    has_weights_ = true;
    copy(gradient_, gradient);
    optimizer_.step(context_, weights_, std::span<float const>(gradient_),
                    {.lr = static_cast<float>(lr)});
    report_ = optimizer_.report(context_);  // an error if a peer is gone, never a hang
    copy(weights, weights_);
    return report_;
  }
  void save(std::ostream& out) override { optimizer_.save(context_, out); }
  void load(std::istream& in) override {
    optimizer_.load(context_, in);
    has_weights_ = false;
  }

 private:
  void copy(std::span<float> to, std::span<float const> from) const {
    check(cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDefault,
                          context_.stream),
          "cudaMemcpyAsync");
    stream_.synchronize();
  }

  scape::nccl_communicator comm_;
  scape::device_buffer storage_, scratch_, model_;
  scape::cuda_stream stream_;
  scape::cuda_context context_;
  Optimizer optimizer_;
  std::span<float> weights_, gradient_;
  bool has_weights_ = false;
  scape::step_report report_;
};

}  // namespace

std::optional<int> cuda_devices() {
  int count = 0;
  auto const code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) return 0;
  check(code, "cudaGetDeviceCount");
  return count;
}

std::unique_ptr<rank_optimizer> make_cuda_optimizer(scape::thread_communicator& comm,
                                                    scape::layout const& layout, options const& o,
                                                    run_spec const& run) {
  return make_for<scape::nccl_communicator, cuda_optimizer>(o, run, comm, layout);
}

}  // namespace train_gpt
