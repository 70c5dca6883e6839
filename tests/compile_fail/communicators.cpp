// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <scape/scape.hpp>
#include <span>
#include <string>
#include <vector>

namespace {

using counts_t = std::span<std::int64_t const>;

struct core {
  using context_type = scape::host_context;
  using handle_type = scape::self_handle;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
};
static_assert(scape::communicator<core>);

struct gathers_only : core {
  template <class T>
  handle_type all_gather(context_type const&, std::span<T const>, std::span<T>, counts_t) const {
    return {};
  }
};

struct gather_returns_int : core {
  template <class T>
  int all_gather(context_type const&, std::span<T const>, std::span<T>, counts_t) const {
    return 0;
  }
};

struct rank_may_throw : gathers_only {
  [[nodiscard]] int rank() const { return 0; }
};

struct stream_context {
  std::span<std::byte> scratch;
};

}  // namespace

int main() {
  scape::layout const layout(64, 1);
  scape::send_plan plan;
  std::vector<scape::mask_word> mask(1);
  std::vector<float> dense(64), values;
  std::vector<std::string> strings(64);
  std::span<scape::mask_word const> const bits(mask);
  scape::host_context const ctx;
  [[maybe_unused]] auto reduce_scatter = [&](auto comm, auto const& context) {
    scape::sparse_reduce_scatter(context, comm, layout, plan, bits, std::span<float const>(dense),
                                 std::span<float>(values));
  };
  [[maybe_unused]] auto all_gather = [&](auto comm, auto const& context, auto& vector) {
    scape::sparse_all_gather(context, comm, layout, plan, bits, std::span(vector));
  };
  scape::self_communicator const comm;
#if defined(CASE_no_reduce_scatter)  // expect: has_reduce_scatter
  reduce_scatter(gathers_only(), ctx);
#elif defined(CASE_gather_returns_int)          // expect: has_all_gather
  all_gather(gather_returns_int(), ctx, dense);
#elif defined(CASE_lagged_without_gather)       // expect: has_all_gather
  scape::lagged_mask_allgather<core> const lagged(layout, 0, 1, mask);
#elif defined(CASE_rank_may_throw)              // expect: noexcept
  all_gather(rank_may_throw(), ctx, dense);
#elif defined(CASE_not_transportable)           // expect: transportable
  all_gather(comm, ctx, strings);
#elif defined(CASE_context_of_another_backend)  // expect: stream_context
  reduce_scatter(comm, stream_context());
#else
  reduce_scatter(comm, ctx);
  all_gather(comm, ctx, dense);
  all_gather(gathers_only(), ctx, dense);
#endif
}
