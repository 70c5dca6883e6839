// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A communicator of one rank whose operations fail, at their start or when they are waited for.

#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/error.hpp>

namespace scape::testing {

enum class failure_point { start, wait };

template <class Context = host_context>
class failing_communicator {
 public:
  using context_type = Context;
  struct handle_type {
    void wait(Context const&) { throw peer_error("wait", "rank 1 is gone", 1, 0, 1); }
  };

  explicit failing_communicator(failure_point point) : point_(point) {}
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  template <class T>
  handle_type all_gather(Context const&, std::type_identity_t<std::span<T const>>, std::span<T>,
                         std::span<std::int64_t const>) {
    return fail();
  }
  template <class T, class Op = std::plus<>>
  handle_type reduce_scatter(Context const&, std::type_identity_t<std::span<T const>>, std::span<T>,
                             std::span<std::int64_t const>, Op = {}) {
    return fail();
  }
  template <class T, class Op = std::plus<>>
  handle_type all_reduce(Context const&, std::type_identity_t<std::span<T const>>, std::span<T>,
                         Op = {}) {
    return fail();
  }

 private:
  [[nodiscard]] handle_type fail() const {
    if (point_ == failure_point::start) throw peer_error("start", "rank 1 is gone", 1, 0, 1);
    return {};
  }
  failure_point point_;
};

}  // namespace scape::testing
