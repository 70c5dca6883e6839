// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include <scape/comm/nccl.hpp>
#include <scape/concepts.hpp>
#include <scape/float16.hpp>

#include "nccl/rank_threads.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {
namespace {

using namespace std::chrono_literals;

static_assert(has_send_recv<nccl_communicator, float>);
static_assert(has_send_recv<nccl_communicator_ref, bfloat16>);

nccl_options const relaxed{.deadline = 60s};

template <class T>
std::vector<T> letter(int from, int to, std::int64_t n) {
  return make_vector(n, [&](auto i) {
    return static_cast<T>(static_cast<float>(scramble(at(from), at(to), at(i)) % 100));
  });
}

//! To the next rank, from the one before.
template <class T>
void pass_on(nccl_communicator& comm, cuda_context const& ctx, std::int64_t n) {
  int const size = comm.size(), me = comm.rank();
  int const next = (me + 1) % size, previous = (me + size - 1) % size;
  device_array<T> const out(letter<T>(me, next, n)), in(n);
  nccl_group group;
  auto const sent = comm.send(ctx, out.view(), next);
  auto const received = comm.recv(ctx, in.span(), previous);
  group.end();
  sent.wait(ctx);
  received.wait(ctx);
  comm.synchronize(ctx);
  CHECK(received.ready(ctx));
  CHECK(same_bits(in.read(), letter<T>(previous, me, n)));
  CHECK((in.intact() && out.intact()));
}

TEST_CASE("messages bring what is sent") {
  for (int const ranks : {1, 2, 3, 4, 8}) {
    if (ranks > devices()) continue;
    on_ranks(ranks, relaxed, [&](nccl_communicator& comm, cuda_context const& ctx) {
      for (std::int64_t const n : {0, 1, 63, 1000, 100003}) {
        pass_on<char>(comm, ctx, n);
        pass_on<float>(comm, ctx, n);
        pass_on<bfloat16>(comm, ctx, n);
      }
    });
  }
}

TEST_CASE("messages go down a chain in order, and ready tells when they have come") {
  int const ranks = std::min(devices(), 4);
  if (ranks < 2) return;
  std::atomic<bool> asked = false;
  on_ranks(ranks, relaxed, [&](nccl_communicator& comm, cuda_context const& ctx) {
    int const me = comm.rank();
    for (int number = 0; number < 5; ++number) {
      auto const n = 1000 * number + 1;
      device_array<float> const data(me == 0 ? letter<float>(0, number, n)
                                             : std::vector<float>(at(n)));
      if (me == 0) {
        while (!asked) std::this_thread::yield();
      } else {
        auto const handle = comm.recv(ctx, data.span(), me - 1);
        if (me == ranks - 1 && !asked) {
          CHECK_FALSE(handle.ready(ctx));
          asked = true;
        }
        while (!handle.ready(ctx)) std::this_thread::yield();
      }
      if (me + 1 < ranks) comm.send(ctx, data.view(), me + 1).wait(ctx);
      comm.synchronize(ctx);
      CHECK(same_bits(data.read(), letter<float>(0, number, n)));
    }
  });
}

TEST_CASE("arguments of messages are checked before anything is enqueued") {
  on_ranks(1, relaxed, [](nccl_communicator& comm, cuda_context const& ctx) {
    device_array<float> const data(3);
    std::span<float> const none(static_cast<float*>(nullptr), 3);
    CHECK(rejects([&] { comm.send(ctx, data.view(), 1).wait(ctx); }, {"send", "to is 1"}));
    CHECK(rejects([&] { comm.recv(ctx, data.span(), -1).wait(ctx); }, {"recv", "from is -1"}));
    CHECK(rejects([&] { comm.recv(ctx, none, 0).wait(ctx); }, {"data is null"}));
    pass_on<float>(comm, ctx, 3);
  });
}

}  // namespace
}  // namespace scape::testing
