// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Counts the calls and bytes that go through a communicator.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#include <scape/concepts.hpp>
#include <scape/layout.hpp>

namespace scape::testing {

//! Calls that were started, and the bytes they bring to this rank from its peers. An all_reduce
//! counts as its reduce-scatter and all-gather: 2 (P - 1) / P of its bytes, rounded down.
struct traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  friend bool operator==(traffic const&, traffic const&) = default;
};

//! A sparse reduce-scatter of a plan's values, as rank `rank` sees it. On a stream a second one of
//! one value per rank follows where some rank gets none.
inline traffic reduce_scatter_of(layout const& l, send_plan const& plan, int rank,
                                 std::size_t value_bytes, bool on_stream) {
  traffic result{1, l.value_wire_bytes(plan, rank, value_bytes)};
  if (on_stream && plan.total() > 0 && std::ranges::count(plan.counts, 0) > 0) {
    ++result.calls;
    result.bytes += (l.shards() - 1) * static_cast<std::int64_t>(value_bytes);
  }
  return result;
}

//! Refers to `comm`; offers the operations that `C` has.
template <communicator C>
class counting_communicator {
 public:
  using context_type = typename C::context_type;
  using handle_type = typename C::handle_type;

  explicit counting_communicator(C& comm) noexcept : comm_(&comm) {}

  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }

  [[nodiscard]] int device() const requires requires(C const& comm) { comm.device(); }
  { return comm_->device(); }
  [[nodiscard]] int const* failure_flag() const requires requires(C const& comm) {
    comm.failure_flag();
  }
  { return comm_->failure_flag(); }
  void synchronize(context_type const& ctx) requires requires(C& comm, context_type const& on) {
    comm.synchronize(on);
  }
  { comm_->synchronize(ctx); }

  template <class T>
  requires has_all_gather<C, T> handle_type
  all_gather(context_type const& ctx, std::type_identity_t<std::span<T const>> send,
             std::span<T> recv, std::span<std::int64_t const> counts) {
    auto handle = comm_->all_gather(ctx, send, recv, counts);
    add(gathers, std::ssize(recv) - std::ssize(send), sizeof(T));
    return handle;
  }

  template <class T, class Op = std::plus<>>
  requires has_reduce_scatter<C, T, Op> handle_type
  reduce_scatter(context_type const& ctx, std::type_identity_t<std::span<T const>> send,
                 std::span<T> recv, std::span<std::int64_t const> counts, Op op = {}) {
    auto handle = comm_->reduce_scatter(ctx, send, recv, counts, op);
    add(reduce_scatters, std::ssize(send) - std::ssize(recv), sizeof(T));
    return handle;
  }

  template <class T, class Op = std::plus<>>
  requires has_all_reduce<C, T, Op> handle_type
  all_reduce(context_type const& ctx, std::type_identity_t<std::span<T const>> send,
             std::span<T> recv, Op op = {}) {
    auto handle = comm_->all_reduce(ctx, send, recv, op);
    ++all_reduces.calls;
    all_reduces.bytes += 2 * (size() - 1) * bytes_of(std::ssize(send), sizeof(T)) / size();
    return handle;
  }

  template <class T>
  requires has_broadcast<C, T> handle_type broadcast(context_type const& ctx, std::span<T> data,
                                                     int root) {
    auto handle = comm_->broadcast(ctx, data, root);
    add(broadcasts, rank() == root ? 0 : std::ssize(data), sizeof(T));
    return handle;
  }

  handle_type barrier(context_type const& ctx) requires requires(C& comm) { comm.barrier(ctx); }
  {
    auto handle = comm_->barrier(ctx);
    ++barriers.calls;
    return handle;
  }

  void reset() noexcept { gathers = reduce_scatters = all_reduces = broadcasts = barriers = {}; }

  traffic gathers, reduce_scatters, all_reduces, broadcasts, barriers;

 private:
  static std::int64_t bytes_of(std::int64_t count, std::size_t element_size) noexcept {
    return count * static_cast<std::int64_t>(element_size);
  }
  static void add(traffic& sum, std::int64_t count, std::size_t element_size) noexcept {
    ++sum.calls;
    sum.bytes += bytes_of(count, element_size);
  }

  C* comm_;
};

}  // namespace scape::testing
