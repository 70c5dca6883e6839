// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What an optimizer on a stream knows only in device memory: the verdict on the gradient, the
//! scalars of the step, and how many steps were taken. So no step waits for the host.

#include <cstdint>
#include <functional>
#include <span>

#include <scape/concepts.hpp>
#include <scape/detail/checkpoint.hpp>
#include <scape/detail/cuda/launch.cuh>
#include <scape/detail/cuda/sum_of_squares.cuh>
#include <scape/optim/options.hpp>

namespace scape::detail::cuda {

struct optimizer_state {
  int skipped;  //!< some rank's gradient was not finite: this step changes nothing
  int failed;   //!< its reduce-scatter did not arrive
  float coefficient;
  rebuild_scalars scalars;
  step_arguments arguments;
  std::int64_t steps;
  std::int64_t skipped_steps;
  double own_square, all_square;
  double norm, clip_factor;
  unsigned long long mask_bits, common_bits;

  //! What a report says of the last step.
  void fill(step_report& report) const noexcept {
    report.skipped = skipped != 0;
    report.step = steps - (report.skipped ? 0 : 1);
    report.gradient_norm = norm;
    report.clip_factor = clip_factor;
    report.mask_overlap =
        mask_bits == 0 ? 0 : static_cast<double>(common_bits) / static_cast<double>(mask_bits);
  }
};

template <class State>
__global__ void set_arguments(State* state, step_arguments arguments) {
  state->arguments = arguments;
}

//! Turns the sums of squares into the verdict and the scalars of the step.
template <class State>
__global__ void begin_step(State* state, adam_options options, age_scaling moment_scaling,
                           age_scaling step_scaling, float tau_max, int ranks) {
  auto const guard =
      guarded(options, state->arguments, ranks, state->own_square, state->all_square);
  state->skipped = guard.finite ? 0 : 1;
  state->coefficient = guard.coefficient;
  state->norm = guard.norm;
  state->clip_factor = guard.clip_factor;
  state->scalars = scalars_of(options, state->arguments, ranks, state->steps);
  state->scalars.moment_scaling = moment_scaling;
  state->scalars.step_scaling = step_scaling;
  if (tau_max > 0) state->scalars.tau_max = tau_max;
  state->mask_bits = state->common_bits = 0;
}

template <class State>
__global__ void end_step(State* state) {
  state->skipped != 0 ? ++state->skipped_steps : ++state->steps;
}

//! A copy that is done when it returns, whichever side is the device's.
inline void copy(caller who, void* to, void const* from, std::size_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), who, "cudaMemcpy");
  // A copy from pageable memory may return before it has arrived. Null is the stream it used.
  check_cuda(cudaStreamSynchronize(nullptr), who, "cudaStreamSynchronize");
}

inline optimizer_state read_state(caller who, optimizer_state const* state) {
  optimizer_state result;
  copy(who, &result, state, sizeof(result));
  return result;
}

//! The state of an optimizer that continues from a file.
inline void write_state(caller who, optimizer_state* state, checkpoint_header const& header) {
  optimizer_state fresh = {};
  fresh.steps = static_cast<std::int64_t>(header.step);
  fresh.skipped_steps = static_cast<std::int64_t>(header.skipped);
  copy(who, state, &fresh, sizeof(fresh));
}

//! Waits for the stream as long as the communicator thinks fit, if it has an opinion.
template <class C>
void synchronize(caller who, cuda_context const& ctx, C& comm) {
  expect_no_capture(who, ctx.stream);
  if constexpr (requires { comm.synchronize(ctx); }) {
    comm.synchronize(ctx);
  } else {
    check_cuda(cudaStreamSynchronize(ctx.stream), who, "cudaStreamSynchronize");
  }
}

//! Enqueues the start of a step: norm, agreement, verdict.
template <class C, class Gradient>
void guard_gradient(caller who, cuda_context const& ctx, C& comm, adam_options const& options,
                    std::span<Gradient const> gradient, optimizer_state* state) {
  if (!measures_gradient(options)) {
    check_cuda(cudaMemsetAsync(&state->own_square, 0, 2 * sizeof(double), ctx.stream), who,
               "cudaMemsetAsync");
    return;
  }
  sum_of_squares(who, ctx, gradient, &state->own_square);
  if (agrees_on_gradient(options)) {
    // If the sum does not arrive it is a NaN, and the step is skipped.
    check_cuda(cudaMemsetAsync(&state->all_square, 0xff, sizeof(double), ctx.stream), who,
               "cudaMemsetAsync");
    comm.all_reduce(ctx, std::span<double const>(&state->own_square, 1),
                    std::span<double>(&state->all_square, 1), std::plus<>())
        .wait(ctx);
  } else {
    check_cuda(cudaMemcpyAsync(&state->all_square, &state->own_square, sizeof(double),
                               cudaMemcpyDeviceToDevice, ctx.stream),
               who, "cudaMemcpyAsync");
  }
}

}  // namespace scape::detail::cuda
