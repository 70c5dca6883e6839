// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks on two levels: L ranks in each node, such as threads of a process or GPUs of a machine,
//! and N nodes with a slower network between them.
//!
//!     // inter connects the ranks of equal intra.rank()
//!     scape::hierarchical_communicator comm(intra, inter, workspace);
//!     scape::sparse_optimizer<scape::adamw, decltype(comm)> optimizer(comm, ...);
//!
//! Rank b of node a is rank b * N + a of L * N, so the blocks of equal b lie together. Values are
//! summed in the node before they leave it and spread in the node after they have come: 1 / L of
//! what L * N ranks exchange with each other crosses between nodes. A reduce_scatter or all_gather
//! of n elements brings n (N - 1) / (L N) of them to a rank from other nodes, an all_reduce is an
//! all_reduce of n / L of them between nodes.
//!
//! All ranks get the same bits. Sums are rounded to the type in the node and again between nodes.
//!
//! An operation is two phases, an all_reduce three; the later ones need the result of the first. On
//! streams all are enqueued at once. Otherwise they start when somebody waits for the operation or
//! when the next one starts, whichever comes first. So each part sees the phases of one operation
//! before those of the next, in whatever order the ranks wait, and a rank that computes after the
//! first phase keeps its peers waiting until its next call.
//!
//! To be dense in the node and sparse between nodes takes no such communicator. Rank b owns
//! block b of the parameters: intra.reduce_scatter(gradient), then a sparse_optimizer over `inter`
//! with a layout of the block in N shards and the gradient divisor times L, then
//! intra.all_gather(weights). Residual and masks take 1 / L of the memory. Such an optimizer sees
//! its block alone: turn clip_norm and skip_nonfinite off and decide both for the whole gradient.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <scape/concepts.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/collective_arguments.hpp>
#include <scape/error.hpp>
#include <scape/workspace.hpp>

namespace scape {

//! Workspace for reduce_scatters of T that leave up to `values` elements to the N ranks of one
//! intra rank: n / L where all counts are equal, N * layout.max_shard_size() for a layout's shards.
template <class T>
[[nodiscard]] std::size_t hierarchical_workspace_bytes(std::int64_t values) noexcept {
  return workspace_size().add<T>(values).bytes();
}

//! One rank of both levels. Refers to its parts and the workspace, which must outlive it and are
//! not used otherwise while operations are in flight. For one thread at a time.
//!
//! Has the operations that both parts have. They check their arguments first (argument_error,
//! nothing started) and allocate nothing. Starting one waits for the first phase of the one before,
//! or, if that is a broadcast and not on a stream, for all of it; if `in_flight` operations are
//! incomplete, it waits for the oldest; a reduce_scatter waits for the one before, whose workspace
//! it takes. `counts` may change after the call, buffers must stay until wait returns.
//!
//! Over NCCL: not within an nccl_group, and the reduce_scatters on one stream. There is no
//! failure_flag, and a rank that lacks its first phase's result when that fails may still hand on
//! rubbish in the second: after an error on any rank, load a checkpoint of an earlier step on all.
//!
//! A failure in one part ends both: now and from every later call there is a peer_error with ranks
//! of the whole, or what else the part threw. Its peer() is the rank of the own node, or of the own
//! rank in other nodes, that the failure came from; the text goes on to where it came from there.
template <communicator Intra, communicator Inter>
requires std::same_as<typename Intra::context_type, typename Inter::context_type>
class hierarchical_communicator {
 public:
  using context_type = typename Intra::context_type;

  //! A started operation. Refers to its communicator, which must outlive it.
  class [[nodiscard]] handle_type {
   public:
    //! Nothing to wait for.
    handle_type() noexcept = default;
    handle_type(handle_type&& other) noexcept { swap(other); }
    handle_type& operator=(handle_type&& other) noexcept {
      handle_type(std::move(other)).swap(*this);
      return *this;
    }
    //! Waits. If an exception is what destroys it, takes the buffers back and ends both parts.
    ~handle_type() {
      if (comm_ == nullptr) return;
      if (std::uncaught_exceptions() > exceptions_) {
        comm_->abandon(sequence_);
      } else {
        comm_->settle(sequence_);
      }
    }

    //! As the parts' handles do, for the whole operation. Waiting twice is nothing.
    void wait(context_type const& ctx) {
      if (comm_ != nullptr) std::exchange(comm_, nullptr)->complete(ctx, sequence_);
    }

   private:
    friend class hierarchical_communicator;
    handle_type(hierarchical_communicator& comm, std::int64_t sequence) noexcept
        : comm_(&comm), sequence_(sequence), exceptions_(std::uncaught_exceptions()) {}
    void swap(handle_type& other) noexcept {
      std::swap(comm_, other.comm_);
      std::swap(sequence_, other.sequence_);
      std::swap(exceptions_, other.exceptions_);
    }

    hierarchical_communicator* comm_ = nullptr;
    std::int64_t sequence_ = 0;
    int exceptions_ = 0;
  };

  //! `workspace` lies where the context computes; it is for reduce_scatters alone.
  hierarchical_communicator(Intra& intra, Inter& inter, std::span<std::byte> workspace,
                            int in_flight = 16)
      : intra_(&intra),
        inter_(&inter),
        workspace_(workspace),
        intra_counts_(static_cast<std::size_t>(intra.size())),
        inter_counts_(static_cast<std::size_t>(inter.size())) {
    detail::expect(in_flight >= 1, caller("hierarchical_communicator"), [&] {
      return "in_flight is " + std::to_string(in_flight) + ", expected 1 or more";
    });
    operations_ = std::vector<operation>(static_cast<std::size_t>(in_flight));
  }
  hierarchical_communicator(hierarchical_communicator const&) = delete;
  hierarchical_communicator& operator=(hierarchical_communicator const&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_of(intra_->rank(), inter_->rank()); }
  [[nodiscard]] int size() const noexcept { return intra_->size() * inter_->size(); }
  [[nodiscard]] int device() const requires requires(Intra const& intra) { intra.device(); }
  { return intra_->device(); }

  //! recv = the ranks' sends one after the other; send: counts[rank()], recv: sum of counts.
  template <detail::element T>
  requires has_all_gather<Intra, T> && has_all_gather<Inter, T> handle_type
  all_gather(context_type const& ctx, std::type_identity_t<std::span<T const>> send,
             std::span<T> recv, std::span<std::int64_t const> counts) {
    auto const who = caller("all_gather");
    detail::expect_blocks(who, {"send", send}, {"recv", recv}, counts, sizeof(T));
    auto& op = begin(ctx, who);
    divide(counts);
    between(op, [&] { return inter_->all_gather(ctx, send, own_part(recv), inter_counts_); });
    return start(ctx, op, {&self::finish_all_gather<T>, nullptr, recv.data(), std::ssize(recv)});
  }

  //! recv = block rank() of the combined sends; send: sum of counts, recv: counts[rank()].
  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  requires has_reduce_scatter<Intra, T, Op> && has_reduce_scatter<Inter, T, Op> handle_type
  reduce_scatter(context_type const& ctx, std::type_identity_t<std::span<T const>> send,
                 std::span<T> recv, std::span<std::int64_t const> counts, Op = {}) {
    auto const who = caller("reduce_scatter");
    detail::expect_blocks(who, {"recv", recv}, {"send", send}, counts, sizeof(T));
    auto& op = begin(ctx, who);
    divide(counts);
    auto const longest = *std::ranges::max_element(intra_counts_);
    auto const sums = carver(workspace_, who).take<T>(longest).first(own_count());
    complete(ctx, last_reduce_scatter_);
    within(op, [&] { return intra_->reduce_scatter(ctx, send, sums, intra_counts_, Op{}); });
    last_reduce_scatter_ = started_;
    return start(ctx, op, {&self::finish_reduce_scatter<T, Op>, sums.data(), recv.data()});
  }

  //! recv = the combined sends, equally long on all ranks; multiples of L elements are fastest.
  template <detail::element T, detail::reduction<T> Op = std::plus<>>
  requires has_reduce_scatter<Intra, T, Op> && has_all_reduce<Inter, T, Op> &&
      has_all_gather<Intra, T>
          handle_type all_reduce(context_type const& ctx,
                                 std::type_identity_t<std::span<T const>> send, std::span<T> recv,
                                 Op = {}) {
    auto const who = caller("all_reduce");
    detail::expect_alike(who, {"send", send}, {"recv", recv}, sizeof(T));
    auto& op = begin(ctx, who);
    for (int b = 0; b < intra_->size(); ++b) {
      auto const [first, last] = detail::part_of(std::ssize(recv), b, intra_->size());
      intra_counts_[static_cast<std::size_t>(b)] = last - first;
    }
    within(op,
           [&] { return intra_->reduce_scatter(ctx, send, own_part(recv), intra_counts_, Op{}); });
    return start(ctx, op,
                 {&self::finish_all_reduce<T, Op>, nullptr, recv.data(), std::ssize(recv)});
  }

  //! data = root's data, equally long on all ranks.
  template <detail::element T>
  requires has_broadcast<Intra, T> && has_broadcast<Inter, T> handle_type
  broadcast(context_type const& ctx, std::span<T> data, int root) {
    auto const who = caller("broadcast");
    detail::expect_root(who, root);
    auto& op = begin(ctx, who);
    int const nodes = inter_->size();
    if (intra_->rank() == root / nodes) {
      between(op, [&] { return inter_->broadcast(ctx, data, root % nodes); });
    }
    return start(
        ctx, op,
        {&self::finish_broadcast<T>, nullptr, data.data(), std::ssize(data), root / nodes});
  }

  //! Its wait returns when every rank has started the barrier.
  handle_type barrier(context_type const& ctx) requires
      requires(Intra& intra, Inter& inter, context_type const& on) {
    intra.barrier(on);
    inter.barrier(on);
  }
  {
    auto& op = begin(ctx, caller("barrier"));
    within(op, [&] { return intra_->barrier(ctx); });
    return start(ctx, op, {&self::finish_barrier});
  }

  //! As the parts' own: waits until all work on ctx.stream is done, or throws.
  void synchronize(context_type const& ctx) requires
      requires(Intra& intra, Inter& inter, context_type const& on) {
    intra.synchronize(on);
    inter.synchronize(on);
  }
  {
    guarded("synchronize", true, [&] { intra_->synchronize(ctx); });
    guarded("synchronize", false, [&] { inter_->synchronize(ctx); });
  }

  //! Ends both parts, if they can be: the peers get an error with this message.
  void abort(std::string const& why) {
    if constexpr (requires { intra_->abort(why); }) intra_->abort(why);
    if constexpr (requires { inter_->abort(why); }) inter_->abort(why);
  }

 private:
  using self = hierarchical_communicator;

  //! Later phases may be enqueued before the earlier ones are done.
  static constexpr bool on_stream = requires(context_type const& ctx) { ctx.stream; };

  //! What runs: nothing, or a phase in the node or between nodes.
  using phase =
      std::variant<std::monostate, typename Intra::handle_type, typename Inter::handle_type>;

  struct operation {
    std::int64_t sequence = -1;  // -1: complete
    std::string_view name = {};
    phase current = {};
  };

  //! How the newest operation goes on when its first phase is done; null once it has.
  struct continuation {
    void (self::*run)(context_type const& ctx, operation& op) = nullptr;
    void const* send = nullptr;
    void* recv = nullptr;
    std::int64_t count = 0;
    int root = 0;
  };

  [[nodiscard]] detail::caller caller(std::string_view name) const noexcept {
    return {name, rank(), size()};
  }
  [[nodiscard]] int rank_of(int intra, int inter) const noexcept {
    return intra * inter_->size() + inter;
  }
  [[nodiscard]] operation& slot(std::int64_t sequence) noexcept {
    return operations_[static_cast<std::size_t>(sequence) % operations_.size()];
  }

  //! Sums the counts of each intra rank's N blocks, and keeps those of this rank's.
  void divide(std::span<std::int64_t const> counts) noexcept {
    auto const nodes = inter_counts_.size();
    for (std::size_t b = 0; b < intra_counts_.size(); ++b) {
      auto const blocks = counts.subspan(b * nodes, nodes);
      intra_counts_[b] = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
    }
    auto const own = counts.subspan(static_cast<std::size_t>(intra_->rank()) * nodes, nodes);
    std::ranges::copy(own, inter_counts_.begin());
  }
  [[nodiscard]] std::size_t own_count() const noexcept {
    return static_cast<std::size_t>(intra_counts_[static_cast<std::size_t>(intra_->rank())]);
  }
  //! The part of `whole` that intra_counts_ gives to this rank.
  template <class T>
  [[nodiscard]] std::span<T> own_part(std::span<T> whole) const noexcept {
    auto const own = intra_counts_.begin() + intra_->rank();
    auto const offset = std::accumulate(intra_counts_.begin(), own, std::int64_t{0});
    return whole.subspan(static_cast<std::size_t>(offset), own_count());
  }

  //! A place for one more operation, once all before it are in their last phase.
  operation& begin(context_type const& ctx, detail::caller who) {
    if (failure_) std::rethrow_exception(failure_);
    advance(ctx);
    auto& op = slot(started_);
    if (op.sequence >= 0) finish(ctx, op);
    op.name = who.operation;
    return op;
  }

  //! The operation has begun its first phase.
  handle_type start(context_type const& ctx, operation& op, continuation const& rest) {
    op.sequence = started_++;
    rest_ = rest;
    if (on_stream) advance(ctx);
    return {*this, op.sequence};
  }

  //! Brings the newest operation into its last phase.
  void advance(context_type const& ctx) {
    if (rest_.run == nullptr) return;
    auto& op = slot(started_ - 1);
    await(ctx, op);
    (this->*std::exchange(rest_.run, nullptr))(ctx, op);
  }

  template <class T>
  [[nodiscard]] std::span<T> received() const noexcept {
    return {static_cast<T*>(rest_.recv), static_cast<std::size_t>(rest_.count)};
  }
  template <class T>
  void finish_all_gather(context_type const& ctx, operation& op) {
    auto const whole = received<T>();
    within(op, [&] { return intra_->all_gather(ctx, own_part(whole), whole, intra_counts_); });
  }
  template <class T, class Op>
  void finish_reduce_scatter(context_type const& ctx, operation& op) {
    auto const own = inter_counts_[static_cast<std::size_t>(inter_->rank())];
    std::span const send(static_cast<T const*>(rest_.send), own_count());
    std::span const recv(static_cast<T*>(rest_.recv), static_cast<std::size_t>(own));
    between(op, [&] { return inter_->reduce_scatter(ctx, send, recv, inter_counts_, Op{}); });
  }
  template <class T, class Op>
  void finish_all_reduce(context_type const& ctx, operation& op) {
    auto const own = own_part(received<T>());
    between(op, [&] { return inter_->all_reduce(ctx, own, own, Op{}); });
    await(ctx, op);
    finish_all_gather<T>(ctx, op);
  }
  template <class T>
  void finish_broadcast(context_type const& ctx, operation& op) {
    within(op, [&] { return intra_->broadcast(ctx, received<T>(), rest_.root); });
    // Ranks may have to hand on what they receive, which those over MPI do while they wait.
    if constexpr (!on_stream) await(ctx, op);
  }
  void finish_barrier(context_type const& ctx, operation& op) {
    between(op, [&] { return inter_->barrier(ctx); });
  }

  //! Start a phase of `op` in the node, or between nodes.
  template <class Start>
  void within(operation& op, Start const& start_phase) {
    guarded(op.name, true, [&] { op.current = phase(std::in_place_index<1>, start_phase()); });
  }
  template <class Start>
  void between(operation& op, Start const& start_phase) {
    guarded(op.name, false, [&] { op.current = phase(std::in_place_index<2>, start_phase()); });
  }
  //! Waits for the phase that `op` is in.
  void await(context_type const& ctx, operation& op) {
    if (auto* const inner = std::get_if<1>(&op.current)) {
      guarded(op.name, true, [&] { inner->wait(ctx); });
    } else if (auto* const outer = std::get_if<2>(&op.current)) {
      guarded(op.name, false, [&] { outer->wait(ctx); });
    }
  }

  void finish(context_type const& ctx, operation& op) {
    await(ctx, op);
    release(op);
  }
  void release(operation& op) noexcept {
    op.current.template emplace<0>();
    op.sequence = -1;
  }

  void complete(context_type const& ctx, std::int64_t sequence) {
    auto& op = slot(sequence);
    if (op.sequence != sequence) return;
    if (failure_) {
      release(op);
      std::rethrow_exception(failure_);
    }
    if (sequence + 1 == started_) advance(ctx);
    finish(ctx, op);
  }

  //! The same without telling: a failure shows at the next operation.
  void settle(std::int64_t sequence) noexcept {
    auto& op = slot(sequence);
    if (op.sequence != sequence) return;
    if constexpr (!on_stream) {
      try {
        if (sequence + 1 == started_) advance(context_type{});
      } catch (std::exception const&) {
      }
    }
    release(op);
  }

  //! What is enqueued on a stream goes on, as everywhere.
  void abandon(std::int64_t sequence) noexcept {
    auto& op = slot(sequence);
    if (op.sequence != sequence) return;
    release(op);
    if (on_stream || failure_) return;
    peer_error const error(std::string(op.name), "abandoned because of an exception", rank(),
                           rank(), size());
    end(std::make_exception_ptr(error), error.what());
  }

  void end(std::exception_ptr const& cause, std::string const& why) {
    failure_ = cause;
    rest_ = {};
    abort(why);
  }

  //! Calls f(), which uses the part in the node (`inside`) or the other one. A failure ends both.
  template <class F>
  void guarded(std::string_view name, bool inside, F const& f) {
    try {
      f();
    } catch (peer_error const& e) {
      int const peer = e.peer() < 0 ? -1
                       : inside     ? rank_of(e.peer(), inter_->rank())
                                    : rank_of(intra_->rank(), e.peer());
      peer_error const error(std::string(name),
                             (inside ? "in the node: " : "between nodes: ") + std::string(e.what()),
                             peer, rank(), size());
      end(std::make_exception_ptr(error), error.what());
      throw error;
    } catch (std::exception const& e) {
      end(std::current_exception(), e.what());
      throw;
    }
  }

  Intra* intra_;
  Inter* inter_;
  std::span<std::byte> workspace_;
  std::vector<operation> operations_;  // a ring
  std::int64_t started_ = 0;
  std::int64_t last_reduce_scatter_ = -1;
  continuation rest_;
  std::vector<std::int64_t> intra_counts_;  // of the newest operation, by intra rank
  std::vector<std::int64_t> inter_counts_;  // of the newest operation, by inter rank
  std::exception_ptr failure_;
};

}  // namespace scape
