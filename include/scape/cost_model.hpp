// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Predicts the time of a training step, dense and sparse, and the density that a target needs.
//!
//!     scape::cost_model const model({.compute = 0.055, .memory_bandwidth = 3.4e12,
//!                                    .network = {.link = scape::calibrate(ctx, comm)}});
//!     auto const choice = scape::choose_density(model, layout);

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <scape/config.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>
#include <scape/network_cost.hpp>
#include <scape/optim/options.hpp>

namespace scape {

struct cost_model_options {
  double compute = 0;  //!< seconds of forward and backward of a step on one rank
  //! Bytes per second of the passes over gradient, residual and state.
  double memory_bandwidth = std::numeric_limits<double>::infinity();
  //! Bytes per second, both directions together, at which an offloaded residual streams.
  double offload_bandwidth = std::numeric_limits<double>::infinity();
  network_cost network = {};
  int lag = 1;                 //!< 0: the step waits for its mask
  int gradient_bytes = 4;      //!< of one element of the gradient: 2 or 4
  int value_bytes = 4;         //!< of one value of the reduce-scatter
  int parameter_bytes = 4;     //!< of one parameter of the all-gather
  bool second_moment = false;  //!< AdamW keeps one, AdamS does not
  bool guard = true;           //!< skip_nonfinite: one read of the gradient and an agreement
};

//! A step of the busiest rank. Nothing overlaps but the mask's all-gather.
struct step_prediction {
  int ranks = 1;
  double density = 0;  //!< values sent / n
  step_bytes bytes;    //!< received

  // Seconds.
  double compute = 0;         //!< forward and backward
  double pack = 0;            //!< guard, accumulation and compaction
  double control = 0;         //!< the agreement of the guard
  double reduce_scatter = 0;  //!< on the network
  double rebuild = 0;         //!< update of the owned shard
  double all_gather = 0;      //!< of the parameters, on the network
  double scatter = 0;         //!< of the gathered parameters, and the packing of the own ones
  double select = 0;          //!< top-k
  double mask = 0;  //!< what compute does not hide of the mask's all-gather; at lag 0 all of it

  [[nodiscard]] double total() const noexcept {
    return compute + pack + control + reduce_scatter + rebuild + all_gather + scatter + select +
           mask;
  }
  //! The share of the step that is not compute: the network and the passes of the optimizer.
  [[nodiscard]] double sync_share() const noexcept {
    return total() > 0 ? 1 - compute / total() : 0;
  }
};

//! How many times faster `step` is than `baseline`.
[[nodiscard]] inline double speedup(step_prediction const& baseline,
                                    step_prediction const& step) noexcept {
  return baseline.total() == step.total() ? 1 : baseline.total() / step.total();
}

//! T(P0) P0 / (T(P) P), of the same work on P0 and on P ranks; see cost_model::strong_scaled.
[[nodiscard]] inline double scaling_efficiency(step_prediction const& reference,
                                               step_prediction const& step) noexcept {
  return speedup(reference, step) * reference.ranks / step.ranks;
}

namespace detail {

//! The numbers that the bytes of a step follow from.
struct step_counts {
  int ranks = 1;
  std::int64_t elements = 0;      //!< n
  std::int64_t shard = 0;         //!< longest shard
  std::int64_t values = 0;        //!< sent, over all shards
  std::int64_t shard_values = 0;  //!< most of one shard
  step_bytes bytes;
};

//! The plan of the dense optimizer: all elements, frozen ones too.
inline send_plan whole_shards(layout const& layout) {
  send_plan plan;
  plan.offsets.push_back(0);
  for (int p = 0; p < layout.shards(); ++p) {
    plan.counts.push_back(layout.shard_size(p));
    plan.offsets.push_back(plan.offsets.back() + plan.counts.back());
  }
  return plan;
}

inline step_counts counts_of(layout const& layout, send_plan const& plan,
                             cost_model_options const& o) {
  auto const least = std::ranges::min_element(plan.counts) - plan.counts.begin();
  int shortest = 0;  // list of indices
  for (int p = 1; p < layout.shards(); ++p) {
    if (layout.index_words(plan, p) < layout.index_words(plan, shortest)) shortest = p;
  }
  auto const wire = [&](int bytes) {
    return layout.value_wire_bytes(plan, static_cast<int>(least), static_cast<std::size_t>(bytes));
  };
  return {.ranks = layout.shards(),
          .elements = layout.size(),
          .shard = layout.max_shard_size(),
          .values = plan.total(),
          .shard_values = std::ranges::max(plan.counts),
          .bytes = {.values = wire(o.value_bytes),
                    .parameters = wire(o.parameter_bytes),
                    .mask = layout.mask_wire_bytes(plan, shortest),
                    .control = control_bytes({.skip_nonfinite = o.guard}, layout.shards())}};
}

//! The same for layout(n, ranks), without making it.
inline step_counts counts_of(std::int64_t n, int ranks, double density,
                             cost_model_options const& o) {
  expect(ranks >= 1, "cost_model", [&] {
    return "the number of ranks is " + std::to_string(ranks) + ", expected at least 1";
  });
  auto const largest = std::numeric_limits<std::int64_t>::max() / 2 / (ranks + std::int64_t{1});
  expect(n >= 0 && n <= largest, "cost_model", [&] {
    return "the length n is " + std::to_string(n) + ", expected 0 to " + std::to_string(largest);
  });
  expect(density >= 0 && density <= 1, "cost_model", "density is outside [0, 1]");
  auto const alignment = layout_options{}.alignment;
  auto const share = n / ranks + (n % ranks != 0 ? 1 : 0);
  auto const length = (share + alignment - 1) / alignment * alignment;
  auto const full =
      n == 0 ? 0 : n / length;  // shards of this length; then a shorter one, then none
  auto const rest = n - full * length;
  auto const k = layout::k_of(density, length), k_rest = layout::k_of(density, rest);
  auto const values = full * k + k_rest;
  auto const least = full == ranks ? k : full == ranks - 1 ? k_rest : 0;
  auto const index_words =
      full * detail::index_words(k, length) + detail::index_words(k_rest, rest);
  auto const least_words = full == ranks       ? detail::index_words(k, length)
                           : full == ranks - 1 ? detail::index_words(k_rest, rest)
                                               : 0;
  auto const as_bits =
      (ranks - 1) * mask_words(std::min(length, n)) * static_cast<std::int64_t>(sizeof(mask_word));
  return {.ranks = ranks,
          .elements = n,
          .shard = std::min(length, n),
          .values = values,
          .shard_values = full > 0 ? k : k_rest,
          .bytes = {.values = (values - least) * o.value_bytes,
                    .parameters = (values - least) * o.parameter_bytes,
                    .mask = std::min(as_bits, 2 * (index_words - least_words)),
                    .control = control_bytes({.skip_nonfinite = o.guard}, ranks)}};
}

inline cost_model_options const& checked(cost_model_options const& o) {
  caller const op = "cost_model";
  expect(o.compute >= 0 && std::isfinite(o.compute), op,
         "compute is not a finite number of seconds, 0 or more");
  expect(o.memory_bandwidth > 0, op, "memory_bandwidth is not a positive number");
  expect(o.offload_bandwidth > 0, op, "offload_bandwidth is not a positive number");
  expect(o.lag >= 0, op, "the lag is negative");
  for (auto const bytes : {o.gradient_bytes, o.value_bytes, o.parameter_bytes}) {
    expect(bytes == 2 || bytes == 4, op,
           [&] { return "an element has " + std::to_string(bytes) + " bytes, expected 2 or 4"; });
  }
  expect(o.network.ranks_per_node >= 1, op, "ranks_per_node is below 1");
  expect_valid(op, o.network.link);
  expect_valid(op, o.network.inside);
  return o;
}

}  // namespace detail

//! The time of a step from stated parameters: latency and bytes of every collective, bytes of every
//! pass over memory, and the time of forward and backward. It describes the steps after the first
//! ones, when masks are lagged and the density has been reached.
//!
//! With n elements in shards of n/P, density d, and s = 1 - (1 - d)^8 the share of 32-byte sectors
//! of floats with a set bit (g, w, p: bytes of an element of gradient, wire and parameters), the
//! passes move
//!
//!                    dense              sparse
//!     guard          g n                g n
//!     pack           (g + w) n          (g + 8) n + n/8 + w d n
//!     rebuild        (16 + w) n/P       (n/8 + w d n + 4 n + 16 s n) / P, 4 n of it for the ages
//!     scatter                           n/8 + p s n + p d n
//!     select                            (10 n + n/8) / P, for the default statistic
//!
//! a second moment 8 bytes more for each that is updated, and an offloaded residual 8 n (1 - 1/P)
//! to and from the host, behind the pack. All methods throw argument_error for a number of ranks
//! that does not fill its nodes.
class cost_model {
 public:
  explicit cost_model(cost_model_options const& options) : options_(detail::checked(options)) {}

  [[nodiscard]] cost_model_options const& options() const noexcept { return options_; }

  //! The model of `to` ranks that share the work of `from`: the global batch stays, so that the
  //! compute of each changes by from / to.
  [[nodiscard]] cost_model strong_scaled(int from, int to) const {
    detail::expect(from >= 1 && to >= 1, "cost_model::strong_scaled",
                   "a number of ranks is below 1");
    auto scaled = options_;
    scaled.compute *= static_cast<double>(from) / to;
    return cost_model(scaled);
  }

  //! A step of dense_optimizer, whose elements on the wire are those of value_bytes and
  //! parameter_bytes here.
  [[nodiscard]] step_prediction dense(layout const& layout) const {
    return dense(detail::counts_of(layout, detail::whole_shards(layout), options_));
  }
  //! The same for layout(n, ranks), which is not made.
  [[nodiscard]] step_prediction dense(std::int64_t n, int ranks) const {
    return dense(detail::counts_of(n, ranks, 1, options_));
  }

  //! A step of sparse_optimizer at `density`.
  [[nodiscard]] step_prediction sparse(layout const& layout, double density) const {
    return sparse(detail::counts_of(layout, layout.plan(density), options_));
  }
  [[nodiscard]] step_prediction sparse(std::int64_t n, int ranks, double density) const {
    return sparse(detail::counts_of(n, ranks, density, options_));
  }

 private:
  //! What both kinds of step have in common; `passes` are bytes of the pack.
  [[nodiscard]] step_prediction exchanged(detail::step_counts const& c, double passes) const {
    auto const& network = options_.network;
    auto const n = static_cast<double>(c.elements);
    step_prediction p{.ranks = c.ranks, .bytes = c.bytes, .compute = options_.compute};
    if (c.elements > 0) p.density = static_cast<double>(c.values) / n;
    p.pack = seconds(passes + (options_.guard ? options_.gradient_bytes * n : 0));
    p.reduce_scatter = network.exchange(c.ranks, static_cast<double>(c.bytes.values));
    p.all_gather = network.exchange(c.ranks, static_cast<double>(c.bytes.parameters));
    if (options_.guard) p.control = network.all_reduce(c.ranks, sizeof(double));
    return p;
  }

  [[nodiscard]] step_prediction dense(detail::step_counts const& c) const {
    auto const n = static_cast<double>(c.elements), shard = static_cast<double>(c.shard);
    auto p = exchanged(c, (options_.gradient_bytes + options_.value_bytes) * n);
    p.bytes.mask = 0;
    p.rebuild = seconds((16 + options_.value_bytes + (options_.second_moment ? 8 : 0)) * shard);
    return p;
  }

  [[nodiscard]] step_prediction sparse(detail::step_counts const& c) const {
    auto const& o = options_;
    auto const n = static_cast<double>(c.elements), shard = static_cast<double>(c.shard);
    auto const values = static_cast<double>(c.values);
    auto p = exchanged(c, (o.gradient_bytes + 8.125) * n + o.value_bytes * values);
    auto const offloaded = 8 * (n - shard) / o.offload_bandwidth;
    p.pack = std::max(p.pack, offloaded);
    auto const touched = 1 - std::pow(1 - p.density, 8);
    p.rebuild = seconds((4.125 + (o.second_moment ? 24 : 16) * touched) * shard +
                        o.value_bytes * static_cast<double>(c.shard_values));
    p.scatter = seconds((0.125 + o.parameter_bytes * touched) * n + o.parameter_bytes * values);
    p.select = seconds(10.125 * shard);
    auto const mask = o.network.exchange(c.ranks, static_cast<double>(c.bytes.mask));
    p.mask = o.lag == 0 ? mask : std::max(0.0, mask - o.compute);
    return p;
  }

  //! Of a pass over memory.
  [[nodiscard]] double seconds(double bytes) const noexcept {
    return bytes / options_.memory_bandwidth;
  }

  cost_model_options options_;
};

//! What choose_density() is to reach.
class density_target {
 public:
  enum class kind : std::uint8_t { automatic, speedup, sync_share };

  //! Nothing to gain from fewer values: a step at most 1 + slack times as long as at the least
  //! density. It can always be met.
  [[nodiscard]] static density_target automatic(double slack = 0.1) {
    detail::expect(slack >= 0 && std::isfinite(slack), "density_target",
                   "the slack is not a finite number, 0 or more");
    return {kind::automatic, 1 + slack};
  }
  //! A step at least `factor` times faster than the dense one.
  [[nodiscard]] static density_target speedup(double factor) {
    detail::expect(factor > 0 && std::isfinite(factor), "density_target",
                   "the speedup is not a positive number");
    return {kind::speedup, factor};
  }
  //! At most `share` of the step outside compute, as step_prediction::sync_share() has it.
  [[nodiscard]] static density_target sync_share(double share) {
    detail::expect(share >= 0 && share < 1, "density_target", "the share is outside [0, 1)");
    return {kind::sync_share, share};
  }

  [[nodiscard]] kind what() const noexcept { return kind_; }
  [[nodiscard]] double value() const noexcept { return value_; }

 private:
  density_target(kind what, double value) noexcept : kind_(what), value_(value) {}
  kind kind_;
  double value_;
};

//! No density reaches the target. `best()` is the speedup, or the share, of the least one.
class unreachable_target : public argument_error {
 public:
  unreachable_target(std::string const& what, double best,
                     source_location where = source_location::current())
      : argument_error("choose_density", what, -1, -1, where), best_(best) {}
  [[nodiscard]] double best() const noexcept { return best_; }

 private:
  double best_;
};

struct density_choice {
  double density = 1;
  step_prediction sparse;  //!< at that density
  step_prediction dense;   //!< of the dense optimizer; where it is the faster one, use it
};

namespace detail {

//! `sparse_at(density)` predicts a step of n elements; its time never falls with the density.
template <class SparseAt>
density_choice choose_density(density_target const& target, std::int64_t n,
                              step_prediction const& dense, SparseAt const& sparse_at) {
  using kind = density_target::kind;
  auto const least = 1 / static_cast<double>(std::max<std::int64_t>(n, 1));
  auto const sparsest = sparse_at(least);
  auto const meets = [&](step_prediction const& step) {
    if (target.what() == kind::speedup) return speedup(dense, step) >= target.value();
    if (target.what() == kind::sync_share) return step.sync_share() <= target.value();
    return step.total() <= target.value() * sparsest.total();
  };
  if (!meets(sparsest)) {
    bool const share = target.what() == kind::sync_share;
    auto const best = share ? sparsest.sync_share() : speedup(dense, sparsest);
    throw unreachable_target(std::string(share ? "a share outside compute of " : "a speedup of ") +
                                 std::to_string(target.value()) + " is out of reach; the best is " +
                                 std::to_string(best) + ", with one value per shard",
                             best);
  }
  double low = least, high = 1;  // low meets the target
  if (meets(sparse_at(high))) low = high;
  while (std::nextafter(low, 1.0) < high) {
    auto const middle = low + (high - low) / 2;
    (meets(sparse_at(middle)) ? low : high) = middle;
  }
  return {low, sparse_at(low), dense};
}

}  // namespace detail

//! The largest density whose predicted step meets the target: the next larger double does not. The
//! least density considered is one value per shard, besides what a layout always sends. Throws
//! unreachable_target if that is not enough.
[[nodiscard]] inline density_choice choose_density(
    cost_model const& model, layout const& layout,
    density_target const& target = density_target::automatic()) {
  return detail::choose_density(target, layout.size(), model.dense(layout),
                                [&](double density) { return model.sparse(layout, density); });
}
//! The same for layout(n, ranks), which is not made.
[[nodiscard]] inline density_choice choose_density(
    cost_model const& model, std::int64_t n, int ranks,
    density_target const& target = density_target::automatic()) {
  return detail::choose_density(target, n, model.dense(n, ranks),
                                [&](double density) { return model.sparse(n, ranks, density); });
}

}  // namespace scape
