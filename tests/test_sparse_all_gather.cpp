// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/float16.hpp>
#include <scape/sparse_all_gather.hpp>

#include "support/counting_communicator.hpp"
#include "support/failing_communicator.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using scape::layout;
using scape::mask_word;
using scape::run_threads;
using scape::self_communicator;
using scape::thread_communicator;

//! An element whose value names the rank and the place it comes from.
struct tagged {
  std::int32_t rank;
  std::int64_t element;
  friend bool operator==(tagged const&, tagged const&) = default;
};

template <class T>
T value_of(int rank, std::int64_t j) {
  if constexpr (std::is_same_v<T, tagged>) {
    return {rank, j};
  } else {
    return T(static_cast<float>(rank * 16 + j % 16));
  }
}

template <class T, class Comm>
void run(scape::host_context ctx, Comm& comm, masked_problem const& p, std::vector<T>& vector) {
  scape::host_buffer const scratch(scape::sparse_collective_bytes<T>(p.plan.total()));
  ctx.scratch = scratch.bytes();
  scape::sparse_all_gather(ctx, comm, p.l, p.plan, std::span<mask_word const>(p.mask),
                           std::span(vector));
}

template <class T>
void check_values(masked_problem const& p, scape::host_pool* pool = nullptr) {
  run_threads(p.l.shards(), [&](thread_communicator& comm) {
    auto vector = make_vector(p.l.size(), [&](auto j) { return value_of<T>(comm.rank(), j); });
    if (pool != nullptr && comm.rank() != 0) {
      run(scape::host_context{}, comm, p, vector);
    } else {
      run(scape::host_context{{}, pool}, comm, p, vector);
    }
    std::vector<T> expected;
    for (int r = 0; r < p.l.shards(); ++r) {
      for (std::int64_t i = 0; i < p.l.shard_size(r); ++i) {
        auto const j = p.l.begin(r) + i;
        expected.push_back(value_of<T>(p.bits[at(j)] != 0 ? r : comm.rank(), j));
      }
    }
    CHECK(same_bits(vector, expected));
  });
}

}  // namespace

TEST_CASE("every rank receives the owners' elements under the mask, and no others") {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    for (auto const& l : some_layouts(ranks)) {
      for (double const density : {0.0, 0.1, 0.5, 1.0}) {
        CAPTURE(ranks);
        CAPTURE(l.size());
        CAPTURE(density);
        check_values<float>({l, density});
      }
    }
  }
}

TEST_CASE("elements of any trivially copyable type") {
  masked_problem const p({500, 3}, 0.3);
  check_values<double>(p);
  check_values<scape::bfloat16>(p);
  run_threads(3, [&](thread_communicator& comm) {
    auto vector = make_vector(500, [&](auto j) { return value_of<tagged>(comm.rank(), j); });
    run(scape::host_context{}, comm, p, vector);
    bool right = true;
    for (int r = 0; r < 3; ++r) {
      for (std::int64_t j = p.l.begin(r); j < p.l.begin(r) + p.l.shard_size(r); ++j) {
        auto const from = p.bits[at(j)] != 0 ? r : comm.rank();
        right = right && vector[at(j)] == value_of<tagged>(from, j);
      }
    }
    CHECK(right);
  });
}

TEST_CASE("a pool changes nothing") {
  scape::host_pool pool(3);
  check_values<float>({layout(100000, 2), 0.1}, &pool);
}

TEST_CASE("NaN payloads, infinities and zeros travel as they are") {
  masked_problem const p({640, 2}, 0.5);
  run_threads(2, [&](thread_communicator& comm) {
    auto vector = make_vector(640, [&](auto j) { return any_float(9, 0, j); });
    auto const expected = vector;
    for (std::int64_t j = 0; j < 640; ++j) {
      bool const own = j / 320 == comm.rank();
      if (!own && p.bits[at(j)] != 0) vector[at(j)] = 77;
    }
    run(scape::host_context{}, comm, p, vector);
    CHECK(same_bits(vector, expected));
  });
}

TEST_CASE("one all-gather of the predicted bytes") {
  for (auto const& l : some_layouts(4)) {
    masked_problem const p(l, 0.2);
    run_threads(4, [&](thread_communicator& inner) {
      counting_communicator<thread_communicator> comm(inner);
      auto vector = std::vector<double>(at(l.size()));
      run(scape::host_context{}, comm, p, vector);
      CHECK(comm.gathers == traffic{1, l.value_wire_bytes(p.plan, comm.rank(), sizeof(double))});
      CHECK(comm.reduce_scatters.calls + comm.all_reduces.calls + comm.broadcasts.calls == 0);
    });
  }
}

TEST_CASE("a failure leaves the vector as it was") {
  for (auto const point : {failure_point::start, failure_point::wait}) {
    failing_communicator failing(point);
    masked_problem const p({100, 1}, 0.3);
    auto vector = normal_gradient(1, 0, 0, 100);
    auto const before = vector;
    CHECK(raises<scape::peer_error>([&] { run(scape::host_context{}, failing, p, vector); },
                                    {"rank 1 is gone"}));
    CHECK(same_bits(vector, before));
  }
  masked_problem const p({300, 3}, 0.3);
  scape::thread_group group(3, {.deadline = std::chrono::seconds(20)});
  CHECK_THROWS_AS(run_threads(group,
                              [&](thread_communicator& comm) {
                                if (comm.rank() == 0) throw std::runtime_error("lost");
                                auto vector = normal_gradient(1, comm.rank(), 0, 300);
                                auto const before = vector;
                                try {
                                  run(scape::host_context{}, comm, p, vector);
                                  CHECK(false);
                                } catch (scape::peer_error const& e) {
                                  CHECK(e.peer() == 0);
                                }
                                CHECK(same_bits(vector, before));
                              }),
                  std::runtime_error);
}

TEST_CASE("sizes that disagree are refused and nothing is changed") {
  self_communicator self;
  masked_problem const p({130, 1}, 0.3);
  auto vector = normal_gradient(1, 0, 0, 130);
  auto const before = vector;
  CHECK(rejects_mismatches(p, "sparse_all_gather", [&](masked_problem const& q) {
    run(scape::host_context{}, self, q, vector);
  }));
  auto short_vector = std::vector<float>(129);
  CHECK(rejects([&] { run(scape::host_context{}, self, p, short_vector); },
                {"sparse_all_gather", "vector", "129", "130"}));
  CHECK(rejects(
      [&] {
        run(scape::host_context{}, self, {{130, 2}, 0.3}, vector);
      },
      {"shards is 2", "expected 1"}));
  scape::host_buffer const scratch(100);
  scape::host_context const ctx{scratch.bytes()};
  CHECK(rejects(
      [&] {
        scape::sparse_all_gather(ctx, self, p.l, p.plan, std::span<mask_word const>(p.mask),
                                 std::span(vector));
      },
      {"sparse_all_gather", "100 bytes", "156"}));
  CHECK(same_bits(vector, before));
}
