// SPDX-License-Identifier: Apache-2.0
// What only an optimizer on streams has: bits equal to the host's, files that both can read,
// graphs, steps that never touch the host, the offloaded residual, 16-bit weights, peers that fail.
#include <doctest/doctest.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/optim/sparse_optimizer.cuh>

#include "nccl/rank_threads.hpp"
#include "support/counting_communicator.hpp"
#include "support/cuda_rig.cuh"
#include "support/nccl_backend.cuh"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/runtime_calls.hpp"
#include "support/thread_backend.hpp"

namespace {

using namespace scape::testing;
using namespace scape;
using namespace std::chrono_literals;

template <class Rule, class Wire = float>
using host_rig = sparse_rig_on<thread_backend, Rule, Wire>;
template <class Rule, class Wire = float>
using device_rig = sparse_rig_on<nccl_backend, Rule, Wire>;

std::vector<parameter_span> model() {
  return {{.name = "w", .offset = 0, .length = 700, .lr_scale = 2},
          {.name = "b", .offset = 700, .length = 33, .policy = span_policy::always},
          {.name = "f", .offset = 733, .length = 50, .policy = span_policy::frozen},
          {.name = "o", .offset = 783, .length = 400, .density = 0.3, .decay_scale = 0}};
}

sparse_optimizer_options options_of(int lag) {
  auto o = sparse_optimizer_options::staleness_aware(0.1);
  o.lag = lag;
  o.weight_decay = 0.1F;
  o.clip_norm = 1;
  return o;
}

//! States of every rank after each of `steps` steps of arbitrary gradients; those of the steps
//! `bad` are not finite.
template <class Backend, class Rule, class Wire>
std::vector<std::vector<optimizer_state>> states(layout const& l, sparse_optimizer_options const& o,
                                                 int steps, std::set<int> const& bad = {2, 6}) {
  std::vector<std::vector<optimizer_state>> result(at(l.shards()));
  Backend::ranks(l.shards(), [&](auto& comm) {
    sparse_rig_on<Backend, Rule, Wire> r(comm, l, o);
    for (int t = 0; t < steps; ++t) {
      auto gradient = normal_gradient(5, comm.rank(), t, l.size());
      if (bad.contains(t)) gradient[3] = std::numeric_limits<float>::infinity();
      r.step(gradient, {.lr = 0.01F * static_cast<float>(1 + t)});
      result[at(comm.rank())].push_back(r.state());
    }
  });
  return result;
}

template <class Rule, class Wire = float>
void equals_host(layout const& l, sparse_optimizer_options const& o) {
  if (!nccl_backend::has_ranks(l.shards())) return;
  CHECK(states<nccl_backend, Rule, Wire>(l, o, 9) == states<thread_backend, Rule, Wire>(l, o, 9));
}

}  // namespace

// A sum of two numbers has no order, so the bits agree on any hardware. The one difference is in
// the sum of squares, whose order is the device's: no clipping.
TEST_CASE("two ranks: arbitrary gradients give the host's bits") {
  for (int const lag : {0, 1, 2}) {
    auto o = options_of(lag);
    o.clip_norm = 0;
    equals_host<adams>({1183, 2, model(), layout_options{.alignment = 1}}, o);
    o.statistic = statistic_kind::literal;
    o.unmasked = unmasked_moment::decay;
    o.density_ramp_steps = 4;
    equals_host<adamw>({1183, 2, model(), layout_options{.alignment = 1}}, o);
    equals_host<adamw, bfloat16>({1000, 1}, o);
    equals_host<adams, float16>({1000, 2, layout_options{.boundaries = {0, 129, 1000}}}, o);
  }
}

TEST_CASE("skipped steps among those that make their own masks leave no trace") {
  for (int const lag : {1, 2, 3}) {
    if (!nccl_backend::has_ranks(2)) return;
    layout const l(300, 2, layout_options{.alignment = 1});
    auto o = options_of(lag);
    o.clip_norm = 0;
    o.first = first_mask::statistic;
    for (std::set<int> const& bad : {std::set{0}, std::set{0, 1, 3}, std::set{2, 4}}) {
      CHECK(states<nccl_backend, adams, float>(l, o, 7, bad) ==
            states<thread_backend, adams, float>(l, o, 7, bad));
    }
  }
}

TEST_CASE("a residual in host memory gives the bits of one on the device") {
  for (int const ranks : {1, 2, 3, 4}) {
    if (!nccl_backend::has_ranks(ranks)) continue;
    for (std::int64_t const chunk : {1, 64, 100, 5000}) {
      layout const l(700, ranks, layout_options{.alignment = 1});
      auto o = options_of(ranks % 3);
      if (chunk == 1 && ranks != 2) continue;
      auto const on_device = states<nccl_backend, adams, bfloat16>(l, o, 8);
      o.offload_residual = true;
      o.offload_chunk = chunk;
      CHECK(states<nccl_backend, adams, bfloat16>(l, o, 8) == on_device);
      using optimizer = sparse_optimizer<adams, nccl_communicator, bfloat16>;
      auto const on_device_bytes = optimizer::storage_bytes(l, options_of(ranks % 3));
      auto const kept =
          static_cast<std::size_t>(l.max_shard_size() + 2 * std::min<std::int64_t>(chunk, 700)) * 4;
      CHECK(optimizer::storage_bytes(l, o) <= on_device_bytes - 700 * 4 + kept + 4 * 256);
    }
  }
}

TEST_CASE("a chunk buffer is free once its copy out is done") {
  cuda_stream const stream;
  cuda_context const ctx(stream.get(), {});
  constexpr std::int64_t n = 4096, chunk = 512;
  pinned_buffer const host(n * sizeof(float));
  device_buffer const first(chunk * sizeof(float)), second(chunk * sizeof(float));
  auto const values = as_span<float>(host.bytes());
  for (std::int64_t j = 0; j < n; ++j) values[at(j)] = static_cast<float>(j);
  detail::cuda::residual_offload offload(as_span<float>(first.bytes()),
                                         as_span<float>(second.bytes()));
  for (int round = 0; round < 3; ++round) {
    offload.stream("test", ctx, {{0, n}, values.data()}, [](detail::cuda::residual_part const&) {});
    offload.end("test", ctx);
    for (auto const* buffer : {&first, &second}) {
      cudaMemsetAsync(buffer->bytes().data(), 0xff, chunk * sizeof(float), stream.get());
    }
  }
  stream.synchronize();
  for (std::int64_t j = 0; j < n; ++j) CHECK(values[at(j)] == static_cast<float>(j));
}

TEST_CASE("a file of one backend continues on the other, with the same bits") {
  if (!nccl_backend::has_ranks(2)) return;
  for (int const lag : {0, 1, 3}) {
    layout const l(1183, 2, model(), layout_options{.alignment = 1});
    auto o = options_of(lag);
    o.clip_norm = 0;
    std::vector<std::string> files(2), host_files(2);
    std::vector<optimizer_state> ends(2), host_ends(2);
    std::vector<std::vector<float>> weights(2);
    auto const gradient = [](int rank, int t) {
      auto g = normal_gradient(8, rank, t, 1183);
      if (t == 4 || t == 6) g[0] = std::numeric_limits<float>::quiet_NaN();
      return g;
    };
    nccl_backend::ranks(2, [&](auto& comm) {
      device_rig<adamw> r(comm, l, o);
      for (int t = 0; t < 7; ++t) r.step(gradient(comm.rank(), t));
      files[at(comm.rank())] = r.saved();
      weights[at(comm.rank())] = r.state().weights;
      for (int t = 7; t < 10; ++t) r.step(gradient(comm.rank(), t));
      ends[at(comm.rank())] = r.state();
    });
    run_threads(2, [&](thread_communicator& comm) {
      host_rig<adamw> r(comm, l, o);
      for (int t = 0; t < 7; ++t) r.step(gradient(comm.rank(), t));
      host_files[at(comm.rank())] = r.saved();
    });
    run_threads(2, [&](thread_communicator& comm) {
      host_rig<adamw> r(comm, l, o);
      r.load(files[at(comm.rank())]);
      r.weights = weights[at(comm.rank())];
      for (int t = 7; t < 10; ++t) r.step(gradient(comm.rank(), t));
      host_ends[at(comm.rank())] = r.state();
    });
    CHECK(files == host_files);
    CHECK(host_ends == ends);
    std::vector<optimizer_state> again(2);
    nccl_backend::ranks(2, [&](auto& comm) {
      device_rig<adamw> r(comm, l, o);
      r.load(host_files[at(comm.rank())]);
      detail::cuda::copy("test", r.weights.span().data(), weights[at(comm.rank())].data(),
                         1183 * 4);
      for (int t = 7; t < 10; ++t) r.step(gradient(comm.rank(), t));
      again[at(comm.rank())] = r.state();
      CHECK(raises<checkpoint_error>([&] { r.load("nonsense"); }, {"load"}));
    });
    CHECK(again == ends);
  }
}

TEST_CASE("captured steps replay with the bits of enqueued ones") {
  for (int const ranks : {1, 2, 3}) {
    for (int const lag : {0, 1, 2}) {
      for (bool const offload : {false, true}) {
        layout const l(500, ranks, layout_options{.alignment = 1});
        auto o = options_of(lag);
        o.first = offload ? first_mask::statistic : first_mask::dense;
        o.offload_residual = offload;
        o.offload_chunk = 100;
        nccl_backend::ranks(ranks, [&](auto& comm) {
          device_rig<adams> eager(comm, l, o), graphs(comm, l, o);
          device_buffer const memory(500 * sizeof(float));
          auto const gradient = as_span<float>(memory.bytes());
          auto const step_of = [](int t) {
            return step_arguments{.lr = 0.01F * static_cast<float>(t + 1)};
          };
          auto const give = [&](int t) {
            auto g = normal_gradient(6, comm.rank(), t, 500);
            if (t == 9) g[0] = std::numeric_limits<float>::infinity();
            detail::cuda::copy("test", gradient.data(), g.data(), gradient.size_bytes());
            return g;
          };
          std::span<float const> const g = gradient;
          auto& opt = graphs.optimizer;
          auto& ctx = graphs.ctx;
          cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal);
          CHECK(rejects([&] { opt.step(ctx, graphs.weights.span(), g); }, {"captured", "settled"}));
          cudaGraph_t none = nullptr;
          cudaStreamEndCapture(ctx.stream, &none);
          if (none != nullptr) cudaGraphDestroy(none);
          int t = 0;
          for (; !opt.settled() || t < 1; ++t) {
            eager.step(give(t), step_of(t));
            opt.step(ctx, graphs.weights.span(), g, step_of(t));
            opt.synchronize(ctx);
          }
          std::vector<cudaGraphExec_t> captured(at(opt.slots()));
          for (std::int64_t s = 0; s < opt.slots(); ++s) {
            auto const slot = opt.slot();
            cudaGraph_t graph = nullptr;
            detail::check_cuda(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal),
                               "test", "begin");
            opt.step(ctx, graphs.weights.span(), g);
            detail::check_cuda(cudaStreamEndCapture(ctx.stream, &graph), "test", "end");
            detail::check_cuda(cudaGraphInstantiate(&captured[at(slot)], graph, 0), "test",
                               "instantiate");
            cudaGraphDestroy(graph);
          }
          for (int const last = t + 8; t < last; ++t) {
            eager.step(give(t), step_of(t));
            opt.set_arguments(ctx, step_of(t));
            detail::check_cuda(cudaGraphLaunch(captured[at(opt.slot())], ctx.stream), "test",
                               "launch");
            opt.replayed();
            auto a = eager.state(), b = graphs.state();
            a.mask.clear();
            b.mask.clear();
            CHECK(a == b);
          }
          eager.step(give(t), step_of(t));  // and on without the graphs
          opt.step(ctx, graphs.weights.span(), g, step_of(t));
          CHECK(eager.state() == graphs.state());
          for (auto const graph : captured) cudaGraphExecDestroy(graph);
        });
      }
    }
  }
}

TEST_CASE("nothing that waits is allowed in a capture, and nothing is changed by it") {
  layout const l(300, 1);
  nccl_backend::ranks(1, [&](auto& comm) {
    device_rig<adams> r(comm, l, options_of(1));
    dense_rig_on<nccl_backend, adams> dense(comm, l, options_of(1));
    for (int t = 0; t < 3; ++t) r.step(normal_gradient(6, 0, t, 300));
    dense.step(normal_gradient(6, 0, 0, 300));
    auto const before = r.state();
    auto const file = r.saved(), dense_file = dense.saved();
    std::vector<float> residual(300);
    cudaGraph_t graph = nullptr;
    for (auto const* ctx : {&r.ctx, &dense.ctx}) {
      auto& opt = r.optimizer;
      detail::check_cuda(cudaStreamBeginCapture(ctx->stream, cudaStreamCaptureModeThreadLocal),
                         "test", "begin");
      CHECK(rejects([&] { comm.synchronize(*ctx); }, {"synchronize", "captured"}));
      if (ctx == &r.ctx) {
        CHECK(rejects([&] { opt.synchronize(*ctx); }, {"sparse_optimizer", "captured"}));
        CHECK(rejects([&] { static_cast<void>(opt.report(*ctx)); }, {"captured"}));
        CHECK(rejects([&] { opt.copy_residual(*ctx, residual); }, {"captured"}));
        CHECK(rejects([&] { static_cast<void>(r.saved()); }, {"captured"}));
        CHECK(rejects([&] { r.load(file); }, {"sparse_optimizer::load", "captured"}));
      } else {
        CHECK(rejects([&] { static_cast<void>(dense.saved()); }, {"dense_optimizer", "captured"}));
        CHECK(rejects([&] { dense.load(dense_file); }, {"dense_optimizer::load", "captured"}));
      }
      CHECK(cudaStreamEndCapture(ctx->stream, &graph) == cudaSuccess);
      cudaGraphDestroy(graph);
    }
    CHECK(r.state() == before);
    CHECK(dense.saved() == dense_file);
    r.step(normal_gradient(6, 0, 3, 300));
    CHECK(r.steps() == 4);
  });
}

namespace {

//! Does in a reduce-scatter what invalidates a capture.
struct spoiling_communicator : counting_communicator<nccl_communicator> {
  using counting_communicator::counting_communicator;
  bool spoils = false;

  template <class T, class Op = std::plus<>>
  nccl_handle reduce_scatter(cuda_context const& ctx, std::type_identity_t<std::span<T const>> send,
                             std::span<T> recv, std::span<std::int64_t const> counts, Op op = {}) {
    if (spoils) cudaStreamSynchronize(ctx.stream);
    return counting_communicator::reduce_scatter(ctx, send, recv, counts, op);
  }
};

}  // namespace

TEST_CASE("failure: a capture that was invalidated leaves the optimizer as it was") {
  layout const l(300, 1);
  for (int const lag : {0, 1, 2}) {
    for (bool const offload : {false, true}) {
      nccl_backend::ranks(1, [&](auto& inner) {
        spoiling_communicator comm(inner);
        auto o = options_of(lag);
        o.statistic = statistic_kind::literal;  // its masks are on their way in the reduce-scatter
        o.offload_residual = offload;
        o.offload_chunk = 70;
        cuda_rig<sparse_optimizer<adams, spoiling_communicator>> r(comm, l, o);
        device_rig<adams> undisturbed(inner, l, o);
        device_copy<float> const gradient(normal_gradient(6, 0, 0, 300));
        std::span<float const> const g = gradient.span();
        for (int t = 0; t < 4; ++t) {
          r.step(normal_gradient(6, 0, t, 300));
          undisturbed.step(normal_gradient(6, 0, t, 300));
        }
        auto const capture = [&](bool before, std::initializer_list<std::string_view> text) {
          cudaStreamBeginCapture(r.ctx.stream, cudaStreamCaptureModeThreadLocal);
          if (before) cudaStreamSynchronize(r.ctx.stream);
          comm.spoils = !before;
          CHECK(raises<error>([&] { r.optimizer.step(r.ctx, r.weights.span(), g); }, text));
          comm.spoils = false;
          cudaGraph_t graph = nullptr;
          CHECK(cudaStreamEndCapture(r.ctx.stream, &graph) == cudaErrorStreamCaptureInvalidated);
        };
        capture(true, {"sparse_optimizer::step", "invalidated"});
        capture(false, {"nvalidated"});
        CHECK(r.state() == undisturbed.state());
        for (int t = 4; t < 8; ++t) {
          r.step(normal_gradient(6, 0, t, 300));
          undisturbed.step(normal_gradient(6, 0, t, 300));
          CHECK(r.state() == undisturbed.state());
        }
        CHECK(r.saved() == undisturbed.saved());
      });
    }
  }
}

TEST_CASE("failure: what earlier calls left for cudaGetLastError does not matter") {
  layout const l(300, 1);
  auto const o = options_of(1);
  nccl_backend::ranks(1, [&](auto& comm) {
    using optimizer = sparse_optimizer<adams, nccl_communicator>;
    device_rig<adams> r(comm, l, o);
    auto const bytes = optimizer::scratch_bytes(l, o);
    auto const stale = [] {
      void* none = nullptr;
      return cudaMalloc(&none, std::size_t{1} << 60) == cudaErrorMemoryAllocation;
    };
    CHECK(stale());
    CHECK(optimizer::scratch_bytes(l, o) == bytes);
    CHECK(stale());
    r.step(normal_gradient(6, 0, 0, 300));
    CHECK(r.steps() == 1);
  });
}

TEST_CASE("after the first steps a step neither allocates nor waits nor reads device memory") {
  for (int const lag : {0, 1, 2}) {
    for (bool const offload : {false, true}) {
      layout const l(1183, 2, model(), layout_options{.alignment = 1});
      auto o = options_of(lag);
      o.offload_residual = offload;
      o.offload_chunk = 300;
      nccl_backend::ranks(2, [&](auto& comm) {
        device_rig<adamw, bfloat16> r(comm, l, o);
        dense_rig_on<nccl_backend, adamw> dense(comm, l, o);
        device_copy<float> const gradient(normal_gradient(6, comm.rank(), 0, 1183));
        std::span<float const> const g = gradient.span();
        auto const step = [&] {
          r.optimizer.step(r.ctx, r.weights.span(), g, {.lr = 0.01F});
          dense.optimizer.step(dense.ctx, dense.weights.span(), g, {.lr = 0.01F});
        };
        while (!r.optimizer.settled()) step();
        step();
        step();
        auto const before = calls_of_thread;
        for (int t = 0; t < 5; ++t) step();
        auto const after = calls_of_thread;
        CHECK(after.allocations == before.allocations);
        CHECK(after.waits == before.waits);
        // Offloading moves the residual to the host, as asked: once per chunk and step.
        if (!offload) CHECK(after.reads == before.reads);
        r.optimizer.synchronize(r.ctx);
        dense.optimizer.synchronize(dense.ctx);
        CHECK(calls_of_thread.waits > after.waits);  // the counters count
      });
    }
  }
}

namespace {

template <class Weight>
void check_master() {
  layout const l(900, 2, layout_options{.alignment = 1});
  auto o = options_of(1);
  nccl_backend::ranks(2, [&](auto& comm) {
    auto with_master = o;
    with_master.master_weights = true;
    device_rig<adams> plain(comm, l, o), r(comm, l, with_master);
    std::vector<Weight> start;
    std::vector<float> start_of_plain;
    for (auto const w : initial_weights(900)) {
      start.push_back(Weight(w));
      start_of_plain.push_back(static_cast<float>(start.back()));
    }
    detail::cuda::copy("test", plain.weights.span().data(), start_of_plain.data(), 900 * 4);
    device_copy<Weight> const weights(start);
    for (int t = 0; t < 6; ++t) {
      auto const gradient = normal_gradient(6, comm.rank(), t, 900);
      plain.step(gradient);
      device_copy<float> const on_device(gradient);
      CHECK(r.optimizer.step(r.ctx, weights.span(), std::span<float const>(on_device.span()), {})
                .bytes.parameters == plain.optimizer.report(plain.ctx).bytes.parameters / 2);
      r.optimizer.synchronize(r.ctx);
    }
    // The masters are the weights of the plain run; the model has them rounded.
    auto const master = to_host(r.optimizer.master_weights());
    auto const want = to_host(plain.weights.span());
    auto const model_weights = to_host(weights.span());
    auto const begin = at(l.begin(comm.rank()));
    CHECK(same_bits(master, std::span(want).subspan(begin, master.size())));
    for (std::size_t j = 0; j < 900; ++j) {
      CHECK(static_cast<float>(model_weights[j]) == static_cast<float>(Weight(want[j])));
    }
    CHECK(rejects(
        [&] {
          plain.optimizer.step(plain.ctx, weights.span(),
                               std::span<float const>(plain.weights.span()), {});
        },
        {"master_weights"}));
  });
}

}  // namespace

TEST_CASE("16-bit weights are the rounded masters, and the wire is half as wide") {
  check_master<__nv_bfloat16>();
  check_master<__half>();
  check_master<bfloat16>();
}

TEST_CASE("gradients of CUDA's own 16-bit floats") {
  layout const l(300, 2, layout_options{.alignment = 1});
  auto o = options_of(1);
  nccl_backend::ranks(2, [&](auto& comm) {
    device_rig<adams> wide(comm, l, o);
    sparse_rig_on<nccl_backend, adams, __nv_bfloat16> a(comm, l, o);
    device_rig<adams, bfloat16> b(comm, l, o);
    for (int t = 0; t < 4; ++t) {
      auto const floats = integer_gradient(6, comm.rank(), t, 300);
      std::vector<__half> const halves(floats.begin(), floats.end());
      std::vector<__nv_bfloat16> const bfloats(floats.begin(), floats.end());
      wide.step(halves);
      a.step(bfloats);
      b.step(floats);
    }
    CHECK(a.state() == b.state());
  });
}

TEST_CASE("wrong arguments are refused before anything is enqueued") {
  layout const l(300, 1);
  nccl_backend::ranks(1, [&](auto& comm) {
    using optimizer = sparse_optimizer<adams, nccl_communicator>;
    using dense = dense_optimizer<adams, nccl_communicator>;
    device_rig<adams> r(comm, l, options_of(1));
    device_copy<float> const gradient(normal_gradient(6, 0, 0, 300));
    std::span<float const> const g = gradient.span();
    auto const w = r.weights.span();
    r.optimizer.step(r.ctx, w, g, {});
    auto const before = r.state();
    auto& opt = r.optimizer;
    CHECK(rejects([&] { opt.step(r.ctx, w.first(299), g, {}); }, {"weights", "299", "300"}));
    CHECK(rejects([&] { opt.step(r.ctx, w, g.first(1), {}); }, {"gradient", "1", "300"}));
    CHECK(rejects([&] { opt.step(r.ctx, w, g, {.lr = std::nanf("")}); }, {"learning rate"}));
    cuda_context const tight(r.ctx.stream, r.ctx.scratch.first(100));
    CHECK(rejects([&] { opt.step(tight, w, g, {}); }, {"scratch", "100"}));
    if (nccl_backend::has_ranks(2)) {
      cudaSetDevice(1);
      CHECK(rejects([&] { opt.step(r.ctx, w, g, {}); }, {"current device is 1, expected 0"}));
      CHECK(rejects([&] { optimizer(comm, l, options_of(1), r.storage.bytes()); },
                    {"sparse_optimizer", "current device is 1, expected 0"}));
      CHECK(rejects([&] { dense(comm, l, options_of(1), r.storage.bytes()); },
                    {"dense_optimizer", "current device is 1, expected 0"}));
      cudaSetDevice(0);
    }
    CHECK(r.state() == before);
    CHECK(rejects([&] { optimizer(comm, l, options_of(1), r.storage.bytes().first(1000)); },
                  {"1000"}));
  });
}

TEST_CASE("failure: after one, the first load restores, also on a new communicator") {
  if (!nccl_backend::has_ranks(2)) return;
  layout const l(600, 2, layout_options{.alignment = 1});
  auto o = options_of(2);
  o.skip_nonfinite = false;  // so that masks are in flight when it shows
  auto const first = nccl_unique_id(), second = nccl_unique_id();
  std::barrier enqueued(2);
  on_devices(2, [&](int rank) {
    nccl_communicator comm(first, rank, 2, {.deadline = 2s});
    device_rig<adams> r(comm, l, o);
    for (int t = 0; t < 5; ++t) r.step(normal_gradient(6, rank, t, 600));
    auto const file = r.saved();
    auto const weights = r.current_weights();
    auto const step = [&] { r.step(normal_gradient(6, rank, 5, 600)); };
    step();
    auto const want = r.state();
    device_copy<float> const gradient(normal_gradient(6, rank, 6, 600));
    r.optimizer.step(r.ctx, r.weights.span(), std::span<float const>(gradient.span()), {});
    enqueued.arrive_and_wait();
    comm.abort("as the test wants it");
    CHECK_THROWS_AS(step(), error);
    CHECK_NOTHROW(r.load(file));
    r.set_weights(weights);
    CHECK_THROWS_AS(step(), error);
    comm = nccl_communicator(second, rank, 2, {.deadline = 20s});
    CHECK(raises<checkpoint_error>([&] { r.load("nonsense"); }, {"load"}));
    CHECK_NOTHROW(r.load(file));
    r.set_weights(weights);
    step();
    CHECK(r.state() == want);
  });
}

TEST_CASE("failure: a rank that leaves while the first steps wait for its verdict") {
  if (!nccl_backend::has_ranks(2)) return;
  layout const l(600, 2, layout_options{.alignment = 1});
  auto o = options_of(1);
  o.density_ramp_steps = 10;
  nccl_backend::ranks(
      2,
      [&](auto& comm) {
        device_rig<adams> r(comm, l, o);
        for (int t = 0; t < 2; ++t) r.step(integer_gradient(6, comm.rank(), t, 600));
        auto const before = r.state();
        if (comm.rank() == 1) {
          comm.abort("as the test wants it");
          return;
        }
        device_copy<float> const gradient(integer_gradient(6, 0, 2, 600));
        auto const step = [&] {
          r.optimizer.step(r.ctx, r.weights.span(), std::span<float const>(gradient.span()), {});
          r.optimizer.synchronize(r.ctx);
        };
        CHECK_THROWS_AS(step(), error);
        // The agreement did not take place, so the step was skipped.
        std::vector<float> residual(600);
        r.optimizer.copy_residual(r.ctx, residual);
        CHECK(same_bits(residual, before.residual));
        CHECK_THROWS_AS(step(), error);
      },
      2s);
}

TEST_CASE("failure: a rank that leaves ends the step of the others, and nothing is lost") {
  for (bool const offload : {false, true}) {
    for (int const leaver : {0, 2}) {  // in the second case a rank gets no values
      if (!nccl_backend::has_ranks(3)) return;
      auto const equal = layout_options{.alignment = 1};
      auto const empty = layout_options{.boundaries = {0, 400, 400, 600}};
      layout const l(600, 3, leaver == 0 ? equal : empty);
      auto o = options_of(1);
      o.clip_norm = 0;
      o.skip_nonfinite = false;
      o.offload_residual = offload;
      o.offload_chunk = 100;
      nccl_backend::ranks(
          3,
          [&](auto& comm) {
            device_rig<adams> r(comm, l, o);
            for (int t = 0; t < 3; ++t) r.step(integer_gradient(6, comm.rank(), t, 600));
            auto const before = r.state();
            if (comm.rank() == leaver) {
              comm.abort("as the test wants it");
              return;
            }
            auto const gradient = integer_gradient(6, comm.rank(), 3, 600);
            device_copy<float> const on_device(gradient);
            auto const start = std::chrono::steady_clock::now();
            CHECK_THROWS_AS(
                [&] {
                  r.optimizer.step(r.ctx, r.weights.span(),
                                   std::span<float const>(on_device.span()), {});
                  r.optimizer.synchronize(r.ctx);
                }(),
                error);
            CHECK(std::chrono::steady_clock::now() - start < 20s);
            // Nothing is lost: the residual has what it had and this gradient's part of it.
            std::vector<float> residual(600);
            r.optimizer.copy_residual(r.ctx, residual);
            std::int64_t wrong = 0;
            auto const coefficient = static_cast<float>(1 - double{o.beta1});
            for (std::size_t j = 0; j < 600; ++j) {
              auto const want = detail::fmadd(coefficient, gradient[j], before.residual[j]);
              wrong += residual[j] != want ? 1 : 0;
            }
            CHECK(wrong == 0);
            CHECK(raises<argument_error>([&] { static_cast<void>(r.saved()); }, {"half-way"}));
          },
          2s);
    }
  }
}
