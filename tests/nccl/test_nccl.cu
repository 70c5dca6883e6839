// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <scape/comm/nccl.hpp>
#include <scape/concepts.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>

#include "nccl/rank_processes.hpp"
#include "nccl/rank_threads.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;
using comm_t = scape::nccl_communicator;
using ref_t = scape::nccl_communicator_ref;
using scape::maximum;

struct pair_of_words {
  std::uint32_t first, second;
};

static_assert(scape::cuda_communicator<comm_t> && scape::cuda_communicator<ref_t>);
static_assert(scape::has_all_gather<comm_t, float> && scape::has_all_gather<ref_t, pair_of_words>);
static_assert(scape::has_broadcast<comm_t, std::uint64_t> && scape::has_broadcast<comm_t, bool>);
static_assert(scape::has_reduce_scatter<comm_t, scape::bfloat16>);
static_assert(scape::has_reduce_scatter<comm_t, __half, maximum>);
static_assert(scape::has_all_reduce<ref_t, __nv_bfloat16> && scape::has_all_reduce<ref_t, double>);
static_assert(scape::has_all_reduce<comm_t, long long> && scape::has_all_reduce<comm_t, long>);
static_assert(scape::has_all_reduce<comm_t, int, std::plus<int>>);
static_assert(!scape::has_all_reduce<comm_t, std::int16_t> && !scape::has_all_reduce<comm_t, bool>);
static_assert(!scape::has_all_reduce<comm_t, pair_of_words>);
static_assert(!scape::has_all_reduce<comm_t, float, std::minus<>>);
static_assert(!scape::has_reduce_scatter<comm_t, float, std::function<float(float, float)>>);
static_assert(!scape::has_all_gather<comm_t, std::string>);
static_assert(!std::is_copy_constructible_v<comm_t> && std::is_nothrow_move_assignable_v<comm_t>);

//! Of tests in which somebody fails. NCCL may need seconds to start on real devices.
scape::nccl_options short_deadline() {
  char const* milliseconds = std::getenv("SCAPE_TEST_NCCL_DEADLINE_MS");
  return {.deadline = std::chrono::milliseconds(milliseconds ? std::atoi(milliseconds) : 500)};
}

scape::nccl_options const relaxed{.deadline = 60s};
scape::nccl_options const strict = short_deadline();
//! No failure may take longer, whatever the machine does at the same time.
auto const bound = 5 * strict.deadline + 5s;
auto const within = "within " + std::to_string(strict.deadline.count()) + " ms";

//! Small enough for int8 and for exact sums of bfloat16 over 8 ranks.
template <class T>
T make(int rank, std::int64_t j) {
  auto const hash = static_cast<int>(scramble(7, at(rank), at(j)) % 13);
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(hash);
  } else {
    return static_cast<T>(static_cast<float>(hash - 6));
  }
}

template <class T>
double value(T x) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(x);
  } else {
    return static_cast<double>(static_cast<float>(x));
  }
}

template <class T>
std::vector<T> data_of(int rank, std::int64_t n) {
  return make_vector(n, [&](auto j) { return make<T>(rank, j); });
}

template <class T, class Op>
bool is_combined(std::vector<T> const& got, int ranks, std::int64_t offset, Op op) {
  bool same = true;
  for (std::int64_t j = 0; j < std::ssize(got); ++j) {
    auto want = value(make<T>(0, offset + j));
    for (int r = 1; r < ranks; ++r) want = op(want, value(make<T>(r, offset + j)));
    same &= value(got[at(j)]) == want;
  }
  return same;
}

//! Equal counts, unequal ones with an empty block, one block only, nothing.
std::vector<std::vector<std::int64_t>> count_shapes(int ranks) {
  std::vector<std::int64_t> const equal(at(ranks), 37), none(at(ranks), 0);
  auto unequal = equal, one = none;
  for (int r = 0; r < ranks; ++r) unequal[at(r)] = (r % 3) * 21 + r;
  one.back() = 300;
  return {equal, unequal, one, none};
}

//! One rank's view of blocks in rank order.
struct blocks {
  blocks(std::vector<std::int64_t> const& counts, int rank)
      : total(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})),
        offset(std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0})),
        own(counts[at(rank)]) {}
  std::int64_t total, offset, own;

  template <class T>
  [[nodiscard]] std::span<T> mine(std::span<T> whole) const {
    return whole.subspan(at(offset), at(own));
  }
  template <class T>
  [[nodiscard]] std::vector<T> mine(std::vector<T> const& whole) const {
    return {whole.begin() + offset, whole.begin() + offset + own};
  }
};

template <class T>
void check_all_gather(comm_t& comm, scape::cuda_context const& ctx,
                      std::vector<std::int64_t> const& counts) {
  blocks const b(counts, comm.rank());
  std::vector<T> want;
  for (int r = 0; r < comm.size(); ++r) {
    auto const block = data_of<T>(r, counts[at(r)]);
    want.insert(want.end(), block.begin(), block.end());
  }
  device_array<T> const send(data_of<T>(comm.rank(), b.own)), recv(b.total), both(b.total);
  copy_memory(b.mine(both.span()).data(), send.span().data(), send.span().size_bytes());
  comm.all_gather(ctx, send.view(), recv.span(), counts).wait(ctx);
  comm.all_gather(ctx, b.mine(both.view()), both.span(), counts).wait(ctx);
  comm.synchronize(ctx);
  CHECK(same_bits(recv.read(), want));
  CHECK(same_bits(both.read(), want));
  CHECK((send.intact() && recv.intact() && both.intact()));
}

template <class T, class Op>
void check_reductions(comm_t& comm, scape::cuda_context const& ctx,
                      std::vector<std::int64_t> const& counts, Op op) {
  blocks const b(counts, comm.rank());
  auto const input = data_of<T>(comm.rank(), b.total);
  device_array<T> const send(input), recv(b.own), both(input), sum(b.total), all(input);
  comm.reduce_scatter(ctx, send.view(), recv.span(), counts, op).wait(ctx);
  comm.reduce_scatter(ctx, both.view(), b.mine(both.span()), counts, op).wait(ctx);
  comm.all_reduce(ctx, send.view(), sum.span(), op).wait(ctx);
  comm.all_reduce(ctx, all.view(), all.span(), op).wait(ctx);
  comm.synchronize(ctx);
  CHECK(is_combined(recv.read(), comm.size(), b.offset, op));
  CHECK(same_bits(b.mine(both.read()), recv.read()));
  CHECK(is_combined(sum.read(), comm.size(), 0, op));
  CHECK(same_bits(all.read(), sum.read()));
  CHECK(same_bits(send.read(), input));
  CHECK((send.intact() && recv.intact() && both.intact() && sum.intact() && all.intact()));
}

template <class T>
void check_broadcast(comm_t& comm, scape::cuda_context const& ctx, std::int64_t n) {
  for (int const root : {0, comm.size() - 1}) {
    device_array<T> const data(data_of<T>(comm.rank(), n));
    comm.broadcast(ctx, data.span(), root).wait(ctx);
    comm.synchronize(ctx);
    CHECK(same_bits(data.read(), data_of<T>(root, n)));
    CHECK(data.intact());
  }
}

int flag_of(scape::nccl_operations const& comm) {
  int flag = -1;
  copy_memory(&flag, comm.failure_flag(), sizeof flag);
  return flag;
}

//! Runs call(), which fails with an Error, and checks that the communicator is left as it must be.
template <class Error, class Comm, class Call>
void check_fails(Comm& comm, scape::cuda_context const& ctx, Call const& call) {
  auto const begin = clock::now();
  auto const message = message_of<Error>(call);
  CHECK(clock::now() - begin < bound);
  CHECK(message.find("[rank " + std::to_string(comm.rank())) != message.npos);
  CHECK(flag_of(comm) == 1);
  device_array<float> const x(4);
  auto const again = clock::now();
  auto const says_so = {std::string_view("an earlier operation failed: ")};
  CHECK(raises<scape::error>([&] { comm.all_reduce(ctx, x.view(), x.span()).wait(ctx); }, says_so));
  CHECK(raises<scape::error>([&] { comm.check(); }, says_so));
  CHECK(raises<scape::error>([&] { comm.synchronize(ctx); }, says_so));
  CHECK(clock::now() - again < strict.deadline);
}

//! An all_reduce that is awaited.
template <class Comm>
void meet(Comm& comm, scape::cuda_context const& ctx, std::int64_t n = 100) {
  device_array<float> const x(n);
  comm.all_reduce(ctx, x.view(), x.span()).wait(ctx);
  comm.synchronize(ctx);
}

}  // namespace

TEST_CASE("collectives are exact for every number of ranks") {
  for (int const ranks : {1, 2, 3, 4, 7, 8}) {
    if (ranks > devices()) continue;
    CAPTURE(ranks);
    on_ranks(ranks, relaxed, [&](comm_t& comm, scape::cuda_context const& ctx) {
      CHECK(comm.size() == ranks);
      CHECK(comm.device() == comm.rank());
      for (auto const& counts : count_shapes(ranks)) {
        check_all_gather<std::uint64_t>(comm, ctx, counts);
        check_reductions<float>(comm, ctx, counts, std::plus<>());
        check_reductions<std::int32_t>(comm, ctx, counts, maximum());
        check_broadcast<float>(comm, ctx, counts.back());
      }
      CHECK(flag_of(comm) == 0);
      comm.close();
    });
  }
}

TEST_CASE_TEMPLATE("collectives are exact for every type", T, float, double, std::int8_t,
                   std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t,
                   scape::bfloat16, scape::float16, __half, __nv_bfloat16) {
  on_ranks(std::min(3, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    for (auto const& counts : count_shapes(comm.size())) {
      check_all_gather<T>(comm, ctx, counts);
      check_reductions<T>(comm, ctx, counts, std::plus<>());
      check_reductions<T>(comm, ctx, counts, maximum());
    }
    check_broadcast<T>(comm, ctx, 33);
  });
}

TEST_CASE("any trivially copyable type can be moved") {
  on_ranks(std::min(3, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    for (auto const& counts : count_shapes(comm.size())) {
      blocks const b(counts, comm.rank());
      auto const pair_of = [](std::int64_t r, std::int64_t j) {
        return pair_of_words{static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(j)};
      };
      std::vector<pair_of_words> want;
      for (int r = 0; r < comm.size(); ++r) {
        for (std::int64_t j = 0; j < counts[at(r)]; ++j) want.push_back(pair_of(r, j));
      }
      device_array<pair_of_words> const send(b.mine(want)), recv(b.total);
      comm.all_gather(ctx, send.view(), recv.span(), counts).wait(ctx);
      comm.broadcast(ctx, recv.span(), 0).wait(ctx);
      comm.synchronize(ctx);
      CHECK(same_bits(recv.read(), want));
    }
  });
}

TEST_CASE("arguments are checked before anything is enqueued") {
  int const ranks = std::min(2, devices());
  on_ranks(ranks, relaxed, [&](comm_t& comm, scape::cuda_context const& ctx) {
    device_array<float> const x(10), y(20);
    std::vector<std::int64_t> const counts(at(ranks), 10);
    auto const here = "[rank " + std::to_string(comm.rank());
    CHECK(rejects(
        [&] { comm.all_gather(ctx, x.view(), y.span(), std::array<std::int64_t, 3>{}).wait(ctx); },
        {here, "all_gather", "counts has 3 entries"}));
    CHECK(rejects(
        [&] {
          comm.all_gather(ctx, x.view().first(9), y.span().first(at(10 * ranks)), counts).wait(ctx);
        },
        {"send has 9 elements, expected 10"}));
    CHECK(rejects(
        [&] {
          auto const whole = y.view().first(at(10 * ranks));
          comm.reduce_scatter(ctx, whole, x.span().first(3), counts).wait(ctx);
        },
        {"reduce_scatter", "recv has 3 elements, expected 10"}));
    CHECK(
        rejects([&] { comm.all_reduce(ctx, y.view().first(5), y.span().subspan(1, 5)).wait(ctx); },
                {"all_reduce", "send overlaps recv"}));
    CHECK(rejects([&] { comm.broadcast(ctx, x.span(), ranks).wait(ctx); },
                  {"broadcast", "root is " + std::to_string(ranks)}));

    int const other = (comm.device() + 1) % devices();
    if (other != comm.device()) {
      cudaSetDevice(other);
      auto const numbers = "the current device is " + std::to_string(other) + ", expected " +
                           std::to_string(comm.device());
      CHECK(rejects([&] { comm.broadcast(ctx, x.span(), 0).wait(ctx); }, {numbers}));
      CHECK(rejects([&] { comm.synchronize(ctx); }, {numbers}));
      rank_stream const far;
      cudaSetDevice(comm.device());
      CHECK(rejects([&] { comm.broadcast(far.ctx, x.span(), 0).wait(ctx); },
                    {"the device of the context's stream"}));
    }
    meet(comm, ctx);  // all ranks are still at the same operation

    auto const moved = std::move(comm);
    CHECK(rejects([&] { comm.broadcast(ctx, x.span(), 0).wait(ctx); }, {"moved from"}));
    CHECK(moved.native_handle() != nullptr);
  });
  cudaSetDevice(0);
  auto const id = scape::nccl_unique_id();
  CHECK(rejects([&] { comm_t(id, 2, 2); }, {"rank 2 is not in a communicator of 2"}));
  CHECK(rejects([&] { comm_t(id, -1, 2); }, {"rank -1"}));
  CHECK(rejects([&] { comm_t(id, 0, 1, {.deadline = -1ms}); }, {"deadline is negative"}));
  CHECK(rejects([&] { ref_t{nullptr}; }, {"the communicator is null"}));
}

TEST_CASE("a closed communicator says so") {
  on_ranks(std::min(2, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    meet(comm, ctx);
    comm.close();
    comm.close();
    CHECK(raises<scape::nccl_error>([&] { meet(comm, ctx); }, {"closed"}));
    CHECK(raises<scape::nccl_error>([&] { comm.check(); }, {"closed"}));
    comm.abort("nothing to abort");
    CHECK(flag_of(comm) == 0);
  });
}

TEST_CASE("a handle orders another stream behind the operation") {
  on_ranks(std::min(3, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    rank_stream const other;
    auto const n = std::int64_t{100};
    for (int round = 0; round < 3; ++round) {
      device_array<float> const source(data_of<float>(comm.rank(), n)), x(n), y(n);
      delay(ctx.stream, 20);
      enqueue_copy(x.span(), source.view(), ctx.stream);
      auto const handle = comm.all_reduce(ctx, x.view(), x.span());
      auto copied = handle;
      copied.wait(ctx);
      handle.wait(other.ctx);
      enqueue_copy(y.span(), x.view(), other.ctx.stream);
      comm.synchronize(other.ctx);
      CHECK(is_combined(y.read(), comm.size(), 0, std::plus<>()));
      // Not waited for, and nothing to wait for.
      static_cast<void>(comm.broadcast(ctx, x.span(), 0));
      scape::nccl_handle().wait(ctx);
      comm.synchronize(ctx);
    }
  });
}

TEST_CASE("operations are captured and replayed") {
  on_ranks(std::min(3, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    rank_stream const other;
    auto const ranks = comm.size();
    auto const unequal = count_shapes(ranks)[ranks == 1 ? 0 : 1];  // not empty
    blocks const b(unequal, comm.rank());
    device_array<std::int32_t> const x(std::vector<std::int32_t>(20, 1)), y(20), all(b.total),
        mine(data_of<std::int32_t>(comm.rank(), b.own));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    CHECK(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    auto const sum = comm.all_reduce(ctx, x.view(), x.span());
    sum.wait(other.ctx);
    enqueue_copy(y.span(), x.view(), other.ctx.stream);
    auto const gather = comm.all_gather(other.ctx, mine.view(), all.span(), unequal);
    gather.wait(ctx);
    CHECK(cudaStreamEndCapture(ctx.stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
    CHECK(x.read() == std::vector<std::int32_t>(20, 1));
    int want = 1;
    for (int round = 0; round < 3; ++round) {
      CHECK(cudaGraphLaunch(replay, ctx.stream) == cudaSuccess);
      comm.synchronize(ctx);
      want *= ranks;
      CHECK(y.read() == std::vector<std::int32_t>(20, want));
    }
    CHECK(same_bits(b.mine(all.read()), mine.read()));
    CHECK(cudaGraphExecDestroy(replay) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    meet(comm, ctx);
  });
}

TEST_CASE("failure: an invalidated capture does not end the communicator") {
  on_ranks(std::min(2, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    device_array<float> const x(data_of<float>(comm.rank(), 20));
    CHECK(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(rejects([&] { comm.synchronize(ctx); }, {"synchronize", "being captured"}));
    comm.all_reduce(ctx, x.view(), x.span()).wait(ctx);
    CHECK(cudaStreamSynchronize(ctx.stream) != cudaSuccess);
    CHECK(rejects([&] { comm.all_reduce(ctx, x.view(), x.span()).wait(ctx); },
                  {"all_reduce", "invalidated"}));
    CHECK(rejects([&] { comm.synchronize(ctx); }, {"synchronize", "invalidated"}));
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(ctx.stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(flag_of(comm) == 0);
    meet(comm, ctx);
  });
}

TEST_CASE("a trainer's communicator is used and left alone") {
  int const ranks = std::min(3, devices());
  for (int const blocking : {0, 1}) {
    CAPTURE(blocking);
    auto const fresh = scape::nccl_unique_id();
    on_devices(ranks, [&](int r) {
      ncclComm_t native = nullptr;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking;
      auto state = ncclCommInitRankConfig(&native, ranks, fresh, r, &config);
      while (state == ncclInProgress) ncclCommGetAsyncError(native, &state);
      CHECK(state == ncclSuccess);
      rank_stream const s;
      {
        ref_t ref(native, relaxed);
        CHECK(ref.rank() == r);
        CHECK(ref.size() == ranks);
        CHECK(ref.native_handle() == native);
        device_array<float> const x(data_of<float>(r, 50));
        ref.all_reduce(s.ctx, x.view(), x.span(), maximum()).wait(s.ctx);
        ref.synchronize(s.ctx);
        ref.check();
        CHECK(is_combined(x.read(), ranks, 0, maximum()));
      }
      ref_t again(native, relaxed);
      meet(again, s.ctx);
      CHECK(ncclCommDestroy(native) == ncclSuccess);
    });
  }
}

TEST_CASE("one thread drives all ranks") {
  for (int const ranks : {1, 2, 4}) {
    if (ranks > devices()) continue;
    CAPTURE(ranks);
    std::vector<int> numbers(at(ranks));
    std::iota(numbers.rbegin(), numbers.rend(), 0);  // rank 0 on the last device
    auto comms = comm_t::all(numbers, relaxed);
    CHECK(std::ssize(comms) == ranks);
    std::vector<std::unique_ptr<rank_stream>> first(at(ranks)), second(at(ranks));
    std::vector<std::unique_ptr<device_array<float>>> x(at(ranks)), y(at(ranks)), source(at(ranks));
    auto const each = [&](auto const& f) {
      for (int r = 0; r < ranks; ++r) {
        cudaSetDevice(numbers[at(r)]);
        f(r, comms[at(r)]);
      }
    };
    each([&](int r, comm_t& comm) {
      CHECK(comm.rank() == r);
      CHECK(comm.device() == numbers[at(r)]);
      first[at(r)] = std::make_unique<rank_stream>();
      second[at(r)] = std::make_unique<rank_stream>();
      source[at(r)] = std::make_unique<device_array<float>>(data_of<float>(r, 64));
      x[at(r)] = std::make_unique<device_array<float>>(64);
      y[at(r)] = std::make_unique<device_array<float>>(64);
    });
    for (bool const raw : {false, true}) {
      CAPTURE(raw);
      std::vector<scape::nccl_handle> handles;
      std::vector<std::int64_t> const equal(at(ranks), 64 / ranks);
      auto const start = [&] {
        each([&](int r, comm_t& comm) {
          auto const& ctx = first[at(r)]->ctx;
          delay(ctx.stream, 5);
          enqueue_copy(x[at(r)]->span(), source[at(r)]->view(), ctx.stream);
          handles.push_back(comm.all_reduce(ctx, x[at(r)]->view(), x[at(r)]->span()));
          blocks const b(equal, r);
          static_cast<void>(
              comm.all_gather(ctx, b.mine(x[at(r)]->view()), x[at(r)]->span(), equal));
        });
      };
      if (raw) {
        CHECK(ncclGroupStart() == ncclSuccess);
        start();
        auto const code = ncclGroupEnd();
        CHECK((code == ncclSuccess || code == ncclInProgress));
      } else {
        scape::nccl_group group;
        start();
        group.end();
      }
      each([&](int r, comm_t&) {
        auto const& ctx = second[at(r)]->ctx;
        handles[at(r)].wait(ctx);
        enqueue_copy(y[at(r)]->span(), x[at(r)]->view(), ctx.stream);
      });
      each([&](int r, comm_t& comm) {
        comm.synchronize(second[at(r)]->ctx);
        CHECK(is_combined(y[at(r)]->read(), ranks, 0, std::plus<>()));
      });
    }
    each([&](int r, comm_t&) {
      first[at(r)].reset();
      second[at(r)].reset();
    });
    cudaSetDevice(0);
  }
}

TEST_CASE("ranks are processes") {
  int const ranks = std::min(3, devices());
  for (int const status : run_processes("work", ranks, scape::nccl_unique_id())) {
    CHECK(status == 0);
  }
}

TEST_CASE("failure: a rank does not come") {
  int const ranks = std::min(3, devices());
  auto const id = scape::nccl_unique_id();
  on_devices(ranks - 1, [&](int r) {
    auto const begin = clock::now();
    CHECK(raises<scape::peer_error>([&] { comm_t(id, r, ranks, strict); }, {"[rank "}));
    CHECK(clock::now() - begin < bound);
  });
  auto const alone = scape::nccl_unique_id();
  CHECK(raises<scape::peer_error>(
      [&] { comm_t(alone, 0, 2, strict); },
      {"[rank 0 of 2]", "1 or more of the 2 ranks did not come", within}));
}

TEST_CASE("failure: devices that cannot be ranks") {
  CHECK(rejects(
      [] {
        comm_t::all(std::array{0, 1000}, strict);
      },
      {"[rank 1 of 2]", "device 1000", "there are " + std::to_string(devices())}));
  CHECK(raises<scape::error>([] { comm_t::all(std::array{0, 0}, strict); }, {"nccl"}));
}

TEST_CASE("failure: a rank leaves") {
  on_ranks(std::min(3, devices()), strict, [](comm_t& comm, scape::cuda_context const& ctx) {
    meet(comm, ctx);
    if (comm.rank() == comm.size() - 1) return;
    check_fails<scape::peer_error>(comm, ctx, [&] { meet(comm, ctx); });
  });
}

TEST_CASE("failure: a rank aborts") {
  on_ranks(std::min(3, devices()), strict, [](comm_t& comm, scape::cuda_context const& ctx) {
    if (comm.rank() == 0) {
      check_fails<scape::nccl_error>(comm, ctx, [&] {
        comm.abort("tired");
        comm.check();
      });
      CHECK(raises<scape::nccl_error>([&] { comm.check(); }, {"abort: tired"}));
    } else {
      check_fails<scape::peer_error>(comm, ctx, [&] { meet(comm, ctx); });
    }
  });
}

TEST_CASE("failure: an exception destroys a communicator") {
  on_ranks(std::min(2, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    meet(comm, ctx);
    if (comm.rank() == 0) {
      try {
        auto const lost = std::move(comm);
        throw std::runtime_error("elsewhere");
      } catch (std::runtime_error const&) {
      }
      try {
        meet(comm, ctx);
      } catch (scape::argument_error const&) {
      }
    } else {
      check_fails<scape::peer_error>(comm, ctx, [&] { meet(comm, ctx); });
    }
  });
}

TEST_CASE("failure: ranks disagree about the count") {
  if (devices() < 2) return;
  on_ranks(std::min(3, devices()), strict, [](comm_t& comm, scape::cuda_context const& ctx) {
    check_fails<scape::error>(comm, ctx, [&] { meet(comm, ctx, 10 + comm.rank()); });
  });
}

TEST_CASE("failure: a peer is late") {
  if (devices() < 2) return;
  std::atomic<int> waiting = std::min(3, devices()) - 1;
  on_ranks(waiting + 1, strict, [&](comm_t& comm, scape::cuda_context const& ctx) {
    meet(comm, ctx);
    if (comm.rank() == 0) {
      while (waiting > 0) std::this_thread::sleep_for(1ms);
      // What the others have sent may still arrive.
      check_fails<scape::peer_error>(comm, ctx, [&] {
        for (;;) meet(comm, ctx);
      });
      return;
    }
    check_fails<scape::peer_error>(comm, ctx, [&] { meet(comm, ctx); });
    --waiting;
  });
}

TEST_CASE("failure: work before an operation takes too long") {
  on_ranks(std::min(2, devices()), strict, [](comm_t& comm, scape::cuda_context const& ctx) {
    if (comm.rank() == 0) delay(ctx.stream, static_cast<int>(strict.deadline.count()) + 400);
    check_fails<scape::peer_error>(comm, ctx, [&] { meet(comm, ctx); });
  });
}

TEST_CASE("failure: another thread aborts while one waits") {
  if (devices() < 2) return;
  on_ranks(std::min(2, devices()), relaxed, [](comm_t& comm, scape::cuda_context const& ctx) {
    if (comm.rank() == 1) {
      check_fails<scape::peer_error>(comm, ctx, [&] {
        std::this_thread::sleep_for(150ms);
        for (;;) meet(comm, ctx);
      });
      return;
    }
    std::thread watchdog([&] {
      std::this_thread::sleep_for(50ms);
      comm.abort("the watchdog barked");
    });
    check_fails<scape::nccl_error>(comm, ctx, [&] { meet(comm, ctx); });
    CHECK(raises<scape::nccl_error>([&] { comm.check(); }, {"the watchdog barked"}));
    watchdog.join();
  });
}

TEST_CASE("failure: a CUDA error in a host function of the stream") {
  on_ranks(std::min(2, devices()), strict, [](comm_t& comm, scape::cuda_context const& ctx) {
    meet(comm, ctx);
    if (comm.rank() == 1) {
      check_fails<scape::peer_error>(comm, ctx, [&] { meet(comm, ctx); });
      return;
    }
    // A host function may not call CUDA, and cannot throw: it leaves word for the rank's thread.
    std::atomic<cudaError_t> found = cudaSuccess;
    cudaLaunchHostFunc(
        ctx.stream,
        [](void* word) {
          void* memory = nullptr;
          *static_cast<std::atomic<cudaError_t>*>(word) = cudaMalloc(&memory, 1);
        },
        &found);
    CHECK(cudaStreamSynchronize(ctx.stream) == cudaSuccess);
    CHECK(found.load() == cudaErrorNotPermitted);
    check_fails<scape::nccl_error>(comm, ctx, [&] {
      comm.abort(std::string("a host function met ") + cudaGetErrorName(found));
      comm.check();
    });
    CHECK(raises<scape::nccl_error>([&] { comm.check(); },
                                    {"a host function met cudaErrorNotPermitted"}));
  });
}

TEST_CASE("failure: a graph outlives its communicator's failure") {
  if (devices() < 2) return;
  on_ranks(std::min(2, devices()), strict, [](comm_t& comm, scape::cuda_context const& ctx) {
    device_array<float> const x(16);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal);
    comm.all_reduce(ctx, x.view(), x.span()).wait(ctx);
    cudaStreamEndCapture(ctx.stream, &graph);
    cudaGraphInstantiate(&replay, graph, 0);
    meet(comm, ctx);
    if (comm.rank() == 0) {
      check_fails<scape::peer_error>(comm, ctx, [&] {
        cudaGraphLaunch(replay, ctx.stream);
        comm.synchronize(ctx);
      });
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
  });
}

TEST_CASE("failure: a trainer's communicator is not aborted") {
  if (devices() < 2) return;
  auto const id = scape::nccl_unique_id();
  std::atomic<bool> seen = false;
  on_devices(std::min(2, devices()), [&](int r) {
    ncclComm_t native = nullptr;
    CHECK(ncclCommInitRank(&native, std::min(2, devices()), id, r) == ncclSuccess);
    rank_stream const s;
    device_array<float> const x(10);
    ref_t ref(native, strict);
    if (r == 1) {
      while (!seen) std::this_thread::sleep_for(1ms);
      ref.all_reduce(s.ctx, x.view(), x.span()).wait(s.ctx);
      ref.synchronize(s.ctx);
    } else {
      ref.all_reduce(s.ctx, x.view(), x.span()).wait(s.ctx);
      CHECK(raises<scape::peer_error>([&] { ref.synchronize(s.ctx); }, {"not done", within}));
      CHECK(flag_of(ref) == 1);
      CHECK(raises<scape::peer_error>([&] { ref.check(); }, {"an earlier operation failed: "}));
      seen = true;
      CHECK(cudaStreamSynchronize(s.ctx.stream) == cudaSuccess);  // it was only late
      ref_t fresh(native, strict);
      fresh.check();
    }
    CHECK(ncclCommDestroy(native) == ncclSuccess);
  });
}

TEST_CASE("failure: a rank's process is killed") {
  if (devices() < 2) return;
  int const ranks = std::min(3, devices());
  auto const statuses = run_processes("die", ranks, scape::nccl_unique_id());
  for (int r = 0; r < ranks; ++r) {
    CAPTURE(r);
    auto const status = statuses[at(r)];
    CHECK((r == 1 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0));
  }
}

TEST_CASE("failure: a kernel faults") {
  if (devices() < 2) return;
  int const ranks = std::min(2, devices());
  for (int const status : run_processes("fault", ranks, scape::nccl_unique_id())) {
    CHECK(status == 0);
  }
}

namespace {

__global__ void write(int* out) { *out = 1; }

}  // namespace

//! What the rank processes run.
TEST_CASE("process rank" * doctest::skip()) {
  auto const self = this_process();
  if (self.size == 0) return;
  cudaSetDevice(self.rank);
  rank_stream const s;
  comm_t comm(self.id, self.rank, self.size, self.task == "work" ? relaxed : strict);
  check_reductions<float>(comm, s.ctx, count_shapes(self.size)[1], std::plus<>());
  if (self.task == "work") {
    comm.close();
  } else if (self.task == "die") {
    if (self.rank == 1) raise(SIGKILL);
    check_fails<scape::peer_error>(comm, s.ctx, [&] { meet(comm, s.ctx); });
  } else if (self.rank == 1) {
    write<<<1, 1, 0, s.ctx.stream>>>(nullptr);
    CHECK(raises<scape::cuda_error>([&] { comm.synchronize(s.ctx); }, {"cudaErrorIllegalAddress"}));
    CHECK(raises<scape::error>([&] { comm.check(); }, {"an earlier operation failed: "}));
  } else {
    check_fails<scape::peer_error>(comm, s.ctx, [&] { meet(comm, s.ctx); });
  }
}
