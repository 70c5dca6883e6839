// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Cases of sparse_all_gather that hold on every backend.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include <scape/float16.hpp>
#include <scape/sparse_all_gather.hpp>

#include "support/counting_communicator.hpp"
#include "support/failing_communicator.hpp"
#include "support/masked_buffers.hpp"
#include "support/masked_problem.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_bitmask.hpp"

namespace scape::testing {

//! An element whose value names the rank and the place it comes from.
struct tagged {
  std::int32_t rank;
  std::int32_t twice;
  std::int64_t element;
};

template <class T>
T tagged_value(int rank, std::int64_t j) {
  if constexpr (std::is_same_v<T, tagged>) {
    return {rank, 2 * rank, j};
  } else {
    return T(static_cast<float>(rank * 16 + j % 16));
  }
}

template <class Backend, class T>
using gathered_vector = guarded<T, typename Backend::template vector<std::byte>>;

template <class Backend, class T, class Comm>
void all_gather(Comm& comm, masked_problem const& p, std::span<T> vector) {
  auto const mask = mask_on<Backend>(p);
  Backend::run(collective_bytes<Backend, T>(p), [&](auto const& ctx) {
    sparse_all_gather(ctx, comm, p.l, p.plan, std::span<mask_word const>(mask), vector);
    complete(comm, ctx);
  });
}

template <class Backend, class T>
void check_gathered(typename Backend::communicator& comm, masked_problem const& p,
                    std::int64_t offset = 0) {
  auto const own = comm.rank();
  gathered_vector<Backend, T> vector(
      make_vector(p.l.size(), [&](auto j) { return tagged_value<T>(own, j); }), offset);
  all_gather<Backend, T>(comm, p, vector.span());
  std::vector<T> expected;
  for (int r = 0; r < p.l.shards(); ++r) {
    for (std::int64_t j = p.l.begin(r); j < p.l.begin(r) + p.l.shard_size(r); ++j) {
      expected.push_back(tagged_value<T>(p.bits[at(j)] != 0 ? r : own, j));
    }
  }
  CHECK(same_bits(vector.span(), expected));
  CHECK(vector.intact());
}

TEST_CASE_TEMPLATE_DEFINE("every rank receives the owners' elements under the mask, and no others",
                          Backend, all_gather_values) {
  for (int const ranks : {1, 2, 3, 4, 7, 8}) {
    if (!Backend::has_ranks(ranks)) continue;
    Backend::ranks(ranks, [&](auto& comm) {
      for (auto const& l : some_layouts(ranks)) {
        if (Backend::cuda && ranks > 3 && l.size() < 65) continue;
        for (double const density : {0.0, 0.1, 0.5, 1.0}) {
          CAPTURE(ranks);
          CAPTURE(l.size());
          CAPTURE(density);
          check_gathered<Backend, float>(comm, {l, density}, density < 0.2 ? 1 : 0);
        }
      }
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("elements of any trivially copyable type", Backend, all_gather_types) {
  if (!Backend::has_ranks(3)) return;
  masked_problem const p({500, 3}, 0.3);
  Backend::ranks(3, [&](auto& comm) {
    check_gathered<Backend, double>(comm, p);
    check_gathered<Backend, bfloat16>(comm, p, 1);
    check_gathered<Backend, float16>(comm, p, 1);
    check_gathered<Backend, tagged>(comm, p, 1);
  });
}

TEST_CASE_TEMPLATE_DEFINE("a long vector", Backend, all_gather_long) {
  if (!Backend::has_ranks(2)) return;
  masked_problem const p({100003, 2}, 0.1);
  Backend::ranks(2, [&](auto& comm) { check_gathered<Backend, float>(comm, p); });
}

//! For two ranks: what the owners have arrives everywhere.
template <class Backend, class T>
void check_arrives(typename Backend::communicator& comm, masked_problem const& p,
                   std::vector<T> const& expected) {
  gathered_vector<Backend, T> vector(expected);
  for (std::int64_t j = 0; j < p.l.size(); ++j) {
    bool const own = j / p.l.shard_size(0) == comm.rank();
    if (!own && p.bits[at(j)] != 0) vector.span()[at(j)] = T(77.0F);
  }
  all_gather<Backend, T>(comm, p, vector.span());
  CHECK(same_bits(vector.span(), expected));
}

TEST_CASE_TEMPLATE_DEFINE("NaN payloads, infinities and zeros travel as they are", Backend,
                          all_gather_any) {
  if (!Backend::has_ranks(2)) return;
  masked_problem const p({640, 2}, 0.5);
  Backend::ranks(2, [&](auto& comm) {
    check_arrives<Backend>(comm, p, make_vector(640, [&](auto j) { return any_float(9, 0, j); }));
    // A stream marks the places of what is yet to come with such NaNs.
    auto const marks = [&](auto first) {
      return make_vector(640, [&](auto j) {
        std::vector<std::int64_t> const sent = p.elements(j < 320 ? 0 : 1);
        auto const i = std::ranges::find(sent, j) - sent.begin();
        using bits = decltype(first);
        return static_cast<bits>(i < 16 / std::ptrdiff_t{sizeof(bits)} - 1 ? first + i : 0);
      });
    };
    auto const as = [](auto const& bits, auto zero) {
      return make_vector(std::ssize(bits),
                         [&](auto j) { return std::bit_cast<decltype(zero)>(bits[at(j)]); });
    };
    check_arrives<Backend>(comm, p, as(marks(std::uint32_t{0x7fc5ca9e}), float{}));
    check_arrives<Backend>(comm, p, as(marks(std::uint16_t{0x7fd5}), bfloat16{}));
    check_arrives<Backend>(comm, p, as(marks(std::uint16_t{0x7fd5}), float16{}));
  });
}

TEST_CASE_TEMPLATE_DEFINE("one all-gather of the predicted bytes", Backend, all_gather_traffic) {
  if (!Backend::has_ranks(4)) return;
  Backend::ranks(4, [&](auto& inner) {
    for (auto const& l : some_layouts(4)) {
      masked_problem const p(l, 0.2);
      counting_communicator<typename Backend::communicator> comm(inner);
      typename Backend::template vector<double> vector(at(l.size()));
      all_gather<Backend, double>(comm, p, vector);
      CHECK(comm.gathers == traffic{1, l.value_wire_bytes(p.plan, comm.rank(), sizeof(double))});
      CHECK(comm.reduce_scatters.calls + comm.all_reduces.calls + comm.broadcasts.calls == 0);
    }
  });
}

TEST_CASE_TEMPLATE_DEFINE("a failure leaves the vector as it was", Backend, all_gather_failure) {
  for (auto const point : {failure_point::start, failure_point::wait}) {
    failing_communicator<typename Backend::context> failing(point);
    masked_problem const p({100, 1}, 0.3);
    auto const before = normal_gradient(1, 0, 0, 100);
    typename Backend::template vector<float> vector(before.begin(), before.end());
    CHECK(raises<peer_error>([&] { all_gather<Backend, float>(failing, p, vector); },
                             {"rank 1 is gone"}));
    CHECK(same_bits(vector, before));
  }
}

TEST_CASE_TEMPLATE_DEFINE("a peer's failure leaves the survivors' vectors as they were", Backend,
                          all_gather_lost_peer) {
  if (!Backend::has_ranks(3)) return;
  for (std::int64_t const alignment : {1, 128}) {
    masked_problem const p({300, 3, layout_options{.alignment = alignment}}, 0.3);
    auto const body = [&](auto& comm) {
      if (comm.rank() == 0) throw std::runtime_error("lost");
      auto const before = normal_gradient(1, comm.rank(), 0, 300);
      typename Backend::template vector<float> vector(before.begin(), before.end());
      try {
        all_gather<Backend, float>(comm, p, vector);
        CHECK(false);
      } catch (peer_error const& e) {
        CHECK(e.peer() == (Backend::cuda ? -1 : 0));
      }
      CHECK(same_bits(vector, before));
    };
    CHECK_THROWS_AS(
        Backend::ranks(3, body,
                       Backend::cuda ? std::chrono::milliseconds(300) : std::chrono::seconds(20)),
        std::runtime_error);
  }
}

TEST_CASE_TEMPLATE_DEFINE("sizes that disagree are refused and nothing is changed", Backend,
                          all_gather_arguments) {
  Backend::ranks(1, [](auto& comm) {
    masked_problem const p({130, 1}, 0.3);
    auto const before = normal_gradient(1, 0, 0, 130);
    typename Backend::template vector<float> vector(before.begin(), before.end());
    CHECK(rejects_mismatches<Backend>(p, "sparse_all_gather", [&](masked_problem const& q) {
      all_gather<Backend, float>(comm, q, vector);
    }));
    CHECK(rejects([&] { all_gather<Backend, float>(comm, p, std::span(vector).first(129)); },
                  {"sparse_all_gather", "vector", "129", "130"}));
    masked_problem const halves({130, 2}, 0.3);
    CHECK(rejects([&] { all_gather<Backend, float>(comm, halves, vector); },
                  {"shards is 2", "expected 1"}));
    auto const mask = mask_on<Backend>(p);
    Backend::run(256, [&](auto ctx) {
      auto const run = [&] {
        sparse_all_gather(ctx, comm, p.l, p.plan, std::span<mask_word const>(mask),
                          std::span(vector));
      };
      if constexpr (Backend::cuda) {  // enough for the values, not for the mask's ranks
        CHECK(rejects(run, {"sparse_all_gather", "256 bytes"}));
      }
      ctx.scratch = ctx.scratch.first(100);
      CHECK(rejects(run, {"sparse_all_gather", "100 bytes", "156"}));
    });
    CHECK(same_bits(vector, before));
  });
}

}  // namespace scape::testing
