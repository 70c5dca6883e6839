// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One rank's optimizer on a device with the memory it needs, under the interface of the host's
//! rig.

#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <scape/context/cuda.hpp>
#include <scape/optim/dense_optimizer.cuh>
#include <scape/optim/sparse_optimizer.cuh>

#include "optimizer_rig.hpp"

namespace scape::testing {

template <class T>
std::span<T> as_span(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

//! A vector's content in device memory of its own.
template <class T>
class device_copy {
 public:
  explicit device_copy(std::vector<T> const& host) : buffer_(host.size() * sizeof(T)) {
    detail::cuda::copy("device_copy", buffer_.bytes().data(), host.data(), buffer_.bytes().size());
    detail::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "device_copy",
                       "cudaStreamSynchronize");
  }
  [[nodiscard]] std::span<T> span() const { return as_span<T>(buffer_.bytes()); }

 private:
  device_buffer buffer_;
};

template <class T>
std::vector<std::remove_const_t<T>> to_host(std::span<T> device) {
  std::vector<std::remove_const_t<T>> result(device.size());
  detail::cuda::copy("to_host", result.data(), device.data(), device.size_bytes());
  return result;
}

//! Scratch memory is filled with rubbish before every step; every step is waited for.
template <class Optimizer>
struct cuda_rig {
  device_buffer storage, scratch;
  pinned_buffer pinned;
  cuda_stream stream;
  cuda_context ctx;
  Optimizer optimizer;
  device_copy<float> weights;

  template <class Comm, class Options, class... More>
  cuda_rig(Comm& comm, layout const& l, Options const& options, host_pool* = nullptr,
           More... statistic)
      : storage(Optimizer::storage_bytes(l, options)),
        scratch(Optimizer::scratch_bytes(l, options)),
        pinned(pinned_bytes(l, options)),
        ctx(stream.get(), scratch.bytes()),
        optimizer(make(comm, l, options, std::move(statistic)...)),
        weights(initial_weights(l.size())) {}

  template <class Gradient>
  step_report step(std::vector<Gradient> const& gradient, step_arguments const& arguments = {}) {
    device_copy<Gradient> const on_device(gradient);
    detail::check_cuda(cudaMemsetAsync(ctx.scratch.data(), 0xcb, ctx.scratch.size(), ctx.stream),
                       "cuda_rig", "cudaMemsetAsync");
    optimizer.step(ctx, weights.span(), std::span<Gradient const>(on_device.span()), arguments);
    return optimizer.report(ctx);
  }

  [[nodiscard]] std::string saved() {
    std::ostringstream out;
    optimizer.save(ctx, out);
    return out.str();
  }
  void load(std::string const& text) {
    std::istringstream in(text);
    optimizer.load(ctx, in);
  }

  [[nodiscard]] std::int64_t steps() { return optimizer.steps(ctx); }
  [[nodiscard]] std::vector<float> current_weights() {
    optimizer.synchronize(ctx);
    return to_host(weights.span());
  }
  void set_weights(std::vector<float> const& values) {
    detail::cuda::copy("cuda_rig", weight_span().data(), values.data(), values.size() * 4);
  }
  [[nodiscard]] std::span<float> weight_span() { return weights.span(); }
  [[nodiscard]] std::vector<float> first_moment() {
    optimizer.synchronize(ctx);
    return to_host(first_moment_of(optimizer));
  }
  [[nodiscard]] std::int64_t skipped_steps() { return optimizer.skipped_steps(ctx); }

  [[nodiscard]] optimizer_state state() {
    optimizer_state result;
    result.steps = optimizer.steps(ctx);
    auto const& moments = optimizer.moments();
    result.weights = to_host(weights.span());
    result.residual.resize(weights.span().size());
    optimizer.copy_residual(ctx, result.residual);
    result.m = to_host(moments.m);
    result.v = to_host(moments.v);
    result.age = to_host(moments.age);
    result.mask = to_host(optimizer.last_mask());
    return result;
  }

 private:
  template <class Options>
  static std::size_t pinned_bytes(layout const& l, Options const& options) {
    if constexpr (requires { Optimizer::pinned_bytes(l, options); }) {
      return Optimizer::pinned_bytes(l, options);
    } else {
      return 0;
    }
  }
  template <class Comm, class Options, class... More>
  Optimizer make(Comm& comm, layout const& l, Options const& options, More... statistic) {
    if constexpr (requires { Optimizer::pinned_bytes(l, options); }) {
      return Optimizer(comm, l, options, storage.bytes(), pinned.bytes(), std::move(statistic)...);
    } else {
      return Optimizer(comm, l, options, storage.bytes());
    }
  }
};

template <class Optimizer>
struct rig_choice<Optimizer, true> {
  using type = cuda_rig<Optimizer>;
};

}  // namespace scape::testing
