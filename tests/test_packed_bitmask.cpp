// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <scape/context/host.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>
#include <scape/packed_bitmask.hpp>

#include "support/raises.hpp"
#include "support/rank_data.hpp"
#include "support/reference_bitmask.hpp"

namespace {

namespace bits = scape::packed_bitmask;
using scape::bitmask_view;
using scape::const_bitmask_view;
using scape::mask_word;
using scape::testing::at;
using scape::testing::guarded;
using scape::testing::make_mask;
using scape::testing::make_vector;
using scape::testing::packed;
using scape::testing::rejects;
using scape::testing::same_bits;
using scape::testing::set_elements;

constexpr std::int64_t sizes[] = {0, 1, 63, 64, 65, 127, 128, 1000, 4096, 8191, 100003};

struct triple {
  std::int32_t a, b, c;
};

//! Calls f(context, mask, n) for all sizes and patterns on one, two and three threads.
template <class F>
void for_each_mask(F const& f) {
  for (int threads = 1; threads <= 3; ++threads) {
    auto const pool = threads == 1 ? nullptr : std::make_unique<scape::host_pool>(threads);
    scape::host_context const ctx{{}, pool.get()};
    for (auto const n : sizes) {
      for (auto const pattern : scape::testing::mask_patterns) {
        CAPTURE(threads);
        CAPTURE(n);
        CAPTURE(pattern);
        f(ctx, make_mask(pattern, n), n);
      }
    }
  }
}

template <class T>
T value(std::int64_t i) {
  return static_cast<T>(static_cast<float>(i % 251));
}
template <>
triple value<triple>(std::int64_t i) {
  return {static_cast<std::int32_t>(i), static_cast<std::int32_t>(-i), 7};
}

//! A span that ends where its allocation does, so that a sanitizer sees any longer read.
template <class T>
struct exact {
  exact(std::vector<T> const& values, std::int64_t offset) : memory(at(offset)), skipped(offset) {
    memory.insert(memory.end(), values.begin(), values.end());
    memory.shrink_to_fit();
  }
  std::span<T const> span() const { return std::span<T const>(memory).subspan(at(skipped)); }
  std::vector<T> memory;
  std::int64_t skipped;
};

}  // namespace

TEST_CASE("packing agrees with a bool per element") {
  for_each_mask([](auto const& ctx, auto const& mask, std::int64_t n) {
    auto const expected = packed(mask);
    auto const check = [&](auto const& pack) {
      guarded<mask_word> words(std::ssize(expected));
      std::ranges::fill(words.span(), ~mask_word{0});
      pack(bitmask_view(words.span(), n));
      CHECK(same_bits(words.span(), expected));
      CHECK(words.intact());
    };
    check([&](bitmask_view out) {
      bits::pack_if(
          ctx, n, [&](std::int64_t i) { return mask[at(i)]; }, out);
    });
    for (std::int64_t const offset : {0, 1}) {
      auto const values = make_vector(n, [&](auto i) { return mask[at(i)] ? 2.5F : -1.0F; });
      exact<float> const floats(values, offset);
      check([&](bitmask_view out) {
        bits::pack_if(
            ctx, floats.span(), [](float x) { return x > 0; }, out);
      });
      auto const bytes = make_vector(
          n, [&](auto i) { return static_cast<std::uint8_t>(mask[at(i)] ? 1 + i % 255 : 0); });
      exact<std::uint8_t> const flags(bytes, offset);
      check([&](bitmask_view out) { bits::pack_bytes(ctx, flags.span(), out); });
    }
    auto indices = set_elements(mask);
    std::ranges::reverse(indices);
    if (!indices.empty()) indices.push_back(indices.front());
    check([&](bitmask_view out) { bits::pack_indices(ctx, indices, out); });
  });
}

TEST_CASE("packing looks at every kind of value") {
  scape::host_context const ctx{};
  auto const nan = std::numeric_limits<float>::quiet_NaN();
  std::array const values = {nan, -nan, 0.0F, -0.0F, 1e-45F, -1e-45F, INFINITY, -INFINITY};
  auto const many = make_vector(8 * 128, [&](auto i) { return values[at(i % 8)]; });
  std::vector<mask_word> words(16);
  auto const check = [&](auto const& predicate) {
    bits::pack_if(ctx, many, predicate, bitmask_view(words, 8 * 128));
    for (std::int64_t i = 0; i < 8 * 128; ++i) {
      CHECK((words[at(i / 64)] >> (i % 64) & 1) == (predicate(many[at(i)]) ? 1U : 0U));
    }
  };
  check([](float x) { return x > 0; });
  check([](float x) { return x != x; });
  check([](float x) { return std::abs(x) >= 1e-45F; });
  check([](float x) { return std::signbit(x); });
}

TEST_CASE("unpacking, counting, rank and select agree with a bool per element") {
  for_each_mask([](auto const& ctx, auto const& mask, std::int64_t n) {
    auto words = packed(mask);
    if (n % 64 != 0) words.back() |= ~mask_word{0} << (n % 64);  // must be ignored
    const_bitmask_view const view(words, n);
    auto const elements = set_elements(mask);
    auto const count = std::ssize(elements);
    CHECK(bits::count(ctx, view) == count);

    guarded<std::uint8_t> bytes(n, 1);
    bits::unpack_bytes(ctx, view, bytes.span());
    CHECK(std::ranges::equal(bytes.span(), mask, {}, [](auto b) { return b == 1; }));
    CHECK(bytes.intact());

    guarded<std::int64_t> indices(count);
    bits::unpack_indices(ctx, view, indices.span());
    CHECK(same_bits(indices.span(), elements));
    CHECK(indices.intact());
    std::vector<std::int32_t> narrow(at(count));
    bits::unpack_indices(ctx, view, std::span(narrow));
    CHECK(std::ranges::equal(narrow, elements));

    std::vector<std::int64_t> seen(at(count), -1);
    bits::for_each_set(ctx, view, [&](std::int64_t i, std::int64_t r) { seen[at(r)] = i; });
    CHECK(seen == elements);

    auto const stride = std::max<std::int64_t>(n / 97, 1);
    for (std::int64_t i = 0; i <= n; i += stride) {
      auto const below = std::ranges::lower_bound(elements, i) - elements.begin();
      CHECK(bits::rank(ctx, view, i) == below);
    }
    CHECK(bits::rank(ctx, view, n) == count);
    for (std::int64_t r = 0; r < count; r += std::max<std::int64_t>(count / 97, 1)) {
      CHECK(bits::select(ctx, view, r) == elements[at(r)]);
    }
    if (count > 0) CHECK(bits::select(ctx, view, count - 1) == elements.back());
    CHECK(
        rejects([&] { (void)bits::select(ctx, view, count); }, {"select", std::to_string(count)}));
  });
}

TEST_CASE_TEMPLATE("gather and scatter move what is under the mask", T, std::uint8_t,
                   scape::bfloat16, scape::float16, float, double, triple) {
  for_each_mask([](auto const& ctx, auto const& mask, std::int64_t n) {
    auto words = packed(mask);
    if (n % 64 != 0) words.back() |= ~mask_word{0} << (n % 64);
    const_bitmask_view const view(words, n);
    auto const elements = set_elements(mask);
    auto const dense = make_vector(n, [](auto i) { return value<T>(i); });
    auto const few =
        make_vector(std::ssize(elements), [&](auto r) { return dense[at(elements[at(r)])]; });
    auto spread = make_vector(n, [](auto i) { return value<T>(i + 100); });
    auto const untouched = spread;
    for (auto const i : elements) spread[at(i)] = dense[at(i)];

    for (std::int64_t const offset : {0, 1}) {
      exact<T> const in(dense, offset);
      guarded<T> out(std::ssize(few), 1 - offset);
      bits::gather(ctx, view, in.span(), out.span());
      CHECK(same_bits(out.span(), few));
      CHECK(out.intact());

      exact<T> const values(few, 1 - offset);
      guarded<T> target(untouched, offset);
      bits::scatter(ctx, view, values.span(), target.span());
      CHECK(same_bits(target.span(), spread));
      CHECK(target.intact());
    }
  });
}

TEST_CASE("set algebra") {
  for_each_mask([](auto const& ctx, auto const& mask, std::int64_t n) {
    auto const other = make_mask("0.5", n);
    auto a = packed(mask);
    auto b = packed(other);
    auto const clean = a;
    if (n % 64 != 0) {
      a.back() |= ~mask_word{0} << (n % 64);
      b.back() |= mask_word{1} << 63;
    }
    auto const check = [&](auto const& function, auto const& op) {
      auto const expected = packed(make_vector(
          n, [&](auto i) -> bool { return op(bool{mask[at(i)]}, bool{other[at(i)]}); }));
      guarded<mask_word> out(std::ssize(a));
      function(ctx, const_bitmask_view(a, n), const_bitmask_view(b, n),
               bitmask_view(out.span(), n));
      CHECK(same_bits(out.span(), expected));
      CHECK(out.intact());
      auto first = a;
      function(ctx, bitmask_view(first, n), const_bitmask_view(b, n), bitmask_view(first, n));
      CHECK(first == expected);
      auto second = b;
      function(ctx, const_bitmask_view(a, n), bitmask_view(second, n), bitmask_view(second, n));
      CHECK(second == expected);
    };
    check(bits::bit_and, [](bool x, bool y) { return x && y; });
    check(bits::bit_or, [](bool x, bool y) { return x || y; });
    check(bits::bit_xor, [](bool x, bool y) { return x != y; });
    check(bits::and_not, [](bool x, bool y) { return x && !y; });

    bits::bit_and(ctx, bitmask_view(a, n), bitmask_view(a, n), bitmask_view(a, n));
    CHECK(a == clean);
    bits::fill(ctx, bitmask_view(a, n));
    CHECK(a == packed(make_mask("all", n)));
    bits::clear(ctx, bitmask_view(a, n));
    CHECK(a == packed(make_mask("none", n)));
  });
}

TEST_CASE("wrong arguments change nothing") {
  scape::host_context const ctx{};
  std::vector<mask_word> words(3, 1);
  auto const before = words;
  CHECK(rejects([&] { bitmask_view(words, 193); }, {"3 words", "4 are needed", "193"}));
  CHECK(rejects([&] { const_bitmask_view(words, -1); }, {"-1"}));
  CHECK(bitmask_view(words, 65).words.size() == 2);

  bitmask_view const mask(words, 130);
  std::vector<float> dense(130), few(3, 1), wrong(129);
  CHECK(rejects(
      [&] {
        bits::pack_if(
            ctx, wrong, [](float) { return true; }, mask);
      },
      {"pack_if", "130", "129"}));
  CHECK(rejects(
      [&] {
        bits::pack_if(
            ctx, 131, [](std::int64_t) { return true; }, mask);
      },
      {"pack_if", "130", "131"}));
  for (std::int64_t const index : {std::int64_t{130}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    std::vector<std::int64_t> const indices = {5, index};
    CHECK(rejects([&] { bits::pack_indices(ctx, indices, mask); },
                  {"pack_indices", std::to_string(index), "130"}));
  }
  CHECK(rejects([&] { bits::gather(ctx, mask, wrong, std::span(few)); }, {"gather", "129", "130"}));
  few.resize(2);
  CHECK(rejects([&] { bits::gather(ctx, mask, dense, std::span(few)); }, {"gather", "2", "3"}));
  few.resize(4);
  CHECK(rejects([&] { bits::scatter(ctx, mask, few, std::span(dense)); }, {"scatter", "4", "3"}));
  CHECK(rejects([&] { bits::scatter(ctx, mask, few, std::span(wrong)); }, {"scatter", "129"}));
  CHECK(rejects([&] { (void)bits::rank(ctx, mask, 131); }, {"rank", "131", "130"}));
  CHECK(rejects([&] { (void)bits::rank(ctx, mask, -1); }, {"rank", "-1"}));
  CHECK(rejects([&] { (void)bits::select(ctx, mask, -1); }, {"select", "-1"}));
  std::vector<std::int8_t> small(3);
  CHECK(rejects([&] { bits::unpack_indices(ctx, mask, std::span(small)); }, {"unpack_indices"}));
  std::vector<std::uint8_t> bytes(129);
  CHECK(rejects([&] { bits::unpack_bytes(ctx, mask, bytes); }, {"unpack_bytes", "129", "130"}));
  CHECK(rejects([&] { bits::bit_or(ctx, mask, bitmask_view(words, 129), mask); }, {"130", "129"}));
  CHECK(words == before);
  CHECK(std::ranges::count(dense, 0.0F) == 130);
}
