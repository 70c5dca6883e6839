// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <scape/scape.hpp>
#include <span>

namespace {

struct in_double {
  static constexpr bool before_send = false;
  double operator()(scape::statistic_input const& in) const { return in.moment; }
};

struct no_timing {
  float operator()(scape::statistic_input const& in) const { return in.moment; }
};

struct by_moment : no_timing {
  static constexpr bool before_send = false;
};

struct no_collectives {
  using context_type = scape::host_context;
  using handle_type = scape::self_handle;
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
};

template <class Statistic>
using sparse = scape::sparse_optimizer<scape::adams, scape::self_communicator, float, Statistic>;

template <class Optimizer>
std::size_t bytes() {
  return Optimizer::storage_bytes(scape::layout(64, 1), {});
}

}  // namespace

int main() {
#if defined(CASE_statistic_in_double)  // expect: coordinate_statistic
  bytes<sparse<in_double>>();
#elif defined(CASE_statistic_without_timing)    // expect: coordinate_statistic
  bytes<sparse<no_timing>>();
#elif defined(CASE_dense_without_collectives)   // expect: has_reduce_scatter
  bytes<scape::dense_optimizer<scape::adams, no_collectives>>();
#elif defined(CASE_sparse_without_collectives)  // expect: has_reduce_scatter
  bytes<scape::sparse_optimizer<scape::adams, no_collectives>>();
#elif defined(CASE_copied)                      // expect: deleted
  sparse<by_moment> copy(std::declval<sparse<by_moment> const&>());
#else
  bytes<sparse<by_moment>>();
#endif
}
