// SPDX-License-Identifier: Apache-2.0
#include "cases/point_to_point.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>

#include "support/allocation_counter.hpp"
#include "support/thread_backend.hpp"

namespace scape::testing {
namespace {

using namespace std::chrono_literals;

static_assert(has_send_recv<thread_communicator, float>);
static_assert(has_send_recv<self_communicator, bfloat16>);
static_assert(!has_send_recv<thread_communicator, std::string>);

host_context const ctx;

TEST_CASE_TEMPLATE_INVOKE(point_to_point_1, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_2, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_3, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_4, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_5, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_6, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_7, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_8, thread_backend);
TEST_CASE_TEMPLATE_INVOKE(point_to_point_9, thread_backend);

TEST_CASE("messages do not allocate once as many have been in flight") {
  for (int const ranks : {1, 2, 4}) {
    std::int64_t before = 0;
    run_threads(ranks, [&](thread_communicator& comm) {
      int const me = comm.rank(), next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks;
      std::vector<float> out(1000), in(1000);
      std::array<thread_handle, 16> handles;
      auto const step = [&] {
        for (std::size_t i = 0; i < 8; ++i) handles[i] = comm.send<float>(ctx, out, next);
        comm.barrier(ctx).wait(ctx);
        for (std::size_t i = 8; i < 16; ++i) handles[i] = comm.recv<float>(ctx, in, previous);
        for (auto& handle : handles) handle.wait(ctx);
        comm.barrier(ctx).wait(ctx);
      };
      step();
      if (me == 0) before = allocation_count;
      for (int i = 0; i < 100; ++i) step();
      if (me == 0) CHECK(allocation_count == before);
      comm.barrier(ctx).wait(ctx);
    });
  }
}

TEST_CASE("a rank that has started its side and computes delays nobody") {
  std::array<std::chrono::milliseconds, 3> took{};
  run_threads(3, [&](thread_communicator& comm) {
    letter<float> l(0, comm.rank(), 0, 100000);
    auto const start = std::chrono::steady_clock::now();
    if (comm.rank() == 0) {
      letter<float> second(0, 2, 0, 100000), first(0, 1, 0, 100000);
      auto const one = first.send(comm);
      auto const two = second.send(comm);
      std::this_thread::sleep_for(2000ms);
    } else {
      l.recv(comm).wait(ctx);
      CHECK(l.right());
    }
    took[at(comm.rank())] = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - start);
  });
  for (std::size_t r = 1; r < 3; ++r) CHECK(took[r] < 1800ms);
}

TEST_CASE("an exception takes the buffers of messages back safely") {
  for (int round = 0; round < 60; ++round) {
    CHECK_THROWS_WITH_AS(
        run_threads(3,
                    [&](thread_communicator& comm) {
                      int const me = comm.rank();
                      std::vector<float> out(200000, 1.0F), in(200000);
                      std::vector<thread_handle> handles;  // go before the buffers
                      handles.push_back(comm.recv<float>(ctx, in, (me + 2) % 3));
                      if (me == 1) {
                        std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
                        throw std::runtime_error("unwound");
                      }
                      std::this_thread::sleep_for(std::chrono::microseconds(300));
                      auto const more = [&] {
                        handles.push_back(comm.send<float>(ctx, out, (me + 1) % 3));
                        handles[0].wait(ctx);
                        comm.barrier(ctx).wait(ctx);
                      };
                      CHECK(names_peer(1, more, {"rank 1 ", "unwound"}));
                    },
                    {.deadline = 60s}),
        "unwound", std::runtime_error);
  }
}

TEST_CASE("a message that has arrived survives a later failure") {
  CHECK_THROWS_WITH_AS(
      run_threads(2,
                  [](thread_communicator& comm) {
                    letter<float> l(1, 0, 0, 1000);
                    if (comm.rank() == 0) {
                      auto handle = l.recv(comm);
                      CHECK(raises<peer_error>([&] { comm.barrier(ctx).wait(ctx); }, {"rank 1"}));
                      handle.wait(ctx);
                      CHECK(l.right());
                    } else {
                      l.send(comm).wait(ctx);
                      throw std::runtime_error("later");
                    }
                  }),
      "later", std::runtime_error);
}

TEST_CASE("polling tells of failures, but does not look at the deadline") {
  thread_group group(3, {.deadline = 1ms});
  auto const body = [](thread_communicator& comm) {
    auto const poll = [](auto& handle) {
      while (!handle.ready(ctx)) std::this_thread::yield();
    };
    std::array<float, 3> data{};
    if (comm.rank() == 0) {
      auto handle = comm.recv<float>(ctx, data, 1);
      poll(handle);
      handle = comm.recv<float>(ctx, data, 1);
      CHECK(names_peer(1, [&] { poll(handle); }, {"rank 1 left without starting send of 3 float"}));
      handle.wait(ctx);  // it is over
    } else if (comm.rank() == 1) {
      std::this_thread::sleep_for(100ms);
      comm.send<float>(ctx, data, 0).wait(ctx);
    } else {
      std::this_thread::sleep_for(100ms);
      auto handle = comm.barrier(ctx);
      CHECK(names_peer(1, [&] { poll(handle); }, {"rank 1 left without starting"}));
    }
  };
  CHECK_THROWS_AS(run_threads(group, body), peer_error);
  CHECK(group.failure().value().rank == 1);
}

TEST_CASE("the lowest rank that waits for nobody is named by a collective operation") {
  thread_group group(3, {.deadline = 300ms});
  auto const body = [](thread_communicator& comm) {
    std::array<float, 3> data{};
    if (comm.rank() == 0) comm.recv<float>(ctx, data, 1).wait(ctx);
    if (comm.rank() == 1) std::this_thread::sleep_for(1500ms);
    if (comm.rank() == 2) {
      CHECK(names_peer(1, [&] { comm.barrier(ctx).wait(ctx); }, {" did not start "}));
    }
  };
  CHECK_THROWS_AS(run_threads(group, body), peer_error);
}

TEST_CASE("a rank alone sends to itself") {
  self_communicator const comm;
  for (std::int64_t const n : {0, 1, 64, 1000}) {
    CHECK(ring_errors<float>(comm, n, true) + ring_errors<float>(comm, n, false) == 0);
    CHECK(exchange_errors<bfloat16>(comm, n, 1) == 0);
  }
  std::array<float, 2> two{1, 2}, other{};
  auto const copy = comm;  // the same rank
  auto const sent = comm.send(ctx, std::span<float const>(two), 0);
  copy.recv(ctx, std::span<float>(other), 0).wait(ctx);
  CHECK(other == two);
  CHECK(rejects([&] { comm.send(ctx, std::span<float const>(two), 1).wait(ctx); },
                {"send [rank 0 of 1]", "to is 1"}));
  auto handle = comm.send(ctx, std::span<float const>(two), 0);
  CHECK(raises<peer_error>([&] { comm.recv(ctx, std::span<float>(two).first(1), 0).wait(ctx); },
                           {"started recv of 1 float from rank 0, rank 0 send of 2 float"}));
  CHECK(raises<peer_error>([&] { handle.wait(ctx); }, {"recv of 1 float"}));

  self_communicator const another;
  CHECK(names_peer(0, [&] { another.recv(ctx, std::span<float>(two), 0).wait(ctx); },
                   {"rank 0 waits without having started send of 2 float to rank 0 (message 0)"}));
}

}  // namespace
}  // namespace scape::testing
