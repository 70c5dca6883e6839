// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A communicator of one rank on a stream: every operation is a copy.

#include <cstdint>
#include <functional>
#include <span>

#include <scape/context/cuda.hpp>

namespace scape::bench {

//! Nothing to wait for: the copy is on the stream that the result is used on.
struct one_rank_handle {
  void wait(cuda_context const&) const noexcept {}
};

class one_rank {
 public:
  using context_type = cuda_context;
  using handle_type = one_rank_handle;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  template <class T>
  one_rank_handle all_gather(cuda_context const& ctx, std::span<T const> send, std::span<T> recv,
                             std::span<std::int64_t const>) const {
    return copy(ctx, send, recv);
  }
  template <class T, class Op = std::plus<>>
  one_rank_handle reduce_scatter(cuda_context const& ctx, std::span<T const> send,
                                 std::span<T> recv, std::span<std::int64_t const>, Op = {}) const {
    return copy(ctx, send, recv);
  }
  template <class T, class Op = std::plus<>>
  one_rank_handle all_reduce(cuda_context const& ctx, std::span<T const> send, std::span<T> recv,
                             Op = {}) const {
    return copy(ctx, send, recv);
  }

 private:
  template <class T>
  static one_rank_handle copy(cuda_context const& ctx, std::span<T const> send, std::span<T> recv) {
    if (send.data() == recv.data() || send.empty()) return {};
    detail::check_cuda(cudaMemcpyAsync(recv.data(), send.data(), send.size_bytes(),
                                       cudaMemcpyDeviceToDevice, ctx.stream),
                       "one_rank", "cudaMemcpyAsync");
    return {};
  }
};

}  // namespace scape::bench
