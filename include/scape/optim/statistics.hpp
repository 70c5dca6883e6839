// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What decides which coordinates are worth sending: the top-k of a statistic's magnitude.

#include <concepts>
#include <cstdint>

#include <scape/config.hpp>

namespace scape {

//! One coordinate as its owner sees it.
struct statistic_input {
  float moment = 0;          //!< first moment
  float residual = 0;        //!< the owner's accumulated, not yet sent part
  float age = 0;             //!< steps since the coordinate was last sent
  std::int64_t element = 0;  //!< index in the flat vector
  std::int64_t step = 0;     //!< the step whose mask is being made
};

//! A statistic is a functor from statistic_input to float. With `before_send`, it is evaluated at
//! the start of a step, on the residual with this step's gradient in it; otherwise at its end, on
//! what the step left behind. It must not throw. Synchronous masks (lag 0) are always made before
//! the send.
template <class S>
concept coordinate_statistic = requires(S const& s, statistic_input const& in) {
  { s(in) } -> std::same_as<float>;
  { S::before_send } -> std::convertible_to<bool>;
};

//! |m + e| (1 + age): nothing starves, and the dense learning rate carries over.
struct staleness_aware_statistic {
  static constexpr bool before_send = false;
  SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float operator()(statistic_input const& in) const noexcept {
    return (in.moment + in.residual) * (1.0F + in.age);
  }
};

//! |beta1 m + u|: the first moment as this rank alone would update it.
struct literal_statistic {
  static constexpr bool before_send = true;
  float beta1 = 0.9F;
  SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float operator()(statistic_input const& in) const noexcept {
    return detail::fmadd(beta1, in.moment, in.residual);
  }
};

//! Uniform in [0, 1) from a hash of seed, step and element: the control of every experiment.
struct random_statistic {
  static constexpr bool before_send = false;
  std::uint64_t seed = 0;
  SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE float operator()(statistic_input const& in) const noexcept {
    auto x = seed + 0x9e3779b97f4a7c15U * static_cast<std::uint64_t>(in.step) +
             0xbf58476d1ce4e5b9U * static_cast<std::uint64_t>(in.element);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;  // the finaliser of splitmix64
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-24F;
  }
};

//! Stands for the statistic named in the options.
struct statistic_of_options {};

template <class S>
concept statistic_choice = coordinate_statistic<S> || std::same_as<S, statistic_of_options>;

}  // namespace scape
