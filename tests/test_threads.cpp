// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <scape/comm/threads.hpp>
#include <scape/concepts.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>

#include "support/collective_checks.hpp"
#include "support/counting_communicator.hpp"

namespace {
thread_local std::int64_t allocations = 0;
}

// Not inlined: GCC would see free() on what it takes for the library's operator new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace std::chrono_literals;
using comm_t = scape::thread_communicator;
using counting_t = scape::testing::counting_communicator<comm_t>;
using scape::bfloat16;
using scape::float16;

struct pair {
  int a, b;
};
struct capturing {
  float offset;
  float operator()(float x, float y) const { return x + y + offset; }
};

template <class C>
constexpr bool has_everything = scape::communicator<C>&& scape::has_all_gather<C, float>&&
    scape::has_all_gather<C, std::uint64_t>&& scape::has_all_gather<C, pair>&&
        scape::has_reduce_scatter<C, bfloat16>&& scape::has_reduce_scatter<C, double>&&
            scape::has_reduce_scatter<C, float, scape::maximum>&& scape::has_all_reduce<C, double>&&
                scape::has_all_reduce<C, float16>&& scape::has_all_reduce<
                    C, std::int64_t, scape::maximum>&& scape::has_broadcast<C, std::byte>;
static_assert(has_everything<comm_t> && has_everything<counting_t>);
static_assert(!scape::has_all_gather<comm_t, std::string>);
static_assert(!scape::has_reduce_scatter<comm_t, pair>);
static_assert(!scape::has_all_reduce<comm_t, float, capturing>);
static_assert(!std::copy_constructible<comm_t> && !std::copy_constructible<scape::thread_handle>);
static_assert(std::is_nothrow_move_constructible_v<scape::thread_handle>);

scape::host_context const ctx;

using scape::testing::at;
using scape::testing::errors_of;

//! How one rank ended.
struct ending {
  std::string kind = "none", what;
  int peer = -1;
  std::chrono::milliseconds elapsed{};
};

//! Runs fn on every rank and reports each rank's exception; they still reach run_threads.
std::vector<ending> endings_of(int ranks, scape::thread_options const& options,
                               std::function<void(comm_t&)> const& fn, ending* total = nullptr) {
  std::vector<ending> endings(at(ranks));
  auto const start = std::chrono::steady_clock::now();
  auto const record = [&](ending& end, std::function<void()> const& call) {
    try {
      call();
    } catch (scape::peer_error const& e) {
      end.kind = "peer_error", end.what = e.what(), end.peer = e.peer();
      throw;
    } catch (std::exception const& e) {
      end.kind = "other", end.what = e.what();
      throw;
    }
  };
  ending all;
  try {
    record(all, [&] {
      scape::run_threads(
          ranks,
          [&](comm_t& comm) {
            auto& end = endings[at(comm.rank())];
            try {
              record(end, [&] { fn(comm); });
            } catch (...) {
              end.elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
                  std::chrono::steady_clock::now() - start);
              throw;
            }
          },
          options);
    });
  } catch (std::exception const&) {
  }
  if (total != nullptr) *total = all;
  return endings;
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

void gather_12(comm_t& comm) {
  std::vector<float> data(12);
  std::vector<std::int64_t> counts(at(comm.size()));
  counts[0] = 12;
  comm.all_gather(ctx, std::span(data).first(comm.rank() == 0 ? 12 : 0), std::span(data), counts)
      .wait(ctx);
}

constexpr scape::thread_options patient{.deadline = 60s};
constexpr auto prompt = 10s;  // far below the deadline, far above a busy machine's delays

}  // namespace

TEST_CASE_TEMPLATE("results are the serial ones", T, float, double, std::int32_t, std::uint64_t,
                   bfloat16, float16) {
  for (int const ranks : {1, 2, 3, 4, 7, 8}) {
    scape::run_threads(ranks, [&](comm_t& comm) {
      for (std::int64_t const n : {0, 1, 63, 64, 65, 1000, 4099}) {
        std::vector<std::int64_t> const counts(at(ranks), n);
        CHECK(errors_of<T>(comm, counts, std::plus<>()) == 0);
        CHECK(errors_of<T>(comm, counts, scape::maximum()) == 0);
      }
    });
  }
}

TEST_CASE_TEMPLATE("shards may be unequal and empty", T, float, double, bfloat16) {
  std::vector<std::vector<std::int64_t>> const all = {
      {3, 3, 3, 3, 3, 3, 0, 0}, {18, 19, 18, 18},      {0, 0, 0}, {0, 5, 0}, {1, 0},
      {9001, 0, 1, 20000},      {0, 70001, 0, 0, 3, 0}};
  for (auto const& counts : all) {
    scape::run_threads(static_cast<int>(counts.size()), [&](comm_t& comm) {
      CHECK(errors_of<T>(comm, counts, std::plus<>()) == 0);
    });
  }
}

TEST_CASE("sixteen-bit sums are rounded once") {
  scape::run_threads(4, [](comm_t& comm) {
    std::array<bfloat16, 1> x{bfloat16(comm.rank() == 0 ? 256.0F : 1.0F)};
    comm.all_reduce(ctx, x, std::span<bfloat16>(x)).wait(ctx);
    CHECK(static_cast<float>(x[0]) == 260.0F);  // 256 + 1 is 256 in bfloat16
  });
}

TEST_CASE("any trivially copyable type and empty functor will do") {
  scape::run_threads(3, [](comm_t& comm) {
    std::array<pair, 3> pairs{};
    pairs[at(comm.rank())] = {comm.rank(), -comm.rank()};
    std::array<std::int64_t, 3> const counts{1, 1, 1};
    comm.all_gather(ctx, std::span(pairs).subspan(at(comm.rank()), 1), std::span<pair>(pairs),
                    counts)
        .wait(ctx);
    CHECK(pairs[2].a == 2);
    CHECK(pairs[1].b == -1);
    constexpr auto add = [](pair x, pair y) { return pair{x.a + y.a, x.b * y.b}; };
    std::array<pair, 1> one{{{comm.rank(), 2}}};
    comm.all_reduce(ctx, one, std::span<pair>(one), add).wait(ctx);
    CHECK(one[0].a == 3);
    CHECK(one[0].b == 8);
    std::array<signed char, 1> small{static_cast<signed char>(comm.rank())};
    comm.all_reduce(ctx, small, std::span<signed char>(small)).wait(ctx);
    CHECK(small[0] == 3);
  });
}

TEST_CASE("many operations overlap under random delays") {
  for (int const in_flight : {1, 3, 16}) {
    scape::run_threads(
        4,
        [&](comm_t& comm) {
          int const me = comm.rank();
          std::minstd_rand random(static_cast<unsigned>(me + 1));
          auto const dawdle = [&] {
            if (random() % 16 == 0)
              std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
          };
          std::array<std::int64_t, 4> const counts{5, 0, 700, 2};
          constexpr std::int64_t n = 707, big = 6000;
          auto const begin = std::accumulate(counts.begin(), counts.begin() + me, std::int64_t{0});
          auto const mine = at(counts[at(me)]);
          std::vector<float> gathered(n), sent(n), block(mine), sum(big), data(n), reduced(big);
          std::vector<std::uint64_t> mask(4);
          std::array<std::int64_t, 4> const one{1, 1, 1, 1};
          std::array<scape::thread_handle, 5> handles;
          std::array<std::size_t, 5> order{0, 1, 2, 3, 4};
          int errors = 0;
          for (int step = 0; step < 1000; ++step) {
            auto const tag = static_cast<float>(step % 128);
            std::fill_n(gathered.begin() + begin, mine, tag + static_cast<float>(me));
            std::fill(sent.begin(), sent.end(), tag);
            std::fill(sum.begin(), sum.end(), tag * static_cast<float>(me));
            std::fill(data.begin(), data.end(), me == step % 4 ? tag : -1.0F);
            mask[at(me)] = static_cast<std::uint64_t>(step + me);
            handles[0] = comm.all_gather(ctx, std::span(gathered).subspan(at(begin), mine),
                                         std::span(gathered), counts);
            dawdle();
            handles[1] = comm.reduce_scatter(ctx, sent, std::span(block), counts);
            handles[2] = comm.all_reduce(ctx, sum, std::span(reduced));
            dawdle();
            handles[3] = comm.broadcast(ctx, std::span(data), step % 4);
            handles[4] =
                comm.all_gather(ctx, std::span(mask).subspan(at(me), 1), std::span(mask), one);
            dawdle();
            std::shuffle(order.begin(), order.end(), random);
            for (auto const i : order) handles[i].wait(ctx);
            for (int r = 0; r < 4; ++r) {
              auto const first =
                  std::accumulate(counts.begin(), counts.begin() + r, std::int64_t{0});
              if (counts[at(r)] > 0) errors += gathered[at(first)] != tag + static_cast<float>(r);
              errors += mask[at(r)] != static_cast<std::uint64_t>(step + r);
            }
            errors += std::count(block.begin(), block.end(), 4 * tag) != std::ssize(block);
            errors += std::count(reduced.begin(), reduced.end(), 6 * tag) != big;
            errors += std::count(data.begin(), data.end(), tag) != n;
          }
          CHECK(errors == 0);
        },
        {.in_flight = in_flight});
  }
}

TEST_CASE("more operations than slots may be started before the first wait") {
  scape::run_threads(3,
                     [](comm_t& comm) {
                       std::vector<std::array<float, 1>> data(50, {1.0F});
                       std::vector<scape::thread_handle> handles;
                       for (auto& x : data)
                         handles.push_back(comm.all_reduce(ctx, x, std::span<float>(x)));
                       for (auto& handle : handles) handle.wait(ctx);
                       for (auto const& x : data) CHECK(x[0] == 3.0F);
                     },
                     {.in_flight = 4});
}

TEST_CASE("a rank that has started and computes delays nobody") {
  for (std::int64_t const n : {100, 100000}) {
    std::array<std::chrono::milliseconds, 4> took{};
    scape::run_threads(4, [&](comm_t& comm) {
      std::vector<std::int64_t> const counts(4, n);
      std::vector<float> send(at(4 * n), 1.0F), recv(at(n));
      comm.barrier(ctx).wait(ctx);
      auto const start = std::chrono::steady_clock::now();
      auto handle = comm.reduce_scatter(ctx, send, std::span(recv), counts);
      if (comm.rank() == 3) std::this_thread::sleep_for(2000ms);
      handle.wait(ctx);
      took[at(comm.rank())] = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now() - start);
      CHECK(std::count(recv.begin(), recv.end(), 4.0F) == n);
    });
    for (std::size_t r = 0; r < 3; ++r) CHECK(took[r] < 1800ms);
  }
}

TEST_CASE("operations do not allocate") {
  scape::run_threads(2, [](comm_t& comm) {
    std::vector<float> send(2000), recv(1000);
    std::array<std::int64_t, 2> const counts{1000, 1000};
    auto const before = allocations;
    for (int i = 0; i < 100; ++i) {
      comm.reduce_scatter(ctx, send, std::span(recv), counts).wait(ctx);
      comm.all_gather(ctx, recv, std::span(send), counts).wait(ctx);
      comm.all_reduce(ctx, send, std::span(send)).wait(ctx);
      comm.broadcast(ctx, std::span(send), 1).wait(ctx);
      comm.barrier(ctx).wait(ctx);
    }
    auto const after = allocations;
    CHECK(after == before);
  });
}

TEST_CASE("handles move, may be dropped, and may be waited for twice") {
  scape::run_threads(3, [](comm_t& comm) {
    std::array<float, 1> a{1.0F}, b{2.0F}, c{3.0F};
    auto const start = [&](std::array<float, 1>& x) {
      return comm.all_reduce(ctx, x, std::span<float>(x));
    };
    auto first = start(a);
    auto moved = std::move(first);
    moved = start(b);  // waits for a
    CHECK(a[0] == 3.0F);
    moved.wait(ctx);
    moved.wait(ctx);
    CHECK(b[0] == 6.0F);
    { auto const dropped = start(c); }  // waits for c
    CHECK(c[0] == 9.0F);
    scape::thread_handle empty;
    empty.wait(ctx);
  });
}

TEST_CASE("a group serves one run after the other") {
  scape::thread_group group(3);
  for (int run = 0; run < 3; ++run) {
    scape::run_threads(group, [](comm_t& comm) {
      std::array<int, 1> x{comm.rank()};
      comm.all_reduce(ctx, x, std::span<int>(x)).wait(ctx);
      CHECK(x[0] == 3);
    });
  }
  CHECK_FALSE(group.failure());
  auto zero = group.communicator(0);
  CHECK_THROWS_WITH_AS(static_cast<void>(group.communicator(0)),
                       "scape::thread_group: rank 0 already has a communicator",
                       scape::argument_error);
  CHECK_THROWS_AS(static_cast<void>(group.communicator(3)), scape::argument_error);
  CHECK_THROWS_AS(scape::thread_group(0), scape::argument_error);
  CHECK_THROWS_AS(scape::thread_group(1, {.in_flight = 0}), scape::argument_error);
  CHECK_THROWS_AS(scape::thread_group(1, {.deadline = -1ms}), scape::argument_error);
  auto const taken = std::move(zero);
  CHECK_THROWS_AS(zero.barrier(ctx).wait(ctx), scape::argument_error);  // NOLINT: moved from
}

TEST_CASE("arguments are checked before anything is started") {
  scape::run_threads(3, [](comm_t& comm) {
    int const me = comm.rank();
    std::vector<float> six(6), two(2), five(5);
    std::array<std::int64_t, 3> const counts{2, 2, 2}, negative{2, -1, 2};
    std::array<std::int64_t, 3> const huge{INT64_MAX, 1, 0};
    std::array<std::int64_t, 2> const short_counts{2, 4};
    auto const rejects = [&](std::string const& what, auto const& call) {
      try {
        call();
      } catch (scape::argument_error const& e) {
        CHECK(e.rank() == me);
        return contains(e.what(), what);
      }
      return false;
    };
    CHECK(rejects("recv has 5 elements, expected 6, the sum of counts",
                  [&] { comm.all_gather(ctx, two, std::span(five), counts).wait(ctx); }));
    CHECK(rejects("send has 5 elements, expected 2, counts[",
                  [&] { comm.all_gather(ctx, five, std::span(six), counts).wait(ctx); }));
    CHECK(rejects("send has 5 elements, expected 6, the sum of counts",
                  [&] { comm.reduce_scatter(ctx, five, std::span(two), counts).wait(ctx); }));
    CHECK(rejects("recv has 6 elements, expected 5, the length of send",
                  [&] { comm.all_reduce(ctx, five, std::span(six)).wait(ctx); }));
    CHECK(rejects("counts has 2 entries, expected 3, one per rank",
                  [&] { comm.all_gather(ctx, two, std::span(six), short_counts).wait(ctx); }));
    CHECK(rejects("counts[1] is -1, expected 0 or more",
                  [&] { comm.all_gather(ctx, two, std::span(six), negative).wait(ctx); }));
    CHECK(rejects("counts[1] is 1, which overflows the sum of counts",
                  [&] { comm.all_gather(ctx, two, std::span(six), huge).wait(ctx); }));
    CHECK(rejects("root is 3, expected a rank from 0 to 2",
                  [&] { comm.broadcast(ctx, std::span(two), 3).wait(ctx); }));
    auto const wrong =
        std::span(six).subspan(at(me) * 2 + (me == 2 ? 0 : 1) - (me == 2 ? 1 : 0), 2);
    CHECK(rejects("send overlaps recv",
                  [&] { comm.all_gather(ctx, wrong, std::span(six), counts).wait(ctx); }));
    CHECK(rejects("recv overlaps send",
                  [&] { comm.reduce_scatter(ctx, six, wrong, counts).wait(ctx); }));
    comm.all_gather(ctx, two, std::span(six), counts).wait(ctx);  // nothing is out of step
  });
}

TEST_CASE("a throwing rank ends the others promptly and its exception comes out") {
  struct own_error : std::logic_error {
    using std::logic_error::logic_error;
  };
  for (int const blocked_first : {0, 1}) {
    std::array<bool, 4> told{};
    auto const start = std::chrono::steady_clock::now();
    CHECK_THROWS_WITH_AS(scape::run_threads(
                             4,
                             [&](comm_t& comm) {
                               if (comm.rank() == 2) {
                                 if (blocked_first) std::this_thread::sleep_for(50ms);
                                 throw own_error("boom");
                               }
                               try {
                                 gather_12(comm);
                               } catch (scape::peer_error const& e) {
                                 told[at(comm.rank())] = e.peer() == 2 && e.rank() == comm.rank() &&
                                                         e.operation() == "all_gather" &&
                                                         contains(e.what(), "rank 2 failed: boom");
                                 throw;
                               }
                             },
                             patient),
                         "boom", own_error);
    CHECK(told == std::array{true, true, false, true});
    CHECK(std::chrono::steady_clock::now() - start < prompt);
  }
  scape::thread_group group(2);
  CHECK_THROWS_AS(scape::run_threads(group,
                                     [](comm_t& comm) {
                                       if (comm.rank() == 1) throw 42;
                                       gather_12(comm);
                                     }),
                  int);
  CHECK(group.failure().value().rank == 1);
  CHECK(group.failure().value().message == "rank 1 failed: not a std::exception");
}

TEST_CASE("a rank that leaves is missed") {
  ending total;
  auto const endings = endings_of(
      4, patient,
      [](comm_t& comm) {
        comm.barrier(ctx).wait(ctx);
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(100ms);  // the others sleep by now
          return;
        }
        gather_12(comm);
      },
      &total);
  for (auto const r : {0U, 1U, 3U}) {
    CHECK(endings[r].kind == "peer_error");
    CHECK(endings[r].peer == 2);
    CHECK(contains(endings[r].what,
                   "rank 2 left without starting all_gather of 12 float (operation 1)"));
    CHECK(endings[r].elapsed < prompt);
  }
  CHECK(endings[2].kind == "none");
  CHECK(total.peer == 2);
}

TEST_CASE("ranks that never come are named after the deadline") {
  for (bool const two : {false, true}) {
    auto const endings = endings_of(4, {.deadline = 500ms}, [&](comm_t& comm) {
      if (comm.rank() == 1 || (two && comm.rank() == 3)) std::this_thread::sleep_for(2000ms);
      gather_12(comm);
    });
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK(endings[r].kind == "peer_error");
      CHECK(contains(endings[r].what, std::string(two ? "ranks 1, 3" : "rank 1") +
                                          " did not start all_gather of 12 float (operation 0) "
                                          "within 500 ms"));
      CHECK((endings[r].peer == 1 || r == 1));
    }
    CHECK(endings[1].peer != 1);
    CHECK(endings[0].elapsed >= 500ms);
    CHECK(endings[0].elapsed < 1800ms);
  }
}

TEST_CASE("a full ring waits no longer than the deadline") {
  auto const endings = endings_of(2, {.deadline = 500ms, .in_flight = 2}, [](comm_t& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(2000ms);
      return;
    }
    std::array<float, 3> x{};
    std::array<scape::thread_handle, 3> handles;
    for (std::size_t i = 0; i < 3; ++i) {
      auto const one = std::span(x).subspan(i, 1);
      handles[i] = comm.all_reduce(ctx, one, one);
    }
  });
  CHECK(endings[0].kind == "peer_error");
  CHECK(contains(endings[0].what, "rank 1 did not start all_reduce of 1 float (operation 0)"));
  CHECK(endings[0].elapsed >= 500ms);
  CHECK(endings[0].elapsed < 1800ms);
}

TEST_CASE("disagreement is reported on every rank") {
  struct example {
    std::string text;
    std::function<void(comm_t&, bool odd)> call;
  };
  std::vector<float> const send(64);
  auto const counts_of = [](std::int64_t a, std::int64_t b, std::int64_t c) {
    return std::vector<std::int64_t>{a, b, c};
  };
  auto const gather = [&](comm_t& comm, std::vector<std::int64_t> const& counts) {
    std::vector<float> recv(at(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
    auto const mine = std::span(send).first(at(counts[at(comm.rank())]));
    comm.all_gather(ctx, mine, std::span(recv), counts).wait(ctx);
  };
  auto const scatter = [&](comm_t& comm, std::vector<std::int64_t> const& counts) {
    std::vector<float> recv(at(counts[at(comm.rank())]));
    auto const n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    comm.reduce_scatter(ctx, std::span(send).first(at(n)), std::span(recv), counts).wait(ctx);
  };
  std::vector<example> const examples = {
      {"rank 2 started reduce_scatter of 10 float, rank 0 all_gather of 12 float",
       [&](comm_t& comm, bool odd) {
         odd ? scatter(comm, counts_of(2, 2, 6)) : gather(comm, counts_of(4, 4, 4));
       }},
      {"rank 2 started all_gather of 13 float, rank 0 all_gather of 12 float",
       [&](comm_t& comm, bool odd) { gather(comm, counts_of(4, 4, odd ? 5 : 4)); }},
      {"rank 2 started all_gather of 12 float with counts[1] = 3, rank 0 all_gather of 12 float "
       "with counts[1] = 4",
       [&](comm_t& comm, bool odd) { gather(comm, counts_of(4, odd ? 3 : 4, odd ? 5 : 4)); }},
      {"rank 2 started all_reduce of 3 double, rank 0 all_reduce of 3 float",
       [](comm_t& comm, bool odd) {
         std::vector<float> x(3);
         std::vector<double> y(3);
         if (odd) {
           comm.all_reduce(ctx, y, std::span(y)).wait(ctx);
         } else {
           comm.all_reduce(ctx, x, std::span(x)).wait(ctx);
         }
       }},
      {"rank 2 started all_reduce of 3 float with scape::maximum, rank 0 all_reduce of 3 float "
       "with "
       "std::plus<",
       [](comm_t& comm, bool odd) {
         std::vector<float> x(3);
         if (odd) {
           comm.all_reduce(ctx, x, std::span(x), scape::maximum()).wait(ctx);
         } else {
           comm.all_reduce(ctx, x, std::span(x)).wait(ctx);
         }
       }},
      {"rank 2 started broadcast of 3 float from rank 1, rank 0 broadcast of 3 float from rank 0",
       [](comm_t& comm, bool odd) {
         std::vector<float> x(3);
         comm.broadcast(ctx, std::span(x), odd ? 1 : 0).wait(ctx);
       }},
      {"rank 2 started barrier, rank 0 all_gather of 0 float",
       [&](comm_t& comm, bool odd) {
         if (odd) {
           comm.barrier(ctx).wait(ctx);
           gather(comm, counts_of(0, 0, 0));
         } else {
           gather(comm, counts_of(0, 0, 0));
           comm.barrier(ctx).wait(ctx);
         }
       }},
  };
  for (auto const& example : examples) {
    CAPTURE(example.text);
    auto const endings =
        endings_of(3, patient, [&](comm_t& comm) { example.call(comm, comm.rank() == 2); });
    for (int r = 0; r < 3; ++r) {
      auto const& end = endings[at(r)];
      CHECK(end.kind == "peer_error");
      CHECK_MESSAGE(contains(end.what, example.text), end.what);
      CHECK(end.peer == (r == 2 ? 0 : 2));
      CHECK(end.elapsed < prompt);
    }
  }
}

TEST_CASE("a disagreement is preferred to the rank that is missing too") {
  auto const endings = endings_of(3, {.deadline = 500ms}, [](comm_t& comm) {
    std::array<float, 2> x{};
    if (comm.rank() == 2) std::this_thread::sleep_for(1500ms);
    auto const mine = std::span(x).first(comm.rank() == 1 ? 1 : 2);
    comm.all_reduce(ctx, mine, mine).wait(ctx);
  });
  for (auto const& end : endings) {
    CHECK(contains(end.what, "rank 1 started all_reduce of 1 float, rank 0 all_reduce of 2 float"));
  }
}

TEST_CASE("a failure is for good") {
  std::atomic<int> repeated = 0;
  scape::thread_group group(3, patient);
  CHECK_THROWS_AS(scape::run_threads(group,
                                     [&](comm_t& comm) {
                                       if (comm.rank() == 1) comm.abort("out of data");
                                       for (int i = 0; i < 3; ++i) {
                                         try {
                                           gather_12(comm);
                                         } catch (scape::peer_error const& e) {
                                           repeated +=
                                               contains(e.what(), "rank 1 failed: out of data");
                                         }
                                       }
                                     }),
                  scape::peer_error);
  CHECK(repeated == 9);
  CHECK_THROWS_AS(scape::run_threads(group, gather_12), scape::peer_error);
  CHECK(group.failure().value().rank == 1);
}

TEST_CASE("an operation that everybody started survives a later failure") {
  std::array<bool, 3> right{};
  CHECK_THROWS_WITH_AS(scape::run_threads(3,
                                          [&](comm_t& comm) {
                                            std::vector<float> x(100000, 1.0F);
                                            auto handle = comm.all_reduce(ctx, x, std::span(x));
                                            comm.barrier(ctx).wait(ctx);
                                            if (comm.rank() == 1) {
                                              handle.wait(ctx);
                                              throw std::runtime_error("late");
                                            }
                                            std::this_thread::sleep_for(20ms);
                                            handle.wait(ctx);
                                            right[at(comm.rank())] =
                                                std::count(x.begin(), x.end(), 3.0F) ==
                                                std::ssize(x);
                                          }),
                       "late", std::runtime_error);
  CHECK(right == std::array{true, false, true});
}

TEST_CASE("an exception takes the buffers of unfinished operations back safely") {
  for (int round = 0; round < 60; ++round) {
    ending total;
    auto const endings = endings_of(
        3, patient,
        [&](comm_t& comm) {
          std::int64_t const n = 200000;
          std::vector<float> whole(at(3 * n), 1.0F), sum(at(n));
          std::vector<std::int64_t> const counts(3, n);
          std::vector<scape::thread_handle> handles;  // go before the buffers
          handles.push_back(comm.reduce_scatter(ctx, whole, std::span(sum), counts));
          if (comm.rank() == 1) {
            std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
            throw std::runtime_error("unwound");
          }
          handles[0].wait(ctx);
          gather_12(comm);
        },
        &total);
    CHECK(total.what == "unwound");
    for (auto const r : {0U, 2U}) {
      CHECK(endings[r].kind == "peer_error");
      CHECK(endings[r].peer == 1);
      CHECK(contains(endings[r].what,
                     "rank 1 abandoned reduce_scatter (operation 0) because of an "
                     "exception; it failed: unwound"));
      CHECK(endings[r].elapsed < prompt);
    }
  }
}

TEST_CASE("an abandoned operation fails even if the exception is caught") {
  ending total;
  auto const endings = endings_of(
      2, patient,
      [](comm_t& comm) {
        if (comm.rank() == 1) {
          try {
            std::array<float, 1> x{};
            auto const handle = comm.all_reduce(ctx, x, std::span<float>(x));
            throw 1;
          } catch (int) {
            return;
          }
        }
        comm.barrier(ctx).wait(ctx);
      },
      &total);
  CHECK(endings[0].kind == "peer_error");
  CHECK(total.kind == "peer_error");
  CHECK(contains(total.what, "rank 1"));
}

TEST_CASE("calls and bytes are counted") {
  scape::run_threads(4, [](comm_t& threads) {
    counting_t comm(threads);
    std::array<std::int64_t, 4> const counts{5, 0, 7, 1};
    auto const mine = counts[at(comm.rank())];
    std::vector<float> whole(13), part(at(mine));
    comm.all_gather(ctx, part, std::span(whole), counts).wait(ctx);
    comm.reduce_scatter(ctx, whole, std::span(part), counts).wait(ctx);
    comm.reduce_scatter(ctx, whole, std::span(part), counts, scape::maximum()).wait(ctx);
    comm.all_reduce(ctx, whole, std::span(whole)).wait(ctx);
    comm.broadcast(ctx, std::span(whole), 2).wait(ctx);
    comm.barrier(ctx).wait(ctx);
    using scape::testing::traffic;
    CHECK(comm.gathers == traffic{1, 4 * (13 - mine)});
    CHECK(comm.reduce_scatters == traffic{2, 8 * (13 - mine)});
    CHECK(comm.all_reduces == traffic{1, 2 * 3 * 13 * 4 / 4});
    CHECK(comm.broadcasts == traffic{1, comm.rank() == 2 ? 0 : 52});
    CHECK(comm.barriers == traffic{1, 0});
  });
}
