// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Keys that order floats by magnitude, and what one selection learns for the next. The same on
//! every backend.

#include <cstdint>

#include <scape/config.hpp>

namespace scape {

//! Memory of one selection group from call to call. It makes the next selection faster, never
//! different: any content is valid, a new one knows nothing.
struct topk_hint {
  std::int32_t key = 0;    //!< of the k-th largest element, as an integer; 0: unknown
  std::int32_t width = 0;  //!< how far the next one may be from it
};

namespace detail::topk {

//! Magnitudes as integers: 1 is a NaN that ranks last, 2 is zero, 0x7f800002 infinity, and the
//! largest a NaN that ranks first. 0 stands for no element. All NaNs are equal.
using key = std::int32_t;
inline constexpr key smallest_key = 1;
inline constexpr key largest_key = 0x7f800003;

//! Integer operations only, so that flush-to-zero and -ffast-math make no difference.
SCAPE_HOST_DEVICE SCAPE_ALWAYS_INLINE key key_of(float x, key nan_key) noexcept {
  auto const magnitude = bit_cast<std::int32_t>(x) & 0x7fffffff;
  return magnitude > 0x7f800000 ? nan_key : magnitude + 2;
}

template <class T>
SCAPE_HOST_DEVICE constexpr T lesser(T a, T b) noexcept {
  return b < a ? b : a;
}
template <class T>
SCAPE_HOST_DEVICE constexpr T greater(T a, T b) noexcept {
  return a < b ? b : a;
}

//! Keys lo ... hi, both included.
struct bracket {
  key lo = smallest_key;
  key hi = largest_key;
  [[nodiscard]] SCAPE_HOST_DEVICE bool empty() const noexcept { return lo > hi; }
  [[nodiscard]] SCAPE_HOST_DEVICE bool single() const noexcept { return lo == hi; }
  [[nodiscard]] SCAPE_HOST_DEVICE bool holds(key t) const noexcept { return lo <= t && t <= hi; }
  bool operator==(bracket const&) const = default;
};

SCAPE_HOST_DEVICE inline bracket intersection(bracket a, bracket b) noexcept {
  return {greater(a.lo, b.lo), lesser(a.hi, b.hi)};
}

//! What a selection found out, for the next one.
struct outcome {
  key threshold = 0;            //!< key of the k-th element; 0 if the keys did not matter
  std::int64_t inside = 0;      //!< keys counted in the first bracket that was tried
  bool inside_counted = false;  //!< they were, all of them
};

//! A hundredth of the threshold, about: where nothing is known of its pace.
inline constexpr std::int32_t default_hint_width = 1 << 16;
inline constexpr std::int32_t max_hint_width = 1 << 26;

SCAPE_HOST_DEVICE inline std::int32_t width_of(topk_hint hint) noexcept {
  return lesser(greater(hint.width, 0), max_hint_width);
}

//! Where the threshold is looked for first; empty if the hint knows nothing.
SCAPE_HOST_DEVICE inline bracket bracket_of(topk_hint hint) noexcept {
  if (hint.key < smallest_key || hint.key > largest_key) return {1, 0};
  auto const width = width_of(hint);
  return {greater(hint.key - width, smallest_key),
          hint.key + lesser(width, largest_key - hint.key)};
}

//! Follows the threshold: wide enough for four times its last move, but not for more than 1/64 of
//! the elements, as those inside cost more than those outside. Width 0 is for heavy ties.
SCAPE_HOST_DEVICE inline void learn(topk_hint& hint, outcome const& found,
                                    std::int64_t length) noexcept {
  if (found.threshold == 0) return;
  auto const tried = bracket_of(hint);
  auto width = std::int64_t{default_hint_width};
  if (!tried.empty()) {
    auto const difference = std::int64_t{found.threshold} - hint.key;
    auto const move = greater(difference, -difference);
    auto const used = std::int64_t{width_of(hint)};
    auto const least =
        tried.holds(found.threshold) ? greater<std::int64_t>(used - used / 4, 1) : width;
    width = greater(4 * move, least);
    if (found.inside_counted && found.inside > length / 64) {
      width = lesser(width, used * (length / 128) / found.inside);
    }
  }
  hint = {found.threshold, static_cast<std::int32_t>(lesser<std::int64_t>(width, max_hint_width))};
}

}  // namespace detail::topk
}  // namespace scape
