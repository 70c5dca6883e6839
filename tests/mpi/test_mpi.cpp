// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <scape/comm/mpi.hpp>
#include <scape/comm/threads.hpp>
#include <scape/concepts.hpp>
#include <scape/float16.hpp>

#include "support/collective_checks.hpp"
#include "support/mpi_backend.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

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

namespace scape::testing {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

static_assert(communicator<mpi_communicator> && communicator<mpi_communicator_ref>);
static_assert(has_all_gather<mpi_communicator, std::uint64_t>);
static_assert(has_reduce_scatter<mpi_communicator, bfloat16>);
static_assert(has_all_reduce<mpi_communicator_ref, double, maximum>);
static_assert(has_broadcast<mpi_communicator, std::byte>);
static_assert(!has_all_gather<mpi_communicator, std::string>);
static_assert(!std::copy_constructible<mpi_communicator> && !std::copy_constructible<mpi_handle>);
static_assert(std::is_nothrow_move_constructible_v<mpi_handle>);

host_context const ctx;

//! Memory that stays, as that of an operation that fails has to.
template <class T>
std::span<T> kept(std::int64_t n) {
  return {new T[at(n)](), at(n)};
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

void gather_12(mpi_communicator& comm) {
  auto const data = kept<float>(12);
  std::vector<std::int64_t> counts(at(comm.size()));
  counts[0] = 12;
  comm.all_gather(ctx, data.first(comm.rank() == 0 ? 12 : 0), data, counts).wait(ctx);
}

void sum_3(mpi_communicator& comm) {
  auto const data = kept<float>(3);
  comm.all_reduce(ctx, data, data).wait(ctx);
}

constexpr mpi_options patient{.deadline = 60s};
constexpr auto prompt = 10s;  // far below the deadline, far above a busy machine's delays

std::vector<std::vector<std::int64_t>> uneven_counts(int ranks) {
  std::vector<std::vector<std::int64_t>> const patterns = {
      {18, 19}, {0}, {0, 5, 0}, {3, 3, 3, 0}, {9001, 0, 1, 20000}, {0, 30001, 0, 0, 3, 0}};
  std::vector<std::vector<std::int64_t>> result;
  for (auto const& pattern : patterns) {
    result.push_back(make_vector(ranks, [&](auto r) { return pattern[at(r) % pattern.size()]; }));
  }
  return result;
}

TEST_CASE_TEMPLATE("results are the serial ones", T, float, double, std::int32_t, std::uint64_t,
                   bfloat16, float16) {
  mpi_communicator comm;
  for (std::int64_t const n : {0, 1, 63, 64, 65, 1000, 4099}) {
    std::vector<std::int64_t> const counts(at(comm.size()), n);
    CHECK(errors_of<T>(comm, counts, std::plus<>()) == 0);
    CHECK(errors_of<T>(comm, counts, maximum()) == 0);
  }
}

TEST_CASE_TEMPLATE("shards may be unequal and empty", T, float, double, bfloat16) {
  for (auto const progress : {mpi_progress::caller, mpi_progress::thread}) {
    mpi_communicator comm(MPI_COMM_WORLD, {.progress = progress});
    for (auto const& counts : uneven_counts(comm.size())) {
      CHECK(errors_of<T>(comm, counts, std::plus<>()) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("any limit of the counts gives the same results", T, float, bfloat16) {
  for (std::int64_t const limit : {1, 7, 1000}) {
    mpi_communicator comm(MPI_COMM_WORLD, {.count_limit = limit});
    for (std::int64_t const n : {0, 1, 65, 1003}) {
      if (limit == 1 && n > 100) continue;
      std::vector<std::int64_t> const counts(at(comm.size()), n);
      CHECK(errors_of<T>(comm, counts, std::plus<>()) == 0);
    }
    if (limit < 1000) continue;
    for (auto const& counts : uneven_counts(comm.size())) {
      CHECK(errors_of<T>(comm, counts, std::plus<>()) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("the bits are those of rank threads", T, float, double, bfloat16) {
  int const size = world_size(), me = world_rank();
  for (std::int64_t const n : {100, 100003}) {
    std::vector<std::int64_t> counts(at(size), n / size);
    counts.back() += n % size;
    auto const input = [&](int rank) {
      return make_vector(n, [&](auto i) { return static_cast<T>(normal(3, rank, 0, i)); });
    };
    struct results {
      std::vector<T> sums, block;
    };
    auto const compute = [&](auto& comm) {
      auto const mine = input(comm.rank());
      results r{std::vector<T>(at(n)), std::vector<T>(at(counts[at(comm.rank())]))};
      comm.all_reduce(ctx, mine, std::span(r.sums)).wait(ctx);
      comm.reduce_scatter(ctx, mine, std::span(r.block), counts).wait(ctx);
      return r;
    };
    results expected;
    run_threads(size, [&](thread_communicator& comm) {
      auto r = compute(comm);
      if (comm.rank() == me) expected = std::move(r);
    });
    for (std::int64_t const limit : {std::int64_t{1000}, mpi_options().count_limit}) {
      mpi_communicator comm(MPI_COMM_WORLD, {.count_limit = limit});
      auto const got = compute(comm);
      CHECK(same_bits(got.sums, expected.sums));
      CHECK(same_bits(got.block, expected.block));
    }
  }
}

TEST_CASE("a pool shares the reduction") {
  mpi_communicator comm;
  host_pool pool(3);
  host_context const pooled{.scratch = {}, .pool = &pool};
  std::vector<float> x(10007, 1.0F);
  comm.all_reduce(pooled, x, std::span(x)).wait(pooled);
  CHECK(std::count(x.begin(), x.end(), static_cast<float>(comm.size())) == 10007);
}

TEST_CASE("any trivially copyable type and empty functor will do") {
  struct pair {
    int a, b;
  };
  mpi_communicator comm;
  std::array<pair, 1> one{{{comm.rank(), 2}}};
  constexpr auto add = [](pair x, pair y) { return pair{x.a + y.a, x.b * y.b}; };
  comm.all_reduce(ctx, one, std::span<pair>(one), add).wait(ctx);
  CHECK(one[0].a == comm.size() * (comm.size() - 1) / 2);
  CHECK(one[0].b == 1 << comm.size());
}

TEST_CASE("many operations overlap under random delays") {
  for (auto const progress : {mpi_progress::caller, mpi_progress::thread}) {
    for (std::int64_t const limit : {std::int64_t{1000}, mpi_options().count_limit}) {
      mpi_communicator comm(MPI_COMM_WORLD, {.count_limit = limit, .progress = progress});
      int const size = comm.size(), me = comm.rank();
      auto const ranks = static_cast<float>(size);
      std::minstd_rand random(static_cast<unsigned>(me + 1));
      auto const dawdle = [&] {
        if (random() % 16 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      };
      auto const counts = make_vector(size, [](auto r) {
        return std::array<std::int64_t, 4>{5, 0, 700, 2}[at(r % 4)];
      });
      std::vector<std::int64_t> const one(at(size), 1);
      auto const n = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      auto const begin = std::accumulate(counts.begin(), counts.begin() + me, std::int64_t{0});
      auto const mine = at(counts[at(me)]);
      constexpr std::int64_t big = 30000;
      std::vector<float> gathered(at(n)), sent(at(n)), block(mine), sum(big), data(at(n)),
          reduced(big);
      std::vector<std::uint64_t> mask(at(size));
      std::array<mpi_handle, 5> handles;
      std::array<std::size_t, 5> order{0, 1, 2, 3, 4};
      int errors = 0;
      for (int step = 0; step < 100; ++step) {
        auto const tag = static_cast<float>(step % 128);
        std::fill_n(gathered.begin() + begin, mine, tag + static_cast<float>(me));
        std::fill(sent.begin(), sent.end(), tag);
        std::fill(sum.begin(), sum.end(), tag * static_cast<float>(me));
        std::fill(data.begin(), data.end(), me == step % size ? tag : -1.0F);
        mask[at(me)] = at(step + me);
        handles[0] = comm.all_gather(ctx, std::span(gathered).subspan(at(begin), mine),
                                     std::span(gathered), counts);
        dawdle();
        handles[1] = comm.reduce_scatter(ctx, sent, std::span(block), counts);
        handles[2] = comm.all_reduce(ctx, sum, std::span(reduced));
        dawdle();
        handles[3] = comm.broadcast(ctx, std::span(data), step % size);
        handles[4] = comm.all_gather(ctx, std::span(mask).subspan(at(me), 1), std::span(mask), one);
        dawdle();
        std::shuffle(order.begin(), order.end(), random);
        for (auto const i : order) handles[i].wait(ctx);
        for (std::int64_t r = 0, first = 0; r < size; first += counts[at(r++)]) {
          if (counts[at(r)] > 0) errors += gathered[at(first)] != tag + static_cast<float>(r);
          errors += mask[at(r)] != at(step + r);
        }
        errors += std::count(block.begin(), block.end(), ranks * tag) != std::ssize(block);
        errors += std::count(reduced.begin(), reduced.end(), tag * ranks * (ranks - 1) / 2) != big;
        errors += std::count(data.begin(), data.end(), tag) != n;
      }
      CHECK(errors == 0);
    }
  }
}

TEST_CASE("with a progress thread a rank that has started and computes delays nobody") {
  mpi_communicator comm(MPI_COMM_WORLD, {.progress = mpi_progress::thread});
  std::vector<float> x(1000000, 1.0F);
  comm.barrier(ctx).wait(ctx);
  auto const start = clock::now();
  auto handle = comm.all_reduce(ctx, x, std::span(x));
  bool const computes = comm.size() > 1 && comm.rank() == comm.size() - 1;
  if (computes) std::this_thread::sleep_for(4000ms);
  handle.wait(ctx);
  if (!computes) CHECK(clock::now() - start < 3500ms);
  CHECK(std::count(x.begin(), x.end(), static_cast<float>(comm.size())) == std::ssize(x));
}

TEST_CASE("operations do not allocate once they have been used") {
  mpi_communicator comm;
  std::vector<std::int64_t> const counts(at(comm.size()), 1000);
  std::vector<float> send(at(1000 * comm.size())), recv(1000), large(100000);
  auto const step = [&] {
    auto handle = comm.all_reduce(ctx, large, std::span(large));
    comm.reduce_scatter(ctx, send, std::span(recv), counts).wait(ctx);
    comm.all_gather(ctx, recv, std::span(send), counts).wait(ctx);
    comm.all_reduce(ctx, recv, std::span(recv)).wait(ctx);
    handle.wait(ctx);
    comm.broadcast(ctx, std::span(send), 0).wait(ctx);
    auto message = comm.recv(ctx, std::span(recv), (comm.rank() + 1) % comm.size());
    comm.send(ctx, std::span<float const>(large).first(1000),
              (comm.rank() + comm.size() - 1) % comm.size())
        .wait(ctx);
    message.wait(ctx);
    comm.barrier(ctx).wait(ctx);
  };
  step();
  auto const before = allocations;
  for (int i = 0; i < 20; ++i) step();
  auto const after = allocations;
  CHECK(after == before);
}

TEST_CASE("handles move, may be dropped, and may be waited for twice") {
  mpi_communicator comm;
  auto const ranks = static_cast<float>(comm.size());
  std::array<float, 1> a{1.0F}, b{2.0F}, c{3.0F};
  auto const start = [&](std::array<float, 1>& x) {
    return comm.all_reduce(ctx, x, std::span<float>(x));
  };
  auto first = start(a);
  auto moved = std::move(first);
  moved = start(b);  // waits for a
  CHECK(a[0] == ranks);
  moved.wait(ctx);
  moved.wait(ctx);
  CHECK(b[0] == 2 * ranks);
  { auto const dropped = start(c); }  // waits for c
  CHECK(c[0] == 3 * ranks);
  mpi_handle empty;
  empty.wait(ctx);
}

TEST_CASE("a communicator moves, and lives on a part of the processes") {
  int const me = world_rank();
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &part);
  {
    mpi_communicator first(part);
    auto second = std::move(first);
    CHECK(rejects([&] { first.barrier(ctx).wait(ctx); }, {"barrier", "moved from"}));  // NOLINT
    CHECK(rejects([&] { static_cast<void>(first.native_handle()); }, {"moved from"}));
    first.abort("nobody hears it");
    std::array<int, 1> x{1};
    second.all_reduce(ctx, x, std::span<int>(x)).wait(ctx);
    CHECK(x[0] == second.size());
    CHECK(second.size() == (world_size() + 1 - me % 2) / 2);
    CHECK(second.rank() == me / 2);
  }
  MPI_Comm_free(&part);
}

TEST_CASE("a reference works on its owner's communicator and leaves it as it was") {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
  for (std::int64_t const limit : {std::int64_t{7}, mpi_options().count_limit}) {
    mpi_communicator_ref ref(comm, {.count_limit = limit});
    CHECK(ref.native_handle() == comm);
    std::vector<std::int64_t> const counts(at(ref.size()), 65);
    CHECK(errors_of<float>(ref, counts, std::plus<>()) == 0);
  }
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(comm, &handler);
  CHECK(handler == MPI_ERRORS_ARE_FATAL);
  MPI_Comm_free(&comm);
}

TEST_CASE("wrong arguments are refused before anything is started") {
  mpi_communicator comm;
  int const size = comm.size(), me = comm.rank();
  std::vector<float> whole(at(2 * size)), two(2), five(5);
  std::vector<std::int64_t> const counts(at(size), 2);
  std::vector<std::int64_t> const long_counts(at(size + 1), 2);
  CHECK(rejects([&] { comm.all_gather(ctx, five, std::span(whole), counts).wait(ctx); },
                {"all_gather", "rank " + std::to_string(me), "send has 5 elements, expected 2"}));
  CHECK(rejects([&] { comm.all_gather(ctx, two, std::span(five), counts).wait(ctx); },
                {"recv has 5 elements, expected " + std::to_string(2 * size)}));
  CHECK(rejects([&] { comm.reduce_scatter(ctx, whole, std::span(two), long_counts).wait(ctx); },
                {"counts has " + std::to_string(size + 1) + " entries"}));
  CHECK(rejects([&] { comm.all_reduce(ctx, five, std::span(two)).wait(ctx); },
                {"recv has 2 elements, expected 5"}));
  CHECK(rejects([&] { comm.broadcast(ctx, std::span(two), size).wait(ctx); },
                {"root is " + std::to_string(size)}));
  comm.all_gather(ctx, two, std::span(whole), counts).wait(ctx);  // nothing is out of step

  auto const make = [](MPI_Comm c, mpi_options const& o) { mpi_communicator const made(c, o); };
  CHECK(rejects([&] { make(MPI_COMM_NULL, {}); }, {"mpi_communicator", "MPI_COMM_NULL"}));
  CHECK(rejects([&] { make(MPI_COMM_WORLD, {.deadline = -1ms}); }, {"deadline is negative"}));
  for (std::int64_t const limit : {std::int64_t{0}, std::int64_t{1} << 31}) {
    CHECK(rejects([&] { make(MPI_COMM_WORLD, {.count_limit = limit}); },
                  {"count_limit is " + std::to_string(limit)}));
  }
}

TEST_CASE("ranks that never come are named after the deadline") {
  if (world_size() < 3) return;
  for (auto const progress : {mpi_progress::caller, mpi_progress::thread}) {
    for (bool const two : {false, true}) {
      auto const late = [&](int r) { return r == 1 || (two && r == world_size() - 1); };
      auto const end = ending_of({.deadline = 500ms, .progress = progress}, [&](auto& comm) {
        if (late(comm.rank())) std::this_thread::sleep_for(4000ms);
        for (int i = 0; i < 100; ++i) {  // who is late may find the others' messages still
          sum_3(comm);
          std::this_thread::sleep_for(20ms);
        }
      });
      CHECK(end.kind == "peer_error");
      if (late(world_rank())) continue;
      auto const names = two ? "ranks 1, " + std::to_string(world_size() - 1) : "rank 1";
      CHECK_MESSAGE(contains(end.what, names + " did not start or finish all_reduce of 3 float "
                                               "(operation 0) within 500 ms"),
                    end.what);
      CHECK(end.peer == 1);
      CHECK(end.elapsed >= 500ms);
      CHECK(end.elapsed < 3500ms);
    }
  }
}

TEST_CASE("a throwing rank ends the others promptly") {
  if (world_size() < 2) return;
  auto const end = ending_of(patient, [](auto& comm) {
    sum_3(comm);
    if (comm.rank() == 1) throw std::runtime_error("boom");
    sum_3(comm);
  });
  CHECK(end.kind == (world_rank() == 1 ? "other" : "peer_error"));
  if (world_rank() == 1) return;
  CHECK(end.peer == 1);
  CHECK_MESSAGE(contains(end.what, "all_reduce"), end.what);
  CHECK_MESSAGE(contains(end.what, "rank 1 failed: boom"), end.what);
  CHECK(end.elapsed < prompt);
}

TEST_CASE("an exception that destroys a communicator ends the others promptly") {
  if (world_size() < 2) return;
  std::string text;
  try {
    mpi_communicator comm(MPI_COMM_WORLD, patient);
    if (world_rank() == 1) throw std::runtime_error("boom");
    sum_3(comm);
  } catch (std::exception const& e) {
    text = e.what();
  }
  CHECK_MESSAGE(
      contains(text, world_rank() == 1 ? "boom" : "rank 1 failed: an exception destroyed"), text);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("an exception that abandons an operation ends the others promptly") {
  if (world_size() < 2) return;
  for (int const culprit : {0, 1}) {
    auto const end = ending_of(patient, [&](auto& comm) {
      auto const x = kept<float>(200000);
      auto handle = comm.all_reduce(ctx, x, x);
      if (comm.rank() == culprit) throw std::runtime_error("unwound");
      handle.wait(ctx);
      comm.barrier(ctx).wait(ctx);
    });
    CHECK(end.elapsed < prompt);
    if (world_rank() == culprit) continue;
    CHECK(end.kind == "peer_error");
    CHECK(end.peer == culprit);
    CHECK_MESSAGE(contains(end.what, "abandoned all_reduce (operation 0) because of an exception"),
                  end.what);
  }
}

TEST_CASE("a rank that leaves is missed") {
  if (world_size() < 3) return;
  auto const end = ending_of(patient, [](auto& comm) {
    comm.barrier(ctx).wait(ctx);
    if (comm.rank() == 2) return;
    gather_12(comm);
    sum_3(comm);
  });
  CHECK(end.elapsed < prompt);
  if (world_rank() == 2) {
    CHECK(end.kind == "none");
    return;
  }
  CHECK(end.kind == "peer_error");
  CHECK(end.peer == 2);
  CHECK_MESSAGE(contains(end.what, "rank 2 left without starting "), end.what);
}

TEST_CASE("a failure is for good") {
  if (world_size() < 2) return;
  int repeated = 0;
  auto const end = ending_of(patient, [&](auto& comm) {
    if (comm.rank() == 1) comm.abort("out of data");
    for (int i = 0; i < 3; ++i) {
      repeated += raises<peer_error>([&] { sum_3(comm); }, {"rank 1 failed: out of data"});
    }
  });
  CHECK(repeated == 3);
  CHECK(end.elapsed < prompt);
}

TEST_CASE("disagreement is reported on every rank") {
  if (world_size() < 2) return;
  struct example {
    std::string text;
    std::function<void(mpi_communicator&, bool odd)> call;
  };
  auto const gather = [](mpi_communicator& comm, std::vector<std::int64_t> counts) {
    counts.resize(at(comm.size()));
    auto const begin =
        std::accumulate(counts.begin(), counts.begin() + comm.rank(), std::int64_t{0});
    auto const data = kept<float>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    comm.all_gather(ctx, data.subspan(at(begin), at(counts[at(comm.rank())])), data, counts)
        .wait(ctx);
  };
  auto const sum = [](mpi_communicator& comm, std::int64_t n, auto op) {
    auto const x = kept<float>(n);
    comm.all_reduce(ctx, x, x, op).wait(ctx);
  };
  std::vector<example> const examples = {
      {"rank 1 started all_gather of 60000 float, rank 0 all_gather of 50000 float",
       [&](auto& comm, bool odd) {
         gather(comm, {20000, odd ? 40000 : 30000});
       }},
      {"rank 1 started all_gather of 5 float, rank 0 all_gather of 5 float, with other counts",
       [&](auto& comm, bool odd) {
         gather(comm, {odd ? 2 : 3, odd ? 3 : 2});
       }},
      {"rank 1 started all_reduce of 70000 float, rank 0 all_reduce of 60000 float",
       [&](auto& comm, bool odd) { sum(comm, odd ? 70000 : 60000, std::plus<>()); }},
      {"or another reduction",
       [&](auto& comm, bool odd) { odd ? sum(comm, 3, maximum()) : sum(comm, 3, std::plus<>()); }},
      {"rank 1 started barrier, rank 0 all_gather of 5 float",
       [&](auto& comm, bool odd) {
         odd ? comm.barrier(ctx).wait(ctx) : gather(comm, {3, 2});
       }},
  };
  for (auto const& example : examples) {
    auto const end =
        ending_of({.deadline = 1s}, [&](auto& comm) { example.call(comm, comm.rank() == 1); });
    CHECK(end.kind == "peer_error");
    CHECK_MESSAGE(contains(end.what, example.text), end.what);
    CHECK(end.peer == (world_rank() == 1 ? 0 : 1));
    CHECK(end.elapsed < prompt);
  }
}

}  // namespace
}  // namespace scape::testing
