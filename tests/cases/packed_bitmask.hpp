// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What packed_bitmask does, on every backend. Include it behind the header of the backend's
//! overloads; a backend on a device has scratch_bytes(elements).

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <scape/config.hpp>
#include <scape/float16.hpp>
#include <scape/packed_bitmask.hpp>

#include "support/backend.hpp"
#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_bitmask.hpp"

namespace scape::testing {

namespace bits = packed_bitmask;

template <class Backend, class T>
using guarded_on = guarded<T, typename Backend::template vector<std::byte>>;

//! A copy of `values` that the backend can reach.
template <class Backend, class T>
auto copy_on(std::vector<T> const& values) {
  return typename Backend::template vector<T>(values.begin(), values.end());
}

//! Values that end where their allocation does, so that a longer read is seen.
template <class Backend, class T>
struct exact {
  exact(std::vector<T> const& values, std::int64_t offset)
      : memory(at(offset) + values.size()), skipped(at(offset)) {
    std::ranges::copy(values, memory.begin() + offset);
  }
  std::span<T const> span() const { return std::span<T const>(memory).subspan(skipped); }
  typename Backend::template vector<T> memory;
  std::size_t skipped;
};

//! Calls f(context) with the scratch that a mask of n elements can need on a device.
template <class Backend, class F>
void run(std::int64_t n, F const& f) {
  std::size_t scratch = 0;
  if constexpr (Backend::cuda) scratch = Backend::scratch_bytes(n);
  Backend::run(scratch, f);
}

//! A number that f() returns on the host and f(pointer) writes on a device.
template <class Backend, class F>
void put(std::int64_t& number, F const& f) {
  if constexpr (Backend::cuda) {
    f(&number);
  } else {
    number = f();
  }
}

//! Calls f(mask, n) for all sizes and patterns; on a device, whose kernels depend less on them, for
//! fewer.
template <class Backend, class F>
void for_each_mask(F const& f) {
  constexpr std::int64_t sizes[] = {0, 1, 63, 64, 65, 1000, 100003, 128, 4096, 8191};
  for (auto const n : std::span(sizes).first(Backend::cuda ? 7 : std::size(sizes))) {
    for (auto const pattern : mask_patterns) {
      if (Backend::cuda && n > 10000 && pattern != "0.01" && pattern != "few and many") continue;
      CAPTURE(n);
      CAPTURE(pattern);
      f(make_mask(pattern, n), n);
    }
  }
}

//! The mask, with bits past the last element that must be ignored.
template <class Backend>
auto dirty_words(std::vector<bool> const& mask) {
  auto words = copy_on<Backend>(packed(mask));
  auto const used = std::ssize(mask) % mask_word_bits;
  if (used != 0) words.back() |= ~mask_word{0} << used;
  return words;
}

struct triple {
  std::int32_t a, b, c;
};

template <class T>
T sample_value(std::int64_t i) {
  return static_cast<T>(static_cast<float>(i % 251));
}
template <>
inline triple sample_value<triple>(std::int64_t i) {
  return {static_cast<std::int32_t>(i), static_cast<std::int32_t>(-i), 7};
}

struct is_set {
  mask_word const* words;
  SCAPE_HOST_DEVICE bool operator()(std::int64_t i) const { return words[i / 64] >> i % 64 & 1; }
};
struct is_positive {
  template <class T>
  SCAPE_HOST_DEVICE bool operator()(T const& x) const {
    return static_cast<float>(x) > 0;
  }
};
struct is_nan {
  SCAPE_HOST_DEVICE bool operator()(float x) const { return x != x; }
};
struct is_denormal_or_more {
  SCAPE_HOST_DEVICE bool operator()(float x) const { return x >= 1e-45F || x <= -1e-45F; }
};
struct has_sign {
  SCAPE_HOST_DEVICE bool operator()(float x) const {
    return detail::bit_cast<std::uint32_t>(x) >> 31 != 0;
  }
};
struct every {
  template <class T>
  SCAPE_HOST_DEVICE bool operator()(T const&) const {
    return true;
  }
};
struct neither {
  SCAPE_HOST_DEVICE mask_word operator()(mask_word a, mask_word b) const { return ~(a | b); }
};
struct store_element {
  std::int64_t* elements;
  SCAPE_HOST_DEVICE void operator()(std::int64_t element, std::int64_t r) const {
    elements[r] = element;
  }
};

TEST_CASE_TEMPLATE_DEFINE("packing agrees with a bool per element", Backend, bitmask_packing) {
  for_each_mask<Backend>([](auto const& mask, std::int64_t n) {
    auto const expected = packed(mask);
    auto const check = [&](auto const& pack) {
      guarded_on<Backend, mask_word> words(std::ssize(expected));
      std::ranges::fill(words.span(), ~mask_word{0});
      Backend::run(0, [&](auto const& ctx) { pack(ctx, bitmask_view(words.span(), n)); });
      CHECK(same_bits(words.span(), expected));
      CHECK(words.intact());
    };
    auto const source = copy_on<Backend>(expected);
    check([&](auto const& ctx, bitmask_view out) {
      bits::pack_if(ctx, n, is_set{source.data()}, out);
    });
    auto const check_values = [&]<class T>(T yes, T no) {
      auto const values = make_vector(n, [&](auto i) { return mask[at(i)] ? yes : no; });
      for (std::int64_t const offset : {0, 1}) {
        exact<Backend, T> const in(values, offset);
        check([&](auto const& ctx, bitmask_view out) {
          bits::pack_if(ctx, in.span(), is_positive{}, out);
        });
      }
    };
    check_values(2.5F, -1.0F);
    if (n <= 1000) {
      check_values(bfloat16(2.5F), bfloat16(-1.0F));
      check_values(2.5, -1.0);
      check_values(std::int8_t{1}, std::int8_t{-128});
    }
    auto const bytes = make_vector(
        n, [&](auto i) { return static_cast<std::uint8_t>(mask[at(i)] ? 1 + i % 255 : 0); });
    for (std::int64_t const offset : {0, 1, 8}) {
      exact<Backend, std::uint8_t> const flags(bytes, offset);
      check([&](auto const& ctx, bitmask_view out) { bits::pack_bytes(ctx, flags.span(), out); });
    }
    auto indices = set_elements(mask);
    std::ranges::reverse(indices);
    if (!indices.empty()) indices.push_back(indices.front());
    auto const list = copy_on<Backend>(indices);
    check([&](auto const& ctx, bitmask_view out) { bits::pack_indices(ctx, list, out); });
    auto const narrow = copy_on<Backend>(std::vector<std::uint32_t>(list.begin(), list.end()));
    check([&](auto const& ctx, bitmask_view out) { bits::pack_indices(ctx, narrow, out); });
  });
}

TEST_CASE_TEMPLATE_DEFINE("packing looks at every kind of value", Backend, bitmask_values) {
  constexpr std::int64_t n = 8 * 128;
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  auto const infinity = std::numeric_limits<float>::infinity();
  std::array const values = {nan, -nan, 0.0F, -0.0F, 1e-45F, -1e-45F, infinity, -infinity};
  auto const many = copy_on<Backend>(make_vector(n, [&](auto i) { return values[at(i % 8)]; }));
  typename Backend::template vector<mask_word> words(at(mask_words(n)));
  auto const check = [&](auto const& predicate) {
    Backend::run(
        0, [&](auto const& ctx) { bits::pack_if(ctx, many, predicate, bitmask_view(words, n)); });
    for (std::int64_t i = 0; i < n; ++i) {
      CHECK(is_set{words.data()}(i) == predicate(many[at(i)]));
    }
  };
  check(is_positive{});
  check(is_nan{});
  check(is_denormal_or_more{});
  check(has_sign{});
}

TEST_CASE_TEMPLATE_DEFINE("unpacking, counting, rank and select agree with a bool per element",
                          Backend, bitmask_queries) {
  using numbers = typename Backend::template vector<std::int64_t>;
  for_each_mask<Backend>([](auto const& mask, std::int64_t n) {
    auto const words = dirty_words<Backend>(mask);
    const_bitmask_view const view(words, n);
    auto const elements = set_elements(mask);
    auto const count = std::ssize(elements);
    auto const places = make_vector(34, [&](auto i) { return i * n / 33; });
    auto const ranks =
        make_vector(count == 0 ? 0 : 12, [&](auto i) { return i * (count - 1) / 11; });

    numbers number(2), below(places.size()), selected(ranks.size()), seen(at(count), -1);
    guarded_on<Backend, std::uint8_t> bytes(n, 1), aligned(n, 0);
    guarded_on<Backend, std::int64_t> indices(count);
    guarded_on<Backend, std::int32_t> narrow(count);
    run<Backend>(n, [&](auto const& ctx) {
      put<Backend>(number[0], [&](auto... out) { return bits::count(ctx, view, out...); });
      for (std::size_t i = 0; i < places.size(); ++i) {
        put<Backend>(below[i],
                     [&](auto... out) { return bits::rank(ctx, view, places[i], out...); });
      }
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        put<Backend>(selected[i],
                     [&](auto... out) { return bits::select(ctx, view, ranks[i], out...); });
      }
      bits::for_each_set(ctx, view, store_element{seen.data()});
      bits::unpack_bytes(ctx, view, bytes.span());
      bits::unpack_bytes(ctx, view, aligned.span());
      bits::unpack_indices(ctx, view, indices.span());
      bits::unpack_indices(ctx, view, narrow.span());
    });

    CHECK(number[0] == count);
    CHECK(number[1] == 0);
    for (std::size_t i = 0; i < places.size(); ++i) {
      CHECK(below[i] == std::ranges::lower_bound(elements, places[i]) - elements.begin());
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) CHECK(selected[i] == elements[at(ranks[i])]);
    CHECK(std::ranges::equal(seen, elements));
    for (auto* const unpacked : {&bytes, &aligned}) {
      CHECK(std::ranges::equal(unpacked->span(), mask, {}, [](auto b) { return b == 1; }));
      CHECK(unpacked->intact());
    }
    CHECK(same_bits(indices.span(), elements));
    CHECK(indices.intact());
    CHECK(std::ranges::equal(narrow.span(), elements));
    CHECK(narrow.intact());
  });
}

template <class Backend, class T>
void check_moves(std::vector<bool> const& mask, std::int64_t n) {
  auto const words = dirty_words<Backend>(mask);
  const_bitmask_view const view(words, n);
  auto const elements = set_elements(mask);
  auto const dense = make_vector(n, [](auto i) { return sample_value<T>(i); });
  auto const few =
      make_vector(std::ssize(elements), [&](auto r) { return dense[at(elements[at(r)])]; });
  auto const untouched = make_vector(n, [](auto i) { return sample_value<T>(i + 100); });
  auto spread = untouched;
  for (auto const i : elements) spread[at(i)] = dense[at(i)];

  for (std::int64_t const offset : {0, 1}) {
    exact<Backend, T> const in(dense, offset), values(few, 1 - offset);
    guarded_on<Backend, T> out(std::ssize(few), 1 - offset), target(untouched, offset);
    run<Backend>(n, [&](auto const& ctx) {
      bits::gather(ctx, view, in.span(), out.span());
      bits::scatter(ctx, view, values.span(), target.span());
    });
    CHECK(same_bits(out.span(), few));
    CHECK(out.intact());
    CHECK(same_bits(target.span(), spread));
    CHECK(target.intact());
  }
}

TEST_CASE_TEMPLATE_DEFINE("gather and scatter move what is under the mask", Backend,
                          bitmask_moves) {
  for_each_mask<Backend>([](auto const& mask, std::int64_t n) {
    check_moves<Backend, float>(mask, n);
    check_moves<Backend, triple>(mask, n);
    if (Backend::cuda && n > 10000) return;
    check_moves<Backend, std::uint8_t>(mask, n);
    check_moves<Backend, bfloat16>(mask, n);
    check_moves<Backend, float16>(mask, n);
    check_moves<Backend, double>(mask, n);
  });
}

TEST_CASE_TEMPLATE_DEFINE("set algebra", Backend, bitmask_algebra) {
  for_each_mask<Backend>([](auto const& mask, std::int64_t n) {
    auto const other = make_mask("0.5", n);
    auto a = dirty_words<Backend>(mask);
    auto const b = dirty_words<Backend>(other);
    auto const check = [&](auto const& function, auto const& op) {
      auto const expected = packed(make_vector(
          n, [&](auto i) -> bool { return op(bool{mask[at(i)]}, bool{other[at(i)]}); }));
      guarded_on<Backend, mask_word> out(std::ssize(a));
      auto first = a;
      auto second = b;
      Backend::run(0, [&](auto const& ctx) {
        const_bitmask_view const x(a, n), y(b, n);
        function(ctx, x, y, bitmask_view(out.span(), n));
        function(ctx, bitmask_view(first, n), y, bitmask_view(first, n));
        function(ctx, x, bitmask_view(second, n), bitmask_view(second, n));
      });
      CHECK(same_bits(out.span(), expected));
      CHECK(out.intact());
      CHECK(std::ranges::equal(first, expected));
      CHECK(std::ranges::equal(second, expected));
    };
    check([](auto const&... x) { bits::bit_and(x...); }, [](bool x, bool y) { return x && y; });
    check([](auto const&... x) { bits::bit_or(x...); }, [](bool x, bool y) { return x || y; });
    check([](auto const&... x) { bits::bit_xor(x...); }, [](bool x, bool y) { return x != y; });
    check([](auto const&... x) { bits::and_not(x...); }, [](bool x, bool y) { return x && !y; });
    check([](auto const&... x) { bits::combine(x..., neither{}); },
          [](bool x, bool y) { return !x && !y; });

    bitmask_view const view(a, n);
    Backend::run(0, [&](auto const& ctx) { bits::bit_and(ctx, view, view, view); });
    CHECK(std::ranges::equal(a, packed(mask)));
    Backend::run(0, [&](auto const& ctx) { bits::fill(ctx, view); });
    CHECK(std::ranges::equal(a, packed(make_mask("all", n))));
    Backend::run(0, [&](auto const& ctx) { bits::clear(ctx, view); });
    CHECK(std::ranges::equal(a, packed(make_mask("none", n))));
  });
}

TEST_CASE_TEMPLATE_DEFINE("wrong arguments change nothing", Backend, bitmask_arguments) {
  using std::to_string;
  typename Backend::template vector<mask_word> words(3, 1);
  CHECK(rejects([&] { bitmask_view(words, 193); }, {"3 words", "4 are needed", "193"}));
  CHECK(rejects([&] { const_bitmask_view(words, -1); }, {"-1"}));
  CHECK(bitmask_view(words, 65).words.size() == 2);

  bitmask_view const mask(words, 130);
  typename Backend::template vector<float> dense(130), few(3, 1), wrong(129);
  typename Backend::template vector<std::int8_t> small(3);
  typename Backend::template vector<std::uint8_t> bytes(129);
  typename Backend::template vector<std::int64_t> number(1);
  run<Backend>(130, [&](auto const& ctx) {
    CHECK(rejects([&] { bits::pack_if(ctx, wrong, every{}, mask); }, {"pack_if", "130", "129"}));
    CHECK(rejects([&] { bits::pack_if(ctx, 131, every{}, mask); }, {"pack_if", "130", "131"}));
    CHECK(rejects([&] { bits::pack_bytes(ctx, bytes, mask); }, {"pack_", "130", "129"}));
    CHECK(
        rejects([&] { bits::gather(ctx, mask, wrong, std::span(few)); }, {"gather", "129", "130"}));
    CHECK(rejects([&] { bits::scatter(ctx, mask, few, std::span(wrong)); }, {"scatter", "129"}));
    for (std::int64_t const i : {-1, 131}) {
      auto const rank = [&](auto... out) { return bits::rank(ctx, mask, i, out...); };
      CHECK(rejects([&] { put<Backend>(number[0], rank); }, {"rank", to_string(i), "130"}));
    }
    for (std::int64_t const r : {-1, 130}) {
      auto const select = [&](auto... out) { return bits::select(ctx, mask, r, out...); };
      CHECK(rejects([&] { put<Backend>(number[0], select); }, {"select", to_string(r), "130"}));
    }
    CHECK(rejects([&] { bits::unpack_indices(ctx, mask, std::span(small)); }, {"unpack_indices"}));
    CHECK(rejects([&] { bits::unpack_bytes(ctx, mask, bytes); }, {"unpack_bytes", "129", "130"}));
    CHECK(
        rejects([&] { bits::bit_or(ctx, mask, bitmask_view(words, 129), mask); }, {"130", "129"}));
    CHECK(
        rejects([&] { bits::bit_or(ctx, mask, mask, bitmask_view(words, 129)); }, {"130", "129"}));
  });
  CHECK(std::ranges::count(words, mask_word{1}) == 3);
  CHECK(std::ranges::count(dense, 0.0F) == 130);
  CHECK(number[0] == 0);
}

}  // namespace scape::testing
