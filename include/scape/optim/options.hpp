// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Options, arguments and reports of the dense and the sparse optimizer.

#include <cmath>
#include <cstdint>

#include <scape/config.hpp>
#include <scape/detail/moment_rebuild.hpp>
#include <scape/error.hpp>
#include <scape/partitioned_topk_mask.hpp>
#include <scape/single_buffer_moment_rebuild.hpp>

namespace scape {

//! The norm that clipping bounds. Both are of the gradient alone, without the residual.
enum class clip_scope : std::uint8_t {
  own_gradient,  //!< each rank's own gradient, by a factor of its own; no communication
  mean_square    //!< sqrt(mean over ranks of |g_i|^2), at least |mean g|; one factor for all ranks
};

//! What AdamS and AdamW need, dense or sparse.
struct adam_options {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;  //!< added outside the root
  float weight_decay = 0;
  bool bias_correction = true;  //!< by the number of steps taken
  float clip_norm = 0;          //!< 0: no clipping
  clip_scope clip = clip_scope::own_gradient;
  //! Agree by one 8-byte all-reduce, before anything is changed, to skip a step in which any
  //! rank's gradient has an Inf or a NaN, or a norm beyond float.
  bool skip_nonfinite = true;
  //! For debugging, on the host: before every step, make sure that all ranks are about to take the
  //! same one, with the same mask and, at the start and after load(), the same weights. See
  //! agreement.hpp.
  bool check_agreement = false;
};

enum class statistic_kind : std::uint8_t { staleness_aware, literal, random };

//! The masks of the first steps, before a lagged one can be there.
enum class first_mask : std::uint8_t {
  dense,     //!< everything is sent
  statistic  //!< made and gathered within the step
};

struct sparse_optimizer_options : adam_options {
  double density = 0.1;  //!< of spans that have none of their own
  //! Steps of a geometric ramp from dense: density^(t / ramp) at step t.
  std::int64_t density_ramp_steps = 0;
  int lag = 1;  //!< steps between the making of a mask and its use
  statistic_kind statistic = statistic_kind::staleness_aware;
  std::uint64_t seed = 0;  //!< of the random statistic
  first_mask first = first_mask::dense;
  age_scaling moment_scaling = age_scaling::sqrt;
  age_scaling step_scaling = age_scaling::sqrt;
  float tau_max = 0;  //!< largest tau used by the scalings; 0: no limit
  unmasked_moment unmasked = unmasked_moment::hold;
  nan_policy nan = nan_policy::first;
  bool statistics = false;  //!< fill mask_overlap and residual_norm of the report (reads 4n bytes)
  //! On CUDA: keep the owner's weights in float beside the model's, which may then be 16-bit.
  bool master_weights = false;
  //! On CUDA: keep the residual of the other shards in pinned host memory and stream it through
  //! two device buffers of `offload_chunk` elements. The host has nothing to offload.
  bool offload_residual = false;
  std::int64_t offload_chunk = std::int64_t{1} << 22;

  //! The recommended recipe: the dense learning rate carries over.
  [[nodiscard]] static sparse_optimizer_options staleness_aware(double density) {
    sparse_optimizer_options o;
    o.density = density;
    return o;
  }

  //! |beta1 m + u|, no age scaling: needs a learning rate of its own, and more steps.
  [[nodiscard]] static sparse_optimizer_options literal(double density) {
    sparse_optimizer_options o;
    o.density = density;
    o.statistic = statistic_kind::literal;
    o.moment_scaling = o.step_scaling = age_scaling::none;
    return o;
  }

  //! The exponent of layout::plan at `step`.
  [[nodiscard]] double ramp(std::int64_t step) const noexcept {
    if (step >= density_ramp_steps) return 1;
    return static_cast<double>(step) / static_cast<double>(density_ramp_steps);
  }
};

struct step_arguments {
  float lr = 1e-3F;
  //! The gradient handed in is divided by this: micro-batches summed, times the loss scale.
  float gradient_divisor = 1;
};

//! Payload bytes this rank received, by kind, in a bandwidth-optimal algorithm.
struct step_bytes {
  std::int64_t values = 0;
  std::int64_t parameters = 0;
  std::int64_t mask = 0;     //!< of the gather that was started in this step
  std::int64_t control = 0;  //!< the agreement of skip_nonfinite and clip_scope::mean_square
  [[nodiscard]] std::int64_t total() const noexcept { return values + parameters + mask + control; }
};

//! Wall time of the phases of a step.
struct step_milliseconds {
  double guard = 0;           //!< norm, clipping, agreement
  double mask_wait = 0;       //!< until the mask of this step is there
  double reduce_scatter = 0;  //!< accumulate, compact, reduce-scatter
  double rebuild = 0;
  double all_gather = 0;  //!< of the parameters
  double select = 0;      //!< top-k, and the start of the mask's all-gather
  [[nodiscard]] double total() const noexcept {
    return guard + mask_wait + reduce_scatter + rebuild + all_gather + select;
  }
};

struct step_report {
  std::int64_t step = 0;     //!< 0 for the first one
  bool skipped = false;      //!< some rank's gradient had an Inf or a NaN; nothing was changed
  double density = 0;        //!< values sent / n
  double gradient_norm = 0;  //!< of this rank's gradient after the divisor, before clipping
  double clip_factor = 1;
  double mask_overlap = 0;   //!< share of this mask that was in the previous one
  double residual_norm = 0;  //!< of this rank, at the end of the step
  step_bytes bytes;
  step_milliseconds milliseconds;
};

namespace detail {

inline void expect_valid(caller op, adam_options const& o) {
  expect(o.beta1 >= 0 && o.beta1 < 1, op, "beta1 is outside [0, 1)");
  expect(o.beta2 >= 0 && o.beta2 < 1, op, "beta2 is outside [0, 1)");
  expect(o.epsilon > 0 && std::isfinite(o.epsilon), op, "epsilon is not a positive number");
  expect(std::isfinite(o.weight_decay), op, "weight_decay is not finite");
  expect(o.clip_norm >= 0, op, "clip_norm is negative; 0 turns clipping off");
}

inline void expect_valid(caller op, sparse_optimizer_options const& o) {
  expect_valid(op, static_cast<adam_options const&>(o));
  expect(o.density >= 0 && o.density <= 1, op, "density is outside [0, 1]");
  expect(o.density_ramp_steps >= 0, op, "density_ramp_steps is negative");
  expect(o.density > 0 || o.density_ramp_steps == 0, op,
         "a geometric ramp cannot end at density 0");
  expect(o.lag >= 0, op, "the lag is negative");
  expect(o.tau_max == 0 || o.tau_max >= 1, op, "tau_max is below 1; 0 means no limit");
  expect(o.offload_chunk >= 1, op, "offload_chunk is below 1");
}

inline void expect_valid(caller op, step_arguments const& a) {
  expect(std::isfinite(a.lr), op, "the learning rate is not finite");
  expect(a.gradient_divisor > 0 && std::isfinite(a.gradient_divisor) &&
             std::isfinite(1 / a.gradient_divisor),
         op, "gradient_divisor is not a positive number with a finite inverse");
}

//! x to the n-th, by products alone: the same bits on every backend.
SCAPE_HOST_DEVICE inline double power(double x, std::int64_t n) noexcept {
  double result = 1;
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result *= x;
    x *= x;
  }
  return result;
}

//! 1 / (1 - beta^t)
SCAPE_HOST_DEVICE inline float bias_correction(float beta, std::int64_t t) noexcept {
  auto const b = static_cast<double>(beta);
  return static_cast<float>(1 / std::fma(-power(b, t / 2), power(b, t - t / 2), 1.0));
}

//! The scalars of step `step` (0 for the first) for `ranks` ranks.
SCAPE_HOST_DEVICE inline rebuild_scalars scalars_of(adam_options const& o, step_arguments const& a,
                                                    int ranks, std::int64_t step) noexcept {
  rebuild_scalars c;
  c.mean = static_cast<float>(1.0 / ranks);
  c.beta1 = o.beta1;
  c.inverse_one_minus_beta1 = static_cast<float>(1 / (1 - static_cast<double>(o.beta1)));
  c.beta2 = o.beta2;
  c.one_minus_beta2 = static_cast<float>(1 - static_cast<double>(o.beta2));
  c.first_correction = o.bias_correction ? bias_correction(o.beta1, step + 1) : 1.0F;
  c.second_correction = o.bias_correction ? bias_correction(o.beta2, step + 1) : 1.0F;
  c.learning_rate = a.lr;
  c.epsilon = o.epsilon;
  c.weight_decay = o.weight_decay;
  return c;
}

//! What the sums of squares of a gradient say about a step.
struct guarded_gradient {
  bool finite = true;
  double norm = 0;
  double clip_factor = 1;
  float coefficient = 1;  //!< (1 - beta1) * clip_factor / divisor
};

//! Whether the sums are wanted at all, and whether those of all ranks are.
constexpr bool measures_gradient(adam_options const& o) noexcept {
  return o.skip_nonfinite || o.clip_norm > 0;
}
constexpr bool agrees_on_gradient(adam_options const& o) noexcept {
  return measures_gradient(o) && (o.skip_nonfinite || o.clip == clip_scope::mean_square);
}

//! `own` and `all` are the sums of squares of this rank's gradient and of all ranks' ones.
SCAPE_HOST_DEVICE inline guarded_gradient guarded(adam_options const& o, step_arguments const& a,
                                                  int ranks, double own, double all) noexcept {
  constexpr double largest = 0x1.fffffep127;  // of float
  auto const divisor = static_cast<double>(a.gradient_divisor);
  guarded_gradient result;
  result.finite = !o.skip_nonfinite || std::sqrt(all) / divisor <= largest;
  result.norm = std::sqrt(own) / divisor;
  auto const clipped =
      o.clip == clip_scope::own_gradient ? result.norm : std::sqrt(all / ranks) / divisor;
  auto const bound = static_cast<double>(o.clip_norm);
  if (bound > 0 && clipped > bound && std::isfinite(clipped)) result.clip_factor = bound / clipped;
  result.coefficient =
      static_cast<float>((1 - static_cast<double>(o.beta1)) * (result.clip_factor / divisor));
  return result;
}

//! Payload bytes of the agreement.
constexpr std::int64_t control_bytes(adam_options const& o, int ranks) noexcept {
  return agrees_on_gradient(o) ? std::int64_t{2 * sizeof(double)} * (ranks - 1) / ranks : 0;
}

}  // namespace detail
}  // namespace scape
