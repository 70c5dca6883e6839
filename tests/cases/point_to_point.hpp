// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Messages between ranks, on any backend of the host.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>

#include "support/collective_checks.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {

//! Message `number` from one rank to another.
template <class T>
class letter {
 public:
  letter(int from, int to, int number, std::int64_t n)
      : from_(from), to_(to), number_(number), paper_(n) {}

  template <class Comm>
  [[nodiscard]] auto send(Comm& comm) {
    fill(paper_.span(), from_ + 8 * to_, 7 * number_);
    return comm.send(host_context(), std::span<T const>(paper_.span()), to_);
  }
  template <class Comm>
  [[nodiscard]] auto recv(Comm& comm) {
    return comm.recv(host_context(), paper_.span(), from_);
  }
  //! After either.
  [[nodiscard]] bool right() {
    return paper_.intact() && same<T>(paper_.span(), [&](std::int64_t i) {
             return value<T>(from_ + 8 * to_, 7 * number_ + i);
           });
  }

 private:
  int from_, to_, number_;
  fenced<T> paper_;
};

//! One message to the next rank and one from the rank before.
template <class T, class Comm>
int ring_errors(Comm& comm, std::int64_t n, bool recv_first) {
  host_context const ctx;
  int const size = comm.size(), me = comm.rank();
  letter<T> out(me, (me + 1) % size, 0, n), in((me + size - 1) % size, me, 0, n);
  typename Comm::handle_type sent, received;
  if (recv_first) received = in.recv(comm);
  sent = out.send(comm);
  if (!recv_first) received = in.recv(comm);
  (recv_first ? received : sent).wait(ctx);
  (recv_first ? sent : received).wait(ctx);
  return !out.right() + !in.right();
}

//! Two messages from every rank to every rank, itself among them, started and waited for in any
//! order, but for the messages of one direction.
template <class T, class Comm>
int exchange_errors(Comm& comm, std::int64_t n, unsigned seed) {
  host_context const ctx;
  int const size = comm.size(), me = comm.rank();
  std::minstd_rand random(seed * 64 + static_cast<unsigned>(me));
  std::vector<letter<T>> letters;
  std::vector<int> order;  // of the letters' directions
  for (int number = 0; number < 2; ++number) {
    for (int r = 0; r < size; ++r) {
      letters.emplace_back(me, r, number, n + number);
      letters.emplace_back(r, me, number, n + number);
    }
    for (int i = 0; i < 2 * size; ++i) order.push_back(i);
  }
  std::shuffle(order.begin(), order.end(), random);
  std::vector<typename Comm::handle_type> handles;
  std::vector<int> begun(at(2 * size));
  for (int const d : order) {
    auto& l = letters[at(d + 2 * size * begun[at(d)]++)];
    handles.push_back(d % 2 == 0 ? l.send(comm) : l.recv(comm));
  }
  std::shuffle(handles.begin(), handles.end(), random);
  for (auto& handle : handles) handle.wait(ctx);
  return static_cast<int>(
      std::count_if(letters.begin(), letters.end(), [](auto& l) { return !l.right(); }));
}

//! Starts the collective operations in their order and the messages anywhere between them.
template <class Handle>
void in_any_order(std::vector<std::function<Handle()>> starts,
                  std::vector<std::function<Handle()>> const& collectives,
                  std::minstd_rand& random) {
  std::shuffle(starts.begin(), starts.end(), random);
  std::size_t place = 0;
  for (auto const& collective : collectives) {
    place += random() % (starts.size() + 1 - place);
    starts.insert(starts.begin() + static_cast<std::ptrdiff_t>(place++), collective);
  }
  std::vector<Handle> handles;
  for (auto const& start : starts) {
    handles.push_back(start());
    if (random() % 32 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  }
  std::shuffle(handles.begin(), handles.end(), random);
  for (auto& handle : handles) handle.wait(host_context());
}

//! Memory that stays, as that of an operation that fails has to over MPI.
template <class T>
std::span<T> kept(std::int64_t n) {
  static std::mutex mutex;
  static auto& all = *new std::deque<std::vector<T>>;
  std::lock_guard const lock(mutex);
  return all.emplace_back(at(n));
}

template <class Comm>
using handle_of = typename std::remove_reference_t<Comm>::handle_type;

constexpr std::array<int, 6> message_ranks{1, 2, 3, 4, 7, 8};

TEST_CASE_TEMPLATE_DEFINE("messages bring what is sent", Backend, point_to_point_1) {
  auto const errors = []<class T>(T, auto& comm) {
    int sum = 0;
    for (std::int64_t const n : {0, 1, 63, 64, 65, 1000, 100003}) {
      sum += ring_errors<T>(comm, n, true) + ring_errors<T>(comm, n, false);
    }
    for (unsigned seed = 0; seed < 10; ++seed) sum += exchange_errors<T>(comm, seed * 25, seed);
    return sum + exchange_errors<T>(comm, 20000, 10);
  };
  for (int const ranks : message_ranks) {
    Backend::ranks(ranks, [&](auto& comm) {
      CHECK(errors(char(), comm) == 0);
      CHECK(errors(float(), comm) == 0);
      CHECK(errors(double(), comm) == 0);
      CHECK(errors(bfloat16(), comm) == 0);
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("any number of messages may be sent before they are received", Backend,
                          point_to_point_2) {
  for (int const ranks : message_ranks) {
    Backend::ranks(ranks, [&](auto& comm) {
      host_context const ctx;
      int const me = comm.rank(), next = (me + 1) % ranks, previous = (me + ranks - 1) % ranks;
      std::vector<letter<float>> out, in;
      std::vector<handle_of<decltype(comm)>> handles;
      for (int i = 0; i < 2500; ++i) {
        std::int64_t const n = i % 100 == 4 ? 16000 : i % 5;
        out.emplace_back(me, next, i, n);
        in.emplace_back(previous, me, i, n);
      }
      for (auto& l : out) handles.push_back(l.send(comm));
      comm.barrier(ctx).wait(ctx);
      CHECK_FALSE(handles.front().ready(ctx));
      comm.barrier(ctx).wait(ctx);
      for (auto& l : in) handles.push_back(l.recv(comm));
      for (auto& handle : handles) handle.wait(ctx);
      CHECK(std::all_of(in.begin(), in.end(), [](auto& l) { return l.right(); }));
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("messages and collective operations are independent", Backend,
                          point_to_point_3) {
  for (int const ranks : message_ranks) {
    Backend::ranks(ranks, [&](auto& comm) {
      using handle_type = handle_of<decltype(comm)>;
      host_context const ctx;
      int const me = comm.rank();
      std::minstd_rand random(static_cast<unsigned>(me + 1));
      auto const total = static_cast<float>(ranks * (ranks - 1) / 2);
      int errors = 0;
      for (int step = 0; step < 40; ++step) {
        auto const mark = static_cast<float>(step);
        std::vector<letter<double>> out, in;
        for (int r = 0; r < ranks; ++r) {
          out.emplace_back(me, r, step, step % 4 * 300);
          in.emplace_back(r, me, step, step % 4 * 300);
        }
        std::vector<std::function<handle_type()>> messages;
        for (auto& l : out) messages.emplace_back([&] { return l.send(comm); });
        for (auto& l : in) messages.emplace_back([&] { return l.recv(comm); });
        std::vector<float> sum(at(step * 100 + 1), static_cast<float>(me));
        std::vector<float> data(70, me == step % ranks ? mark : -1);
        in_any_order<handle_type>(
            messages,
            {[&] { return comm.all_reduce(ctx, sum, std::span(sum)); },
             [&] { return comm.broadcast(ctx, std::span(data), step % ranks); },
             [&] { return comm.barrier(ctx); }},
            random);
        for (auto& l : in) errors += !l.right();
        errors += std::count(sum.begin(), sum.end(), total) != std::ssize(sum);
        errors += std::count(data.begin(), data.end(), mark) != std::ssize(data);
      }
      CHECK(errors == 0);
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("ready tells without waiting", Backend, point_to_point_4) {
  for (int const ranks : message_ranks) {
    Backend::ranks(ranks, [&](auto& comm) {
      host_context const ctx;
      int const me = comm.rank();
      auto const poll = [&](auto& handle) {
        while (!handle.ready(ctx)) std::this_thread::yield();
      };
      handle_of<decltype(comm)> nothing;
      CHECK(nothing.ready(ctx));

      if (me == 0) {  // nobody answers before he is asked
        for (int r = 1; r < ranks; ++r) {
          letter<float> question(0, r, 0, 3), answer(r, 0, 0, 70000);
          auto answering = answer.recv(comm);
          CHECK_FALSE(answering.ready(ctx));
          auto asking = question.send(comm);
          poll(answering);
          CHECK(answer.right());
          CHECK(answering.ready(ctx));
          answering.wait(ctx);
          poll(asking);
        }
      } else {
        letter<float> question(0, me, 0, 3), answer(me, 0, 0, 70000);
        auto listening = question.recv(comm);
        poll(listening);
        CHECK(question.right());
        auto answering = answer.send(comm);
        poll(answering);
      }

      std::vector<float> sum(30000, static_cast<float>(me));
      auto reducing = comm.all_reduce(ctx, sum, std::span(sum));
      poll(reducing);
      CHECK(std::count(sum.begin(), sum.end(), static_cast<float>(ranks * (ranks - 1) / 2)) ==
            std::ssize(sum));
      auto meeting = comm.barrier(ctx);
      poll(meeting);
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("arguments of messages are checked before anything is started", Backend,
                          point_to_point_5) {
  for (int const ranks : message_ranks) {
    Backend::ranks(ranks, [&](auto& comm) {
      host_context const ctx;
      std::array<float, 3> data{};
      std::span<float> const whole(data), none(static_cast<float*>(nullptr), 3);
      auto const name = "rank " + std::to_string(comm.rank()) + " of " + std::to_string(ranks);
      auto const range = ", expected a rank from 0 to " + std::to_string(ranks - 1);
      for (int const r : {-1, ranks}) {
        CHECK(rejects([&] { comm.send(ctx, std::span<float const>(whole), r).wait(ctx); },
                      {"scape::send", name, "to is " + std::to_string(r) + range}));
        CHECK(rejects([&] { comm.recv(ctx, whole, r).wait(ctx); },
                      {"scape::recv", name, "from is " + std::to_string(r) + range}));
      }
      CHECK(rejects([&] { comm.send(ctx, std::span<float const>(none), 0).wait(ctx); },
                    {"scape::send", "data is null, but has 3 elements"}));
      CHECK(rejects([&] { comm.recv(ctx, none, 0).wait(ctx); },
                    {"scape::recv", "data is null, but has 3 elements"}));
      CHECK(ring_errors<float>(comm, 3, true) == 0);  // nothing is out of step
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("both ranks of a message that differs are told", Backend,
                          point_to_point_6) {
  using comm_t = typename Backend::communicator;
  using start = std::function<handle_of<comm_t>(comm_t&)>;
  struct example {
    std::string sent, received;
    start send, recv;
  };
  host_context const ctx;
  auto const send = [&]<class T>(T, std::int64_t n) -> start {
    return [&ctx, n](comm_t& comm) { return comm.send(ctx, std::span<T const>(kept<T>(n)), 1); };
  };
  auto const recv = [&]<class T>(T, std::int64_t n) -> start {
    return [&ctx, n](comm_t& comm) { return comm.recv(ctx, kept<T>(n), 0); };
  };
  std::vector<example> const examples = {
      {"12 float", "11 float", send(float(), 12), recv(float(), 11)},
      {"70000 float", "80000 float", send(float(), 70000), recv(float(), 80000)},
      {"0 float", "1 float", send(float(), 0), recv(float(), 1)},
      {"2 float", "0 float", send(float(), 2), recv(float(), 0)},
      {"5 float", "5 int", send(float(), 5), recv(int(), 5)},
      {"4 double", "8 float", send(double(), 4), recv(float(), 8)},
  };
  for (std::size_t i = 0; i < examples.size(); ++i) {
    auto const& example = examples[i];
    bool const sender_waits = i % 2 == 0;  // for the message, or for something else
    CAPTURE(example.sent);
    auto const sent = "rank 0 send of " + example.sent + " to rank 1 as message 1";
    auto const received = "rank 1 started recv of " + example.received + " from rank 0";
    auto const body = [&](comm_t& comm) {
      letter<float> first(0, 1, 0, 3);
      if (comm.rank() == 0) {
        first.send(comm).wait(ctx);
        auto const differ = [&] {
          auto handle = example.send(comm);
          if (sender_waits) handle.wait(ctx);
          comm.barrier(ctx).wait(ctx);
        };
        CHECK(names_peer(1, differ, {sent, received}));
      } else if (comm.rank() == 1) {
        first.recv(comm).wait(ctx);
        CHECK(first.right());
        CHECK(names_peer(0, [&] { example.recv(comm).wait(ctx); }, {sent, received}));
      } else {
        CHECK(raises<peer_error>([&] { comm.barrier(ctx).wait(ctx); }, {"rank "}));
      }
      CHECK_THROWS_AS(comm.send(ctx, std::span<float const>(kept<float>(1)), 0).wait(ctx),
                      peer_error);
    };
    for (int const ranks : {2, 3, 7}) {
      if (!Backend::has_ranks(ranks)) continue;
      CHECK_THROWS_AS(Backend::ranks(ranks, body, std::chrono::seconds(1)), std::exception);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a rank that fails is named by those that wait for its messages", Backend,
                          point_to_point_7) {
  using clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  struct example {
    std::string text;
    std::chrono::milliseconds deadline;
    std::function<void()> end;
  };
  std::vector<example> const examples = {
      {"rank 1 failed: boom", 60s, [] { throw std::runtime_error("boom"); }},
      {"rank 1 left without starting ", 60s, [] {}},
      {"rank 1 did not start ", 1s, [] { std::this_thread::sleep_for(4s); }},
  };
  for (auto const& example : examples) {
    for (int const ranks : {2, 3, 7}) {
      if (!Backend::has_ranks(ranks)) continue;
      CAPTURE(example.text);
      auto const body = [&](auto& comm) {
        host_context const ctx;
        int const me = comm.rank();
        auto const exchange = [&](int peer) {
          auto in = comm.recv(ctx, kept<float>(12), peer);
          auto out = comm.send(ctx, std::span<float const>(kept<float>(12)), peer);
          me % 4 == 0 ? in.wait(ctx) : out.wait(ctx);
          me % 4 == 0 ? out.wait(ctx) : in.wait(ctx);
        };
        if (me == 1) {
          for (int r = 0; r < ranks; ++r) exchange(r);
          return example.end();
        }
        exchange(1);
        auto const start = clock::now();
        CHECK(names_peer(1, [&] { exchange(1); }, {"rank " + std::to_string(me), example.text}));
        CHECK(clock::now() - start < 3500ms);
      };
      CHECK_THROWS_AS(Backend::ranks(ranks, body, example.deadline), std::exception);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("the rank that a chain of others waits for is named", Backend,
                          point_to_point_8) {
  using namespace std::chrono_literals;
  for (int const ranks : {2, 3}) {
    if (!Backend::has_ranks(ranks)) continue;
    auto const body = [&](auto& comm) {
      host_context const ctx;
      int const me = comm.rank();
      auto const data = kept<float>(12);
      if (me == 0) return std::this_thread::sleep_for(4s);
      std::this_thread::sleep_for(20ms * (ranks - me));  // who is next to the cause is last
      CHECK(names_peer(0,
                       [&] {
                         comm.recv(ctx, data, me - 1).wait(ctx);
                         comm.send(ctx, std::span<float const>(data), (me + 1) % ranks).wait(ctx);
                       },
                       {"did not "}));
    };
    CHECK_THROWS_AS(Backend::ranks(ranks, body, 1s), std::exception);
  }
}

TEST_CASE_TEMPLATE_DEFINE("to wait for oneself is an error at once", Backend, point_to_point_9) {
  using namespace std::chrono_literals;
  for (int const ranks : {1, 3}) {
    if (!Backend::has_ranks(ranks)) continue;
    auto const body = [&](auto& comm) {
      host_context const ctx;
      if (comm.rank() == 0) {
        auto handle = comm.recv(ctx, kept<float>(12), 0);
        CHECK_FALSE(handle.ready(ctx));
        CHECK(names_peer(0, [&] { handle.wait(ctx); },
                         {"rank 0 waits without having started send of 12 float to rank 0"}));
      } else {
        CHECK(raises<peer_error>([&] { comm.barrier(ctx).wait(ctx); }, {"rank 0 "}));
      }
    };
    CHECK_THROWS_AS(Backend::ranks(ranks, body, 60s), std::exception);
  }
}

}  // namespace scape::testing
