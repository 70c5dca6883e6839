// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <scape/layout.hpp>

#include "support/raises.hpp"
#include "support/rank_data.hpp"

using scape::index_range;
using scape::layout;
using scape::layout_options;
using scape::parameter_span;
using scape::send_plan;
using scape::span_policy;
using scape::topk_scope;
using scape::testing::at;
using scape::testing::rejects;

namespace {

using counts = std::vector<std::int64_t>;

counts sizes(layout const& l) {
  counts result;
  for (int p = 0; p < l.shards(); ++p) result.push_back(l.shard_size(p));
  return result;
}

layout unaligned(std::int64_t n, int shards) { return {n, shards, layout_options{.alignment = 1}}; }

//! wte | ln.g | frozen | head (own density), 100 elements.
std::vector<parameter_span> model() {
  return {{.name = "wte", .offset = 0, .length = 40},
          {.name = "ln.g", .offset = 40, .length = 10, .policy = span_policy::always},
          {.name = "pos", .offset = 50, .length = 20, .policy = span_policy::frozen},
          {.name = "ln.b", .offset = 70, .length = 5, .policy = span_policy::always},
          {.name = "head", .offset = 75, .length = 20, .density = 0.25},
          {.name = "proj", .offset = 95, .length = 5, .lr_scale = 2}};
}

}  // namespace

TEST_CASE("equal shards are aligned, cover n, and the last ones may be empty") {
  CHECK(sizes(layout(0, 1)) == counts{0});
  CHECK(sizes(layout(0, 3)) == counts{0, 0, 0});
  CHECK(sizes(layout(1, 4)) == counts{1, 0, 0, 0});
  CHECK(sizes(layout(63, 2)) == counts{63, 0});
  CHECK(sizes(layout(64, 2)) == counts{64, 0});
  CHECK(sizes(layout(65, 2)) == counts{64, 1});
  CHECK(sizes(layout(1000, 4)) == counts{256, 256, 256, 232});
  CHECK(sizes(layout(1000, 7)) == counts{192, 192, 192, 192, 192, 40, 0});
  CHECK(sizes(unaligned(18, 8)) == counts{3, 3, 3, 3, 3, 3, 0, 0});
  CHECK(sizes(unaligned(73, 4)) == counts{19, 19, 19, 16});
  CHECK(sizes(unaligned(3, 5)) == counts{1, 1, 1, 0, 0});
  for (std::int64_t n = 0; n < 200; ++n) {
    for (int shards = 1; shards <= 9; ++shards) {
      for (std::int64_t const alignment : {1, 5, 64}) {
        layout const l(n, shards, layout_options{.alignment = alignment});
        std::int64_t next = 0, longest = 0;
        bool right = true;
        for (int p = 0; p < shards; ++p) {
          right = right && l.begin(p) == next && l.shard_size(p) >= 0;
          right = right && (l.begin(p) % alignment == 0 || l.begin(p) == n);
          next += l.shard_size(p);
          longest = std::max(longest, l.shard_size(p));
        }
        CHECK(right);
        CHECK(next == n);
        CHECK(l.max_shard_size() == longest);
        CHECK(l.words_per_shard() == (longest + 63) / 64);
        CHECK(l.mask_words() == shards * l.words_per_shard());
      }
    }
  }
}

TEST_CASE("given boundaries are used as they are") {
  layout const l(18, 4, layout_options{.boundaries = {0, 0, 5, 5, 18}});
  CHECK(sizes(l) == counts{0, 5, 0, 13});
  CHECK(l.begin(1) == 0);
  CHECK(l.begin(3) == 5);
  CHECK(l.words_per_shard() == 1);
  CHECK(counts(l.mask_counts().begin(), l.mask_counts().end()) == counts{1, 1, 1, 1});
  CHECK(layout(0, 2, layout_options{.boundaries = {0, 0, 0}}).mask_words() == 0);
}

TEST_CASE("a wrong description says what is wrong") {
  using spans = std::vector<parameter_span>;
  CHECK(rejects([] { layout(-1, 2); }, {"n is -1"}));
  CHECK(rejects([] { layout(8, 0); }, {"shards is 0", "at least 1"}));
  CHECK(rejects([] { layout(8, -3); }, {"shards is -3", "at least 1"}));
  CHECK(rejects([] { layout(8, 2, layout_options{.alignment = 0}); }, {"alignment"}));
  CHECK(rejects(
      [] {
        layout(8, 2, layout_options{.boundaries = {0, 8}});
      },
      {"boundaries", "2", "3"}));
  CHECK(rejects(
      [] {
        layout(8, 2, layout_options{.boundaries = {1, 4, 8}});
      },
      {"first boundary", "1", "0"}));
  CHECK(rejects(
      [] {
        layout(8, 2, layout_options{.boundaries = {0, 4, 7}});
      },
      {"last boundary", "7", "8"}));
  CHECK(rejects(
      [] {
        layout(8, 3, layout_options{.boundaries = {0, 5, 4, 8}});
      },
      {"not ascending"}));
  CHECK(rejects(
      [] {
        layout(8, 3, layout_options{.boundaries = {0, -1, 9, 8}});
      },
      {"not ascending"}));

  CHECK(rejects(
      [] {
        layout(8, 1, spans{{.name = "a", .length = 3}, {.name = "b", .offset = 4, .length = 4}});
      },
      {"'b'", "4", "3"}));  // a gap
  CHECK(rejects(
      [] {
        layout(8, 1, spans{{.name = "a", .length = 5}, {.name = "b", .offset = 4, .length = 4}});
      },
      {"'b'", "4", "5"}));  // an overlap
  CHECK(rejects(
      [] {
        layout(8, 1,
               spans{{.name = "b", .offset = 4, .length = 4},
                     {.name = "a", .offset = 0, .length = 4}});
      },
      {"'b'", "4", "0", "ascending"}));
  CHECK(rejects([] { layout(8, 1, spans{{.name = "a", .length = 9}}); }, {"'a'", "9", "8"}));
  CHECK(rejects([] { layout(8, 1, spans{{.name = "a", .length = 7}}); }, {"7", "8", "cover"}));
  CHECK(rejects([] { layout(8, 1, spans{{.name = "a", .length = -1}}); }, {"'a'", "-1"}));
  CHECK(rejects([] { layout(8, 1, spans{}); }, {"0", "8", "cover"}));
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  for (auto const density : {-0.1, 1.5, nan}) {
    CHECK(rejects([&] { layout(8, 1, spans{{.name = "a", .length = 8, .density = density}}); },
                  {"'a'", "density"}));
    CHECK(rejects([&] { (void)layout(8, 1).plan(density); }, {"density is outside [0, 1]"}));
    CHECK(rejects([&] { (void)layout(8, 1).plan(0.5, density); }, {"exponent"}));
  }
  auto const big = std::numeric_limits<std::int64_t>::max();
  CHECK(rejects([&] { layout(8, 1, spans{{.name = "a", .length = big}}); }, {"'a'", "8"}));
  CHECK(rejects(
      [&] {
        layout(8, 1, spans{{.name = "a", .length = 4}, {.name = "b", .offset = 4, .length = big}});
      },
      {"'b'", "4"}));
}

TEST_CASE("k is the nearest integer, but 1 where density and length are positive") {
  CHECK(layout::k_of(0, 100) == 0);
  CHECK(layout::k_of(0.5, 0) == 0);
  CHECK(layout::k_of(1, 0) == 0);
  CHECK(layout::k_of(1e-9, 100) == 1);
  CHECK(layout::k_of(0.1, 1) == 1);
  CHECK(layout::k_of(0.1, 14) == 1);
  CHECK(layout::k_of(0.1, 16) == 2);
  CHECK(layout::k_of(0.5, 5) == 3);
  CHECK(layout::k_of(0.1, 1000) == 100);
  CHECK(layout::k_of(0.999, 10) == 10);
  CHECK(layout::k_of(1, 77) == 77);
}

TEST_CASE("a plan counts per shard and is reused without surprises") {
  layout const l(1000, 7);
  auto const plan = l.plan(0.1);
  CHECK(plan.counts == counts{19, 19, 19, 19, 19, 4, 0});
  CHECK(plan.offsets == counts{0, 19, 38, 57, 76, 95, 99, 99});
  CHECK(plan.total() == 99);
  CHECK(l.plan(0).total() == 0);
  CHECK(l.plan(1).counts == sizes(l));
  CHECK(l.plan(0.1, 0).counts == sizes(l));
  CHECK(l.plan(0.01, 0.5).counts == l.plan(0.1).counts);
  CHECK(layout(0, 2).plan(0.5).total() == 0);

  auto reused = l.plan(1);
  auto const* storage = reused.counts.data();
  l.plan(0.1, 1, reused);
  CHECK(reused.counts == plan.counts);
  CHECK(reused.offsets == plan.offsets);
  CHECK(reused.group_k == plan.group_k);
  CHECK(reused.counts.data() == storage);
  l.plan(0.1, 1, reused);
  CHECK(reused.total() == 99);

  CHECK(l.value_wire_bytes(plan, 0, 4) == 4 * 80);
  CHECK(l.value_wire_bytes(plan, 5, 2) == 2 * 95);
  CHECK(l.value_wire_bytes(plan, 6, 2) == 2 * 99);
  CHECK(l.mask_wire_bytes() == 6 * 3 * 8);
  CHECK(layout(1000, 1).mask_wire_bytes() == 0);
}

TEST_CASE("spans are cut at shard boundaries and join their group") {
  layout const l(100, 2, model(), layout_options{.alignment = 1});
  REQUIRE(sizes(l) == counts{50, 50});
  REQUIRE(l.groups(0).size() == 2);
  CHECK(l.groups(0)[0].policy == span_policy::sparse);
  CHECK(l.groups(0)[0].length == 40);
  CHECK(l.groups(0)[1].policy == span_policy::always);
  CHECK(l.groups(0)[1].ranges == std::vector<index_range>{{40, 50}});
  REQUIRE(l.groups(1).size() == 3);
  CHECK(l.groups(1)[0].policy == span_policy::always);
  CHECK(l.groups(1)[0].ranges == std::vector<index_range>{{20, 25}});
  CHECK(l.groups(1)[1].density == 0.25);
  CHECK_FALSE(l.groups(1)[1].shared);
  CHECK(l.groups(1)[1].ranges == std::vector<index_range>{{25, 45}});
  CHECK(l.groups(1)[2].ranges == std::vector<index_range>{{45, 50}});
  CHECK(l.first_group(1) == 2);
  auto const plan = l.plan(0.1);
  CHECK(plan.group_k == counts{4, 10, 5, 5, 1});
  CHECK(plan.counts == counts{14, 11});
  CHECK(l.plan(0.1, 0).counts == counts{50, 30});
}

TEST_CASE("spans without a density of their own share one group, across others between them") {
  std::vector<parameter_span> const spans = {
      {.name = "a", .length = 10},
      {.name = "b", .offset = 10, .length = 10},
      {.name = "empty", .offset = 20, .length = 0},
      {.name = "own", .offset = 20, .length = 4, .density = 0.5},
      {.name = "own2", .offset = 24, .length = 4, .density = 0.5},
      {.name = "c", .offset = 28, .length = 12}};
  layout const shared(40, 1, spans);
  REQUIRE(shared.groups(0).size() == 3);
  CHECK(shared.groups(0)[0].ranges == std::vector<index_range>{{0, 20}, {28, 40}});
  CHECK(shared.groups(0)[0].length == 32);
  CHECK(shared.plan(0.25).group_k == counts{8, 2, 2});

  layout const by_tensor(40, 1, spans, layout_options{.scope = topk_scope::tensor});
  REQUIRE(by_tensor.groups(0).size() == 5);
  CHECK(by_tensor.plan(0.25).group_k == counts{3, 3, 2, 2, 3});
}

TEST_CASE("scale ranges cover the shard and merge equals") {
  layout const l(100, 2, model(), layout_options{.alignment = 1});
  REQUIRE(l.scales(0).size() == 1);
  CHECK(l.scales(0)[0].range == index_range{0, 50});
  REQUIRE(l.scales(1).size() == 3);
  CHECK(l.scales(1)[0].frozen);
  CHECK(l.scales(1)[0].range == index_range{0, 20});
  CHECK_FALSE(l.scales(1)[1].frozen);
  CHECK(l.scales(1)[1].range == index_range{20, 45});
  CHECK(l.scales(1)[2].range == index_range{45, 50});
  CHECK(l.scales(1)[2].lr_scale == 2);
  CHECK(layout(10, 3, layout_options{.alignment = 10}).scales(2).empty());
}

TEST_CASE("the fingerprint changes with everything that moves an element, and with nothing else") {
  std::set<std::uint64_t> prints;
  auto const add = [&](layout const& l) { return prints.insert(l.fingerprint()).second; };
  CHECK(add(layout(100, 2)));
  CHECK(add(layout(101, 2)));
  CHECK(add(layout(100, 3)));
  CHECK(add(unaligned(100, 2)));
  CHECK(add(layout(100, 2, layout_options{.boundaries = {0, 10, 100}})));
  CHECK(add(layout(100, 2, model())));
  CHECK(add(layout(100, 1, model())));
  CHECK(add(layout(100, 1, model(), layout_options{.scope = topk_scope::tensor})));
  auto changed = model();
  changed[1].policy = span_policy::sparse;
  CHECK(add(layout(100, 2, changed)));
  changed = model();
  changed[2].policy = span_policy::always;
  CHECK(add(layout(100, 2, changed)));
  changed = model();
  changed[4].density = 0.26;
  CHECK(add(layout(100, 2, changed)));
  changed = model();
  changed[4].density.reset();
  CHECK(add(layout(100, 2, changed)));
  changed = model();
  changed[0].length -= 1;
  changed[1].offset -= 1;
  changed[1].length += 1;
  CHECK(add(layout(100, 2, changed)));

  CHECK_FALSE(add(layout(100, 2)));
  CHECK(unaligned(128, 2).fingerprint() == layout(128, 2).fingerprint());
  changed = model();
  changed[0].name = "renamed";
  changed[0].lr_scale = 3;
  CHECK_FALSE(add(layout(100, 2, changed)));
}

TEST_CASE("two thousand million elements and more") {
  constexpr auto n = (std::int64_t{1} << 33) + 5;
  layout const l(n, 4);
  constexpr auto share = (std::int64_t{1} << 31) + 64;
  CHECK(sizes(l) == counts{share, share, share, n - 3 * share});
  CHECK(l.begin(3) == 3 * share);
  CHECK(l.words_per_shard() == share / 64);
  CHECK(l.mask_words() == share / 16);
  auto const plan = l.plan(0.5);
  CHECK(plan.counts[0] == share / 2);
  CHECK(plan.total() == 3 * (share / 2) + layout::k_of(0.5, n - 3 * share));
  CHECK(l.value_wire_bytes(l.plan(1), 0, 4) == 4 * (n - share));
  CHECK(l.mask_wire_bytes() == 3 * share / 8);
  CHECK(layout::k_of(1, n) == n);
  CHECK(layout::k_of(0.5, std::int64_t{1} << 40) == std::int64_t{1} << 39);

  std::vector<parameter_span> const spans = {
      {.name = "big", .offset = 0, .length = n - 7},
      {.name = "bias", .offset = n - 7, .length = 7, .policy = span_policy::always}};
  layout const with_spans(n, 2, spans);
  REQUIRE(with_spans.groups(1).size() == 2);
  CHECK(with_spans.groups(1)[1].ranges[0].end == n - with_spans.begin(1));
  CHECK(with_spans.plan(0).total() == 7);
}
