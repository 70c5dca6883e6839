// SPDX-License-Identifier: Apache-2.0
// GPUs fit a noisy quadratic together: dense, then with 10 % and with 1 % of all gradients and
// parameters on the wire in each step.
#include <cuda_runtime.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <scape/comm/nccl.hpp>
#include <scape/context/cuda.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/sparse_optimizer.cuh>

#include "command_line.hpp"

namespace {

void check(cudaError_t code, char const* what) {
  if (code != cudaSuccess) throw scape::cuda_error("nccl_multi_gpu", code, what);
}

// What stands for forward and backward pass: the gradient of the mean of (w - 1)^2 / 2, times n,
// with noise of the rank's own.
__global__ void draw_gradient(float const* weights, float* gradient, std::int64_t n,
                              std::uint64_t seed) {
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; j < n; j += stride) {
    auto x = (seed << 40) + static_cast<std::uint64_t>(j);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;  // the finaliser of splitmix64
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    auto const noise = static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-23F - 1.0F;
    gradient[j] = weights[j] - 1.0F + noise;
  }
}

double loss(std::span<float const> weights) {
  std::vector<float> host(weights.size());
  check(cudaMemcpy(host.data(), weights.data(), weights.size_bytes(), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  double sum = 0;
  for (double const w : host) sum += (w - 1) * (w - 1) / 2;
  return sum / static_cast<double>(host.size());
}

struct destroy_graph {
  void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
};
using unique_graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, destroy_graph>;

// What `enqueue` puts on the stream, to be launched at will. Nothing runs yet.
template <class Enqueue>
unique_graph capture(cudaStream_t stream, Enqueue const& enqueue) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  auto const code = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(code, "cudaGraphInstantiate");
  return unique_graph(executable);
}

// Waits for the other ranks of this process. To allocate or free memory may take until all devices
// are idle, and one that runs a collective is not before all ranks have joined it: hence nobody
// starts before everybody has done the former.
using meeting = std::function<void()>;

// One training run; all ranks call it. Rank 0 prints its line of the table.
void train(scape::nccl_communicator& comm, settings const& o, meeting const& meet, char const* name,
           double density) {
  using optimizer = scape::sparse_optimizer<scape::adams, scape::nccl_communicator>;
  auto const layout = scape::layout(o.n, comm.size());
  auto options = scape::sparse_optimizer_options::staleness_aware(density);
  options.offload_residual = o.offload;

  scape::device_buffer const storage(optimizer::storage_bytes(layout, options));
  scape::pinned_buffer const pinned(optimizer::pinned_bytes(layout, options));
  scape::device_buffer const scratch(optimizer::scratch_bytes(layout, options));
  scape::device_buffer const model(scape::workspace_size().add<float>(o.n).add<float>(o.n).bytes());
  scape::carver memory(model.bytes(), "nccl_multi_gpu");
  auto const weights = memory.take<float>(o.n);
  auto const gradient = memory.take<float>(o.n);

  scape::cuda_stream const stream;
  scape::cuda_context const ctx(stream.get(), scratch.bytes());
  optimizer opt(comm, layout, options, storage.bytes(), pinned.bytes());
  auto const enqueue_step = [&] { opt.step(ctx, weights, std::span<float const>(gradient)); };
  std::vector<unique_graph> graphs;
  meet();

  if (comm.rank() == 0) std::printf("%-6s", name);
  for (std::int64_t step = 0; step < o.steps; ++step) {
    auto const seed = static_cast<std::uint64_t>(step * comm.size() + comm.rank());
    draw_gradient<<<512, 256, 0, ctx.stream>>>(weights.data(), gradient.data(), o.n, seed);
    check(cudaGetLastError(), "draw_gradient");
    auto const left = 1.0F - static_cast<float>(step) / static_cast<float>(o.steps);
    opt.set_arguments(ctx, {.lr = 1e-2F * left});

    // Steps that send equally many values can be captured, after one that was not. They take turns
    // in the memory of the masks, so there is a graph for each turn.
    if (o.graph && graphs.empty() && opt.settled()) {
      opt.synchronize(ctx);
      graphs.resize(static_cast<std::size_t>(opt.slots()));
      for (std::size_t i = 0; i < graphs.size(); ++i) {
        auto& graph = graphs[static_cast<std::size_t>(opt.slot())];
        graph = capture(ctx.stream, enqueue_step);
      }
      meet();
    }
    if (graphs.empty()) {
      enqueue_step();
    } else {
      auto const& graph = graphs[static_cast<std::size_t>(opt.slot())];
      check(cudaGraphLaunch(graph.get(), ctx.stream), "cudaGraphLaunch");
      opt.replayed();
    }

    if (5 * (step + 1) / o.steps != 5 * step / o.steps) {
      opt.synchronize(ctx);  // an error if a peer is gone, never a hang
      if (comm.rank() == 0) std::printf(" %9.6f", loss(weights));
    }
  }
  auto const bytes = opt.report(ctx).bytes.total();
  auto const dense =
      2.0 * sizeof(float) * static_cast<double>(o.n - layout.shard_size(comm.rank()));
  if (comm.rank() != 0) return;
  std::printf(" %11lld", static_cast<long long>(bytes));
  if (dense > 0) std::printf("  %5.1f %%", 100 * static_cast<double>(bytes) / dense);
  std::printf("\n");
  std::fflush(stdout);
}

int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

// Everything one rank does. All ranks have the same `id`.
void run_rank(settings const& o, ncclUniqueId const& id, int rank, int size, meeting const& meet) {
  check(cudaSetDevice(rank % device_count()), "cudaSetDevice");
  scape::nccl_communicator comm(id, rank, size);
  if (rank == 0) {
    if (!o.id_file.empty()) std::filesystem::remove(o.id_file);  // all have read it
    std::printf("%d GPU%s, n %lld; the loss after some of the steps; bytes received per step\n%-6s",
                size, size == 1 ? "" : "s", static_cast<long long>(o.n), "step");
    for (int i = 1; i <= 5; ++i) {
      std::printf(" %9lld", static_cast<long long>((i * o.steps + 4) / 5));
    }
    std::printf(" %11s  of dense\n", "bytes");
  }
  train(comm, o, meet, "dense", 1);  // the same bits as dense_optimizer
  train(comm, o, meet, "90 %", 0.1);
  train(comm, o, meet, "99 %", 0.01);
}

int fail(std::exception const& e, int code) {
  std::fprintf(stderr, "nccl_multi_gpu: %s\n", e.what());
  return code;
}

// Returns the exit code. The peers of a rank that fails give up after their deadline.
int run_threads(settings const& o) {
  auto const size = device_count();
  auto const id = scape::nccl_unique_id();
  std::atomic<int> code = 0;
  std::barrier<> barrier(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run_rank(o, id, rank, size, [&] { barrier.arrive_and_wait(); });
      } catch (std::exception const& e) {
        code = fail(e, 1);
      }
      barrier.arrive_and_drop();
    });
  }
  for (auto& thread : threads) thread.join();
  return code;
}

// Rank 0 makes the id and leaves it in the file; the others wait for it there.
ncclUniqueId exchange_id(std::filesystem::path const& path, bool first) {
  if (first) {
    if (exists(path)) throw std::runtime_error(path.string() + " is there; remove the old id file");
    auto const id = scape::nccl_unique_id();
    auto const part = path.string() + ".part";
    std::ofstream out(part, std::ios::binary);
    if (!out.write(id.internal, sizeof id.internal).flush()) {
      throw std::runtime_error("cannot write " + part);
    }
    rename(std::filesystem::path(part), path);  // so that nobody sees half of it
    return id;
  }
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!exists(path)) {
    if (std::chrono::steady_clock::now() > until) {
      throw std::runtime_error("rank 0 did not write " + path.string() + " within 60 s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ncclUniqueId id;
  if (!std::ifstream(path, std::ios::binary).read(id.internal, sizeof id.internal)) {
    throw std::runtime_error("cannot read an id from " + path.string());
  }
  return id;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto const arguments = std::span(argv, static_cast<std::size_t>(argc)).subspan(1);
    if (wants_help(arguments)) return std::puts(usage) < 0 ? 1 : 0;
    auto const o = parse(arguments);
    if (o.rank < 0) return run_threads(o);
    auto const id = exchange_id(o.id_file, o.rank == 0);
    run_rank(o, id, static_cast<int>(o.rank), static_cast<int>(o.size), [] {});
    return 0;
  } catch (usage_error const& e) {
    return fail(e, 2);
  } catch (std::exception const& e) {
    return fail(e, 1);
  }
}
