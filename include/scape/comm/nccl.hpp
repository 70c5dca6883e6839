// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks as GPUs, over NCCL. Needs the CUDA runtime and NCCL, not nvcc.
//!
//!     scape::nccl_communicator comm(id, rank, size);  // on the current device, in every rank
//!     comm.all_reduce(ctx, std::span<float const>(mine), sum).wait(ctx);
//!     comm.synchronize(ctx);                          // or an error, never a hang
//!
//! Operations enqueue on ctx.stream and return; they neither allocate nor synchronise and may be
//! captured. A handle's `wait` orders another stream behind the operation. Destroy graphs that hold
//! operations first, then streams, then the communicator.
//!
//! One thread that drives several communicators makes their calls in an nccl_group, or between
//! ncclGroupStart and ncclGroupEnd. Nothing is enqueued before the group's end: call its handles'
//! `wait`, also for the same stream, after that and before more work on these streams.
//!
//! Messages are enqueued as well, and on a stream one operation runs after the other: ranks that
//! send to each other, or to themselves, start both sides in an nccl_group. NCCL does not compare
//! the two sides of a message: their lengths and types have to be equal.
//!
//! Failures show in `check`, `synchronize` and the next operation: peer_error if a peer is gone or
//! late, nccl_error or cuda_error otherwise. They end the communicator: kernels that read
//! `failure_flag` see 1 from then on, collectives that run give up, later calls throw at once.

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/cuda.hpp>
#include <scape/detail/collective_arguments.hpp>
#include <scape/detail/nccl/engine.hpp>
#include <scape/detail/nccl/support.hpp>
#include <scape/error.hpp>

namespace scape {

//! The name of a new communicator; one rank makes it and hands it to the others.
inline ncclUniqueId nccl_unique_id() {
  ncclUniqueId id;
  detail::check_nccl(ncclGetUniqueId(&id), "nccl_unique_id", "ncclGetUniqueId");
  return id;
}

//! ncclGroupStart ... ncclGroupEnd. The destructor ends a group that an exception left open.
class nccl_group {
 public:
  nccl_group() { detail::check_nccl(ncclGroupStart(), "nccl_group", "ncclGroupStart"); }
  nccl_group(nccl_group const&) = delete;
  nccl_group& operator=(nccl_group const&) = delete;
  ~nccl_group() {
    if (open_) ncclGroupEnd();
  }
  void end() {
    open_ = false;
    detail::check_nccl(ncclGroupEnd(), "nccl_group", "ncclGroupEnd");
  }

 private:
  bool open_ = true;
};

//! A started operation. Refers to its communicator, which must outlive it; destroying it does
//! nothing.
class [[nodiscard]] nccl_handle {
 public:
  //! Nothing to wait for.
  nccl_handle() noexcept = default;

  //! Work on ctx.stream from now on runs after the operation, and after what else is on the
  //! operation's stream by now: operations to be waited for apart want streams of their own.
  void wait(cuda_context const& ctx) const {
    if (engine_ != nullptr) engine_->order(engine_->name("wait"), stream_, ctx.stream);
  }

  //! Whether the operation, and what else is on its stream by now, is done. Throws if the
  //! communicator has failed.
  [[nodiscard]] bool ready(cuda_context const&) const {
    return engine_ == nullptr || engine_->ready(stream_);
  }

 private:
  friend class nccl_operations;
  nccl_handle(detail::nccl_engine& engine, cudaStream_t stream) noexcept
      : engine_(&engine), stream_(stream) {}

  detail::nccl_engine* engine_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

//! What owning and other NCCL communicators have in common. For one thread at a time, except
//! `abort` and `check`.
//!
//! Operations check their arguments first (argument_error, nothing enqueued). `counts` may change
//! after the call. Equal counts are fastest; unequal ones become one call per rank in a group.
//! Sums of 16-bit floats are rounded as NCCL does it.
class nccl_operations {
 public:
  using context_type = cuda_context;
  using handle_type = nccl_handle;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int device() const { return engine().device(); }
  //! Null once an owned communicator is closed or has failed.
  [[nodiscard]] ncclComm_t native_handle() const { return engine().native_handle(); }

  //! An int in device memory: 0, and 1 once the communicator has failed.
  [[nodiscard]] int const* failure_flag() const { return engine().failure_flag(); }

  //! recv = the ranks' sends one after the other; send: counts[rank()], recv: sum of counts.
  template <detail::element T>
  nccl_handle all_gather(cuda_context const& ctx, std::type_identity_t<std::span<T const>> send,
                         std::span<T> recv, std::span<std::int64_t const> counts) {
    auto const who = caller("all_gather");
    auto const total =
        detail::expect_blocks(who, {"send", send}, {"recv", recv}, counts, sizeof(T));
    return start(who, ctx, total, [&](ncclComm_t comm) {
      if (all_equal(counts)) {
        return ncclAllGather(send.data(), recv.data(), send.size_bytes(), ncclInt8, comm,
                             ctx.stream);
      }
      return for_each_block(recv, counts, [&](int root, std::span<T> block) {
        return ncclBroadcast(root == rank_ ? send.data() : block.data(), block.data(),
                             block.size_bytes(), ncclInt8, root, comm, ctx.stream);
      });
    });
  }

  //! recv = block rank() of the combined sends; send: sum of counts, recv: counts[rank()].
  template <detail::element T, detail::nccl_reduction<T> Op = std::plus<>>
  nccl_handle reduce_scatter(cuda_context const& ctx, std::type_identity_t<std::span<T const>> send,
                             std::span<T> recv, std::span<std::int64_t const> counts, Op = {}) {
    constexpr auto type = detail::nccl_type<T>();
    constexpr auto op = detail::nccl_operator<Op>();
    auto const who = caller("reduce_scatter");
    auto const total =
        detail::expect_blocks(who, {"recv", recv}, {"send", send}, counts, sizeof(T));
    return start(who, ctx, total, [&](ncclComm_t comm) {
      if (all_equal(counts)) {
        return ncclReduceScatter(send.data(), recv.data(), recv.size(), type, op, comm, ctx.stream);
      }
      return for_each_block(send, counts, [&](int root, std::span<T const> block) {
        return ncclReduce(block.data(), recv.data(), block.size(), type, op, root, comm,
                          ctx.stream);
      });
    });
  }

  //! recv = the combined sends, equally long on all ranks.
  template <detail::element T, detail::nccl_reduction<T> Op = std::plus<>>
  nccl_handle all_reduce(cuda_context const& ctx, std::type_identity_t<std::span<T const>> send,
                         std::span<T> recv, Op = {}) {
    auto const who = caller("all_reduce");
    detail::expect_alike(who, {"send", send}, {"recv", recv}, sizeof(T));
    return start(who, ctx, std::ssize(recv), [&](ncclComm_t comm) {
      return ncclAllReduce(send.data(), recv.data(), recv.size(), detail::nccl_type<T>(),
                           detail::nccl_operator<Op>(), comm, ctx.stream);
    });
  }

  //! data = root's data, equally long on all ranks.
  template <detail::element T>
  nccl_handle broadcast(cuda_context const& ctx, std::span<T> data, int root) {
    auto const who = caller("broadcast");
    detail::expect_root(who, root);
    return start(who, ctx, std::ssize(data), [&](ncclComm_t comm) {
      return ncclBroadcast(data.data(), data.data(), data.size_bytes(), ncclInt8, root, comm,
                           ctx.stream);
    });
  }

  //! A message to rank `to`, which receives it by `recv`.
  template <detail::element T>
  nccl_handle send(cuda_context const& ctx, std::span<T const> data, int to) {
    auto const who = caller("send");
    detail::expect_message(who, {"data", data}, "to", to);
    return start(who, ctx, std::ssize(data), [&](ncclComm_t comm) {
      return ncclSend(data.data(), data.size_bytes(), ncclInt8, to, comm, ctx.stream);
    });
  }

  //! data = what rank `from` sends.
  template <detail::element T>
  nccl_handle recv(cuda_context const& ctx, std::span<T> data, int from) {
    auto const who = caller("recv");
    detail::expect_message(who, {"data", data}, "from", from);
    return start(who, ctx, std::ssize(data), [&](ncclComm_t comm) {
      return ncclRecv(data.data(), data.size_bytes(), ncclInt8, from, comm, ctx.stream);
    });
  }

  //! Throws if the communicator has failed. Does not wait.
  void check() { engine().check(); }

  //! Waits until all work on ctx.stream is done. Throws within the deadline if it fails, if a peer
  //! does, or if it is not done by then.
  void synchronize(cuda_context const& ctx) { engine().synchronize(ctx); }

  //! Ends the communicator from any thread: who waits in it, or calls it later, gets an nccl_error
  //! with this message. Not from a host function on a stream, where CUDA forbids its calls: leave
  //! word for a thread.
  void abort(std::string const& why) { engine().abort(why); }

 protected:
  explicit nccl_operations(std::unique_ptr<detail::nccl_engine> engine) noexcept
      : engine_(std::move(engine)), rank_(engine_->rank()), size_(engine_->size()) {}
  nccl_operations(nccl_operations&&) noexcept = default;
  nccl_operations& operator=(nccl_operations&&) noexcept = default;
  ~nccl_operations() = default;

  [[nodiscard]] detail::nccl_engine& engine() const {
    detail::expect(engine_ != nullptr, caller("nccl_communicator"),
                   "the communicator has been moved from");
    return *engine_;
  }

 private:
  [[nodiscard]] detail::caller caller(std::string_view operation) const noexcept {
    return {operation, rank_, size_};
  }

  template <class Call>
  nccl_handle start(detail::caller who, cuda_context const& ctx, std::int64_t elements,
                    Call const& call) {
    engine().expect_here(who, ctx);
    // NCCL would take an invalidated capture for a failure of the communicator.
    static_cast<void>(detail::is_capturing(who, ctx.stream));
    engine().await_taken_up(who);
    if (elements == 0) return {};
    engine().start(who, call);
    return {engine(), ctx.stream};
  }

  static bool all_equal(std::span<std::int64_t const> counts) {
    return std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
  }

  //! Calls call(rank, its block of `whole`) for blocks that are not empty, in one group.
  template <class T, class Call>
  static ncclResult_t for_each_block(std::span<T> whole, std::span<std::int64_t const> counts,
                                     Call const& call) {
    auto result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    std::size_t offset = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      auto const block = whole.subspan(offset, static_cast<std::size_t>(counts[r]));
      offset += block.size();
      if (block.empty()) continue;
      result = call(static_cast<int>(r), block);
      if (result != ncclSuccess && result != ncclInProgress) break;
    }
    auto const end = ncclGroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? end : result;
  }

  std::unique_ptr<detail::nccl_engine> engine_;
  int rank_;
  int size_;
};

//! A rank with an NCCL communicator of its own. The destructor waits for what is enqueued, as
//! `close` does, or aborts if the communicator failed or an exception destroys it.
class nccl_communicator : public nccl_operations {
 public:
  //! On the current device. Returns when all `size` ranks have come, each with a device of its own;
  //! throws peer_error if one does not within the deadline.
  nccl_communicator(ncclUniqueId const& id, int rank, int size, nccl_options const& options = {})
      : nccl_communicator(unmet(), id, rank, size, options) {
    engine().await_peers();
  }

  //! All ranks of a communicator that lives in this process: rank r on devices[r], each its own.
  static std::vector<nccl_communicator> all(std::span<int const> devices,
                                            nccl_options const& options = {}) {
    auto const size = static_cast<int>(devices.size());
    int present = 0;
    detail::check_cuda(cudaGetDeviceCount(&present), "nccl_communicator", "cudaGetDeviceCount");
    for (int r = 0; r < size; ++r) {
      auto const device = devices[static_cast<std::size_t>(r)];
      detail::expect(device >= 0 && device < present, {"nccl_communicator", r, size}, [&] {
        return "device " + std::to_string(device) + " does not exist; there are " +
               std::to_string(present);
      });
    }
    auto const id = nccl_unique_id();
    std::vector<nccl_communicator> ranks;
    ranks.reserve(devices.size());
    nccl_group group;
    for (int r = 0; r < size; ++r) {
      detail::device_scope const device("nccl_communicator", devices[static_cast<std::size_t>(r)]);
      ranks.push_back(nccl_communicator(unmet(), id, r, size, options));
    }
    group.end();
    for (auto& rank : ranks) rank.engine().await_peers();
    return ranks;
  }

  //! Waits, with the deadline, until everything is done and gives up the communicator. All ranks
  //! call it. Later operations throw; closing twice is nothing.
  void close() { engine().close(); }

 private:
  struct unmet {};
  nccl_communicator(unmet, ncclUniqueId const& id, int rank, int size, nccl_options const& options)
      : nccl_operations(std::make_unique<detail::nccl_engine>(id, rank, size, options)) {}
};

//! A rank that uses a communicator which somebody else, such as a trainer, owns and destroys later.
//! Never destroys or aborts it: after a failure its owner does.
class nccl_communicator_ref : public nccl_operations {
 public:
  //! The communicator's device is the current one.
  explicit nccl_communicator_ref(ncclComm_t comm, nccl_options const& options = {})
      : nccl_operations(std::make_unique<detail::nccl_engine>(comm, options)) {}
};

}  // namespace scape
