// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/comm/hierarchical.hpp>
#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "cases/lagged_mask_allgather.hpp"
#include "cases/sparse_all_gather.hpp"
#include "cases/sparse_all_reduce.hpp"
#include "cases/sparse_reduce_scatter.hpp"
#include "support/allocation_counter.hpp"
#include "support/counting_communicator.hpp"
#include "support/hierarchical_backend.hpp"
#include "support/hierarchical_checks.hpp"
#include "support/optimizer_rig.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {
namespace {

using namespace std::chrono_literals;
using threads = thread_communicator;
using hierarchy = hierarchical_communicator<threads, threads>;
using counting = counting_communicator<threads>;
using counted_hierarchy = hierarchical_communicator<threads, counting>;

using two = hierarchical_backend<2>;
using three = hierarchical_backend<3>;
using four = hierarchical_backend<4>;

template <class C>
constexpr bool has_everything =
    communicator<C>&& has_all_gather<C, float>&& has_all_gather<C, mask_word>&& has_reduce_scatter<
        C, bfloat16>&& has_reduce_scatter<C, float, maximum>&& has_all_reduce<C, double>&&
        has_all_reduce<C, std::int64_t, maximum>&& has_broadcast<C, std::byte>;
static_assert(has_everything<hierarchy> && has_everything<counted_hierarchy>);
static_assert(has_everything<hierarchical_communicator<self_communicator, hierarchy>>);
static_assert(!has_all_gather<hierarchy, std::string>);
static_assert(!std::copy_constructible<hierarchy::handle_type>);
static_assert(std::is_nothrow_move_constructible_v<hierarchy::handle_type>);

//! Only gathers.
struct gatherer {
  using context_type = host_context;
  using handle_type = self_handle;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  template <class T>
  handle_type all_gather(host_context const&, std::span<T const>, std::span<T>,
                         std::span<std::int64_t const>) const {
    return {};
  }
};
static_assert(has_all_gather<hierarchical_communicator<gatherer, threads>, float>);
static_assert(!has_reduce_scatter<hierarchical_communicator<gatherer, threads>, float>);
static_assert(!has_all_reduce<hierarchical_communicator<threads, gatherer>, float>);
static_assert(!has_broadcast<hierarchical_communicator<threads, gatherer>, float>);

host_context const ctx;

struct shape {
  int locals, nodes;
  [[nodiscard]] int size() const { return locals * nodes; }
};
constexpr shape shapes[] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {2, 3}, {3, 2}, {2, 4}, {4, 2}};

//! Calls f(comm) on every rank.
template <class F>
void run_hierarchy(shape s, F const& f, thread_options const& options = {}, int in_flight = 16) {
  run_nodes(
      s.locals, s.nodes,
      [&](threads& intra, threads& inter) {
        host_buffer const workspace(1 << 20);
        hierarchy comm(intra, inter, workspace.bytes(), in_flight);
        f(comm);
      },
      options);
}

TEST_CASE_TEMPLATE("every operation gives the flat communicator's bits", T, float, double,
                   std::int32_t, std::uint8_t, bfloat16, float16) {
  for (auto const s : shapes) {
    CAPTURE(s.locals);
    CAPTURE(s.nodes);
    for (auto const& counts : {equal_counts(s.size(), 0), equal_counts(s.size(), 1),
                               equal_counts(s.size(), 65), uneven_counts(s.size())}) {
      std::vector<std::vector<std::vector<T>>> sums(at(s.size())), maxima(at(s.size()));
      run_threads(s.size(), [&](threads& comm) {
        sums[at(comm.rank())] = everything<T, std::plus<>>(comm, counts);
        maxima[at(comm.rank())] = everything<T, maximum>(comm, counts);
      });
      run_hierarchy(s, [&](hierarchy& comm) {
        CHECK(comm.size() == s.size());
        auto const equal = [](auto const& a, auto const& b) {
          return std::ranges::equal(a, b, same_bits<std::vector<T>, std::vector<T>>);
        };
        CHECK(equal(everything<T, std::plus<>>(comm, counts), sums[at(comm.rank())]));
        CHECK(equal(everything<T, maximum>(comm, counts), maxima[at(comm.rank())]));
      });
    }
  }
}

TEST_CASE("rank b of node a is rank b N + a") {
  run_nodes(3, 2, [](threads& intra, threads& inter) {
    hierarchy const comm(intra, inter, {});
    CHECK(comm.rank() == intra.rank() * 2 + inter.rank());
  });
}

TEST_CASE("sums that round are the same on all ranks") {
  for (auto const s : shapes) {
    for (std::int64_t const n : {1, 2, 1001}) {
      std::vector<std::vector<float>> results(at(s.size()));
      run_hierarchy(s, [&](hierarchy& comm) {
        auto values = normal_gradient(5, comm.rank(), 0, n);
        comm.all_reduce(ctx, values, std::span(values)).wait(ctx);
        results[at(comm.rank())] = values;
      });
      for (auto const& r : results) CHECK(same_bits(r, results[0]));
    }
  }
}

TEST_CASE("sixteen-bit sums are rounded in the node and between nodes") {
  run_hierarchy({2, 2}, [](hierarchy& comm) {
    // Ranks 0 and 2 are node 0, and 256 + 1 is 256 in bfloat16.
    std::vector<bfloat16> x{bfloat16(comm.rank() == 0 ? 256.0F : 1.0F)};
    comm.all_reduce(ctx, x, std::span(x)).wait(ctx);
    CHECK(static_cast<float>(x[0]) == 258);
  });
}

//! Bytes that all ranks of one node receive from other nodes.
template <class F>
std::int64_t bytes_into_node(shape s, F const& f) {
  std::atomic<std::int64_t> bytes = 0;
  run_nodes(s.locals, s.nodes, [&](threads& intra, threads& inner) {
    host_buffer const workspace(1 << 20);
    counting inter(inner);
    counted_hierarchy comm(intra, inter, workspace.bytes());
    f(comm);
    if (inter.rank() != 0) return;
    for (auto const* t :
         {&inter.gathers, &inter.reduce_scatters, &inter.all_reduces, &inter.broadcasts}) {
      bytes += t->bytes;
    }
  });
  return bytes;
}

TEST_CASE("what crosses between nodes is 1 / L of what a flat exchange takes across") {
  for (auto const s : shapes) {
    CAPTURE(s.locals);
    CAPTURE(s.nodes);
    constexpr std::int64_t count = 24, block = count * sizeof(float);
    auto const counts = equal_counts(s.size(), count);
    auto const n = count * s.size();
    std::int64_t const outside = s.size() - s.locals;
    // Flat: each rank of the node receives one block from every rank outside.
    auto const flat = s.locals * outside * block;
    CHECK(s.locals *
              bytes_into_node(s,
                              [&](auto& comm) {
                                std::vector<float> const send(at(n));
                                std::vector<float> recv(at(count));
                                comm.reduce_scatter(ctx, send, std::span(recv), counts).wait(ctx);
                              }) ==
          flat);
    CHECK(s.locals *
              bytes_into_node(s,
                              [&](auto& comm) {
                                std::vector<float> const send(at(count));
                                std::vector<float> recv(at(n));
                                comm.all_gather(ctx, send, std::span(recv), counts).wait(ctx);
                              }) ==
          flat);
    CHECK(s.locals * bytes_into_node(s,
                                     [&](auto& comm) {
                                       std::vector<float> data(at(n));
                                       comm.all_reduce(ctx, data, std::span(data)).wait(ctx);
                                     }) ==
          2 * flat);
    // Flat: the whole to each rank, here once to the node that has no root.
    CHECK(bytes_into_node(s, [&](auto& comm) {
            std::vector<float> data(at(n));
            comm.broadcast(ctx, std::span(data), s.size() - 1).wait(ctx);
          }) == (s.nodes == 1 ? 0 : n * std::int64_t{sizeof(float)}));
  }
}

TEST_CASE("only packed values and masks cross between nodes, 1 / L of a flat step's") {
  for (auto const s : {shape{2, 2}, shape{4, 2}, shape{2, 4}}) {
    layout const l(640 * s.size(), s.size());
    auto o = exact_options(0.25);
    o.statistics = false;
    std::int64_t const k = 160, words = 10, others = s.nodes - 1;
    run_nodes(s.locals, s.nodes, [&](threads& intra, threads& inner) {
      host_buffer const workspace(hierarchical_workspace_bytes<bfloat16>(l.size() / s.locals));
      counting inter(inner);
      counted_hierarchy comm(intra, inter, workspace.bytes());
      sparse_rig<adams, bfloat16, counted_hierarchy> r(comm, l, o);
      r.step(integer_gradient(1, comm.rank(), 0, l.size()));  // the first mask is dense
      inter.reset();
      auto const& bytes = r.step(integer_gradient(1, comm.rank(), 1, l.size())).bytes;
      CHECK(bytes.values == (s.size() - 1) * k * 2);  // to a rank of a flat communicator
      CHECK(inter.reduce_scatters == traffic{1, others * k * 2});
      CHECK(inter.gathers == traffic{2, others * (k * 4 + words * 8)});
      // The agreement is on one number, which rank b = 0 of every node sums.
      CHECK(inter.all_reduces ==
            traffic{1, intra.rank() == s.locals - 1 ? 2 * others * 8 / s.nodes : 0});
    });
  }
}

TEST_CASE("ranks wait in any order, and differently") {
  for (auto const s : {shape{2, 2}, shape{3, 2}, shape{2, 4}}) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      CAPTURE(s.locals);
      CAPTURE(seed);
      run_hierarchy(
          s, [&](hierarchy& comm) { check_random_waits(comm, seed); }, {}, random_in_flight(seed));
    }
  }
}

TEST_CASE("a barrier waits for every rank") {
  for (auto const s : shapes) {
    std::atomic<int> arrived = 0;
    run_hierarchy(s, [&](hierarchy& comm) {
      for (int round = 1; round <= 20; ++round) {
        if (comm.rank() == round % s.size()) std::this_thread::sleep_for(100us);
        ++arrived;
        comm.barrier(ctx).wait(ctx);
        CHECK(arrived >= round * s.size());
      }
    });
  }
}

TEST_CASE("operations allocate nothing") {
  std::barrier barrier(4);
  std::int64_t allocations = 0;
  run_hierarchy({2, 2}, [&](hierarchy& comm) {
    auto const counts = uneven_counts(4);
    auto const n = sum_of(counts);
    std::vector<float> whole(at(n)), block(at(counts[at(comm.rank())])), other(at(n));
    auto const round = [&] {
      auto gather = comm.all_gather(ctx, block, std::span(whole), counts);
      auto reduce = comm.all_reduce(ctx, other, std::span(other));
      gather.wait(ctx);
      auto scatter = comm.reduce_scatter(ctx, whole, std::span(block), counts);
      reduce.wait(ctx);
      scatter.wait(ctx);
      comm.broadcast(ctx, std::span(other), 3).wait(ctx);
    };
    round();
    barrier.arrive_and_wait();
    if (comm.rank() == 0) allocations = allocation_count.load();
    barrier.arrive_and_wait();
    for (int i = 0; i < 10; ++i) round();
    barrier.arrive_and_wait();
    if (comm.rank() == 0) CHECK(allocation_count.load() == allocations);
    barrier.arrive_and_wait();
  });
}

TEST_CASE("wrong arguments are refused by the global rank, and nothing is started") {
  run_nodes(2, 2, [](threads& intra, threads& inter) {
    host_buffer const workspace(hierarchical_workspace_bytes<float>(2 * 8));
    hierarchy comm(intra, inter, workspace.bytes());
    auto const who = "[rank " + std::to_string(comm.rank()) + " of 4]";
    counts_t const counts(4, 8);
    std::vector<float> whole(32), block(8);
    using in = std::span<float const>;
    std::span const all(whole), own(block);
    CHECK(rejects([&] { auto h = comm.all_gather(ctx, in(own).first(7), all, counts); },
                  {"all_gather", who, "send has 7", "expected 8"}));
    CHECK(rejects([&] { auto h = comm.all_gather(ctx, own, all, counts_t(2, 16)); },
                  {"all_gather", who, "counts has 2 entries, expected 4"}));
    CHECK(rejects(
        [&] {
          auto h = comm.reduce_scatter(ctx, all, own, counts_t{8, 8, 8, -1});
        },
        {"reduce_scatter", who, "counts[3] is -1"}));
    auto const next = all.subspan(at(8 * ((comm.rank() + 1) % 4)), 8);
    CHECK(rejects([&] { auto h = comm.reduce_scatter(ctx, all, next, counts); },
                  {"reduce_scatter", who, "recv overlaps send"}));
    CHECK(rejects([&] { auto h = comm.all_reduce(ctx, in(all).first(3), own); },
                  {"all_reduce", who, "8", "3"}));
    CHECK(rejects([&] { auto h = comm.broadcast(ctx, all, 4); }, {"broadcast", who, "root is 4"}));

    // One intra rank's blocks are too long, which both are told.
    counts_t const lopsided{0, 1, 200, 1};
    std::vector<float> long_whole(202), long_block(at(lopsided[at(comm.rank())]));
    CHECK(rejects(
        [&] { auto h = comm.reduce_scatter(ctx, long_whole, std::span(long_block), lopsided); },
        {"reduce_scatter", who, std::to_string(workspace.bytes().size()) + " bytes", "804"}));
    CHECK(rejects([&] { hierarchy(intra, inter, {}, 0); },
                  {"hierarchical_communicator", who, "in_flight is 0"}));

    comm.reduce_scatter(ctx, all, own, counts).wait(ctx);
    comm.all_gather(ctx, long_block, std::span(long_whole), lopsided).wait(ctx);
  });
}

TEST_CASE("a workspace at any misalignment is enough") {
  run_nodes(2, 2, [](threads& intra, threads& inter) {
    for (std::size_t const shift : {0U, 1U, 100U, 255U}) {
      auto const bytes = hierarchical_workspace_bytes<double>(2 * 33);
      host_buffer const workspace(bytes + shift);
      hierarchy comm(intra, inter, workspace.bytes().subspan(shift));
      std::vector<double> const whole(4 * 33, 1.5);
      std::vector<double> block(33);
      comm.reduce_scatter(ctx, whole, std::span(block), counts_t(4, 33)).wait(ctx);
      CHECK(std::ranges::count(block, 6.0) == 33);
    }
  });
}

enum class loss { throws, throws_in_flight, leaves, stalls, disagrees };

TEST_CASE("a rank that is lost ends all others in time") {
  constexpr shape s{2, 3};
  for (auto const how :
       {loss::throws, loss::throws_in_flight, loss::leaves, loss::stalls, loss::disagrees}) {
    for (int const culprit : {0, 4}) {
      for (int kind = 0; kind < 5; ++kind) {
        if (how == loss::disagrees && kind == 4) continue;
        CAPTURE(how);
        CAPTURE(culprit);
        CAPTURE(kind);
        std::atomic<int> ended = 0;
        auto const start = std::chrono::steady_clock::now();
        auto const deadline = how == loss::stalls ? 150ms : 30s;
        auto const everybody = [&](hierarchy& comm) {
          std::vector<float> whole(60), block(10), sums(60);
          counts_t const counts(6, 10);
          auto const start_one = [&](std::int64_t n) -> hierarchy::handle_type {
            std::span const all(whole), out(sums);
            if (kind == 0) return comm.all_gather(ctx, block, all, counts);
            if (kind == 1) return comm.reduce_scatter(ctx, all, std::span(block), counts);
            if (kind == 2) return comm.all_reduce(ctx, all.first(at(n)), out.first(at(n)));
            if (kind == 3) return comm.broadcast(ctx, all.first(at(n)), 5);
            return comm.barrier(ctx);
          };
          try {
            start_one(60).wait(ctx);
            if (comm.rank() == culprit) {
              if (how == loss::leaves) return;
              if (how == loss::stalls) std::this_thread::sleep_for(400ms);
              if (how == loss::throws) throw std::runtime_error("the disk is full");
              if (how == loss::throws_in_flight) {
                auto const handle = start_one(60);
                throw std::runtime_error("the disk is full");
              }
              if (how == loss::disagrees && kind < 2) comm.barrier(ctx).wait(ctx);
            }
            start_one(how == loss::disagrees && comm.rank() == culprit ? 59 : 60).wait(ctx);
            comm.barrier(ctx).wait(ctx);
            CHECK(false);
          } catch (peer_error const& e) {
            ++ended;
            CHECK(e.rank() == comm.rank());
            CHECK(e.size() == s.size());
            CHECK(e.peer() >= 0);
            CHECK(e.peer() < s.size());
            auto const mate = [&](int r) { return e.peer() / 3 == r / 3 || e.peer() % 3 == r % 3; };
            CHECK(mate(comm.rank()));
            if (how == loss::throws) {
              CHECK(std::string(e.what()).find("the disk is full") != std::string::npos);
            }
            auto const again = message_of<peer_error>([&] { comm.barrier(ctx).wait(ctx); });
            CHECK(again == e.what());
            // Who stays does not keep anybody waiting.
            while (ended < s.size() - 1 && std::chrono::steady_clock::now() - start < 10s) {
              std::this_thread::sleep_for(1ms);
            }
            throw;
          }
        };
        CHECK_THROWS(run_hierarchy(s, everybody, {.deadline = deadline}));
        CHECK(ended >= s.size() - 1);
        CHECK(std::chrono::steady_clock::now() - start < 10s);
      }
    }
  }
}

TEST_CASE("those who share a part with the lost rank alone name it") {
  for (auto const s : {shape{4, 1}, shape{1, 4}}) {
    auto const everybody = [](hierarchy& comm) {
      if (comm.rank() == 2) throw std::runtime_error("no memory left");
      std::vector<float> x(100);
      try {
        comm.all_reduce(ctx, x, std::span(x)).wait(ctx);
        CHECK(false);
      } catch (peer_error const& e) {
        CHECK(e.peer() == 2);
        CHECK(std::string(e.what()).find("no memory left") != std::string::npos);
      }
    };
    CHECK_THROWS_AS(run_hierarchy(s, everybody), std::runtime_error);
  }
}

//! |m| (1 + age): what all ranks of a shard agree on.
struct moment_statistic {
  static constexpr bool before_send = false;
  float operator()(statistic_input const& in) const noexcept {
    return std::abs(in.moment) * (1 + in.age);
  }
};

//! The weights of every rank after each step, by the flat optimizer and by one on the sums of
//! nodes.
template <class Statistic, class Gradient>
void check_dense_in_node(shape s, Gradient const& gradient_of) {
  using optimizer = sparse_optimizer<adams, threads, float, Statistic>;
  constexpr int steps = 8;
  auto const n = 40 * std::int64_t{s.size()};
  auto const block = n / s.locals;
  auto o = exact_options(0.25);
  o.skip_nonfinite = false;
  std::vector<std::vector<float>> flat;
  run_threads(s.size(), [&](threads& comm) {
    rig<optimizer> r(comm, layout(n, s.size(), layout_options{.alignment = 1}), o);
    for (int t = 0; t < steps; ++t) {
      r.step(gradient_of(comm.rank() % s.nodes, comm.rank(), t, n), {.lr = 0.25F});
      if (comm.rank() == 0) flat.push_back(r.weights);
    }
  });
  run_nodes(s.locals, s.nodes, [&](threads& intra, threads& inter) {
    rig<optimizer> r(inter, layout(block, s.nodes, layout_options{.alignment = 1}), o);
    auto weights = initial_weights(n);
    auto const own = std::span(weights).subspan(at(intra.rank() * block), at(block));
    std::ranges::copy(own, r.weights.begin());
    counts_t const counts(at(s.locals), block);
    std::vector<float> sums(at(block));
    for (int t = 0; t < steps; ++t) {
      auto const rank = intra.rank() * s.nodes + inter.rank();
      auto const gradient = gradient_of(inter.rank(), rank, t, n);
      intra.reduce_scatter(ctx, gradient, std::span(sums), counts).wait(ctx);
      r.step(sums, {.lr = 0.25F, .gradient_divisor = static_cast<float>(s.locals)});
      intra.all_gather(ctx, r.weights, std::span(weights), counts).wait(ctx);
      CHECK(same_bits(weights, flat[at(t)]));
    }
  });
}

TEST_CASE("dense in the node and sparse between nodes equals the flat sparse optimizer") {
  for (auto const s : {shape{1, 2}, shape{2, 1}, shape{2, 2}, shape{2, 4}, shape{4, 2}}) {
    CAPTURE(s.locals);
    CAPTURE(s.nodes);
    check_dense_in_node<moment_statistic>(
        s, [](int, int rank, int t, std::int64_t n) { return integer_gradient(4, rank, t, n); });
    // This statistic looks at the residual: a rank's own, or the mean of its node.
    check_dense_in_node<staleness_aware_statistic>(
        s, [](int node, int, int t, std::int64_t n) { return integer_gradient(4, node, t, n); });
  }
}

TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_sums, two, three, four);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_by_hand, two, three);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_dense, two, three, four);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_traffic, three);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_lost_peer, three, four);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_arguments, two);
TEST_CASE_TEMPLATE_INVOKE(reduce_scatter_limit, two);

TEST_CASE_TEMPLATE_INVOKE(all_gather_values, two, three, four);
TEST_CASE_TEMPLATE_INVOKE(all_gather_types, two, three);
TEST_CASE_TEMPLATE_INVOKE(all_gather_long, two, three);
TEST_CASE_TEMPLATE_INVOKE(all_gather_any, two, three);
TEST_CASE_TEMPLATE_INVOKE(all_gather_traffic, two);
TEST_CASE_TEMPLATE_INVOKE(all_gather_lost_peer, two, three);
TEST_CASE_TEMPLATE_INVOKE(all_gather_arguments, two);

TEST_CASE_TEMPLATE_INVOKE(all_reduce_sums, two, three, four);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_traffic, two, three);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_lost_peer, two, three);
TEST_CASE_TEMPLATE_INVOKE(all_reduce_arguments, two);

TEST_CASE_TEMPLATE_INVOKE(lagged_ring, two, three, four);
TEST_CASE_TEMPLATE_INVOKE(lagged_traffic, two, three);
TEST_CASE_TEMPLATE_INVOKE(lagged_arguments, two);
TEST_CASE_TEMPLATE_INVOKE(lagged_lost_peer, two, three);

}  // namespace
}  // namespace scape::testing
