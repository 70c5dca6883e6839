// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A layout with a random mask of unfrozen elements that matches its plan, for the masked
//! collectives.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <scape/config.hpp>
#include <scape/layout.hpp>

#include "raises.hpp"
#include "rank_data.hpp"

namespace scape::testing {

struct masked_problem {
  layout l;
  send_plan plan;
  std::vector<char> bits;       //!< by element
  std::vector<mask_word> mask;  //!< the same as words

  masked_problem(layout const& parameters, double density, std::uint64_t seed = 1)
      : l(parameters), plan(l.plan(density)), bits(at(l.size())), mask(at(l.mask_words())) {
    for (int p = 0; p < l.shards(); ++p) {
      std::vector<std::int64_t> order;
      for (auto const& scale : l.scales(p)) {
        for (auto i = scale.range.begin; i < scale.range.end && !scale.frozen; ++i) {
          order.push_back(i);
        }
      }
      std::ranges::sort(order, {}, [&](auto i) { return scramble(seed, at(p), at(i)); });
      for (auto const i : std::span(order).first(at(plan.counts[at(p)]))) {
        bits[at(l.begin(p) + i)] = 1;
        mask[at(p * l.words_per_shard() + i / 64)] |= mask_word{1} << (i % 64);
      }
    }
  }

  //! Masked elements of shard p in order.
  [[nodiscard]] std::vector<std::int64_t> elements(int p) const {
    std::vector<std::int64_t> result;
    for (std::int64_t i = 0; i < l.shard_size(p); ++i) {
      if (bits[at(l.begin(p) + i)] != 0) result.push_back(l.begin(p) + i);
    }
    return result;
  }
};

//! Layouts with equal, unequal, empty and tiny shards for `ranks` ranks.
inline std::vector<layout> some_layouts(int ranks) {
  std::vector<layout> result;
  for (std::int64_t const n : {0, 1, 18, 63, 64, 65, 1000}) {
    result.emplace_back(n, ranks, layout_options{.alignment = 1});
  }
  result.emplace_back(1000, ranks);
  std::vector<std::int64_t> uneven(at(ranks) + 1, 700);  // all but the first and last are empty
  uneven.front() = 0;
  uneven[1] = ranks == 1 ? 700 : 130;
  for (int p = 2; p < ranks; ++p) uneven[at(p)] = 130;
  result.emplace_back(700, ranks, layout_options{.boundaries = uneven});
  return result;
}

//! Any bit pattern: infinities, NaN, denormals and zeros included.
inline float any_float(std::uint64_t seed, int rank, std::int64_t j) {
  auto bits = static_cast<std::uint32_t>(scramble(seed, at(rank), at(j)));
  constexpr std::uint32_t special[] = {0, 0x80000000U, 0x7f800000U, 0xff800000U, 0x7fc00000U,
                                       1, 0x807fffffU, 0x7f7fffffU, 0x33800000U, 0x477ff000U};
  if (j % 16 == 0) bits = special[at(j / 16) % std::size(special)];
  return std::bit_cast<float>(bits);
}

//! The masked collectives refuse layouts, plans and masks that do not match. `call` runs one with
//! the arguments given; `who` is the operation's name. Only hosts look at the mask's bits.
template <class Backend, class Call>
bool rejects_mismatches(masked_problem const& problem, std::string_view who, Call const& call) {
  auto const refuses = [&](auto change, std::initializer_list<std::string_view> texts) {
    auto p = problem;
    change(p);
    return rejects([&] { call(p); }, texts) && rejects([&] { call(p); }, {who});
  };
  auto const words = std::to_string(problem.l.mask_words());
  bool ok = true;
  ok = ok && refuses([](auto& p) { p.mask.pop_back(); }, {words, "mask"});
  ok = ok && refuses([](auto& p) { p.mask.push_back(0); }, {words, "mask"});
  ok = ok && refuses([](auto& p) { p.plan.counts.pop_back(); }, {"plan"});
  if constexpr (Backend::cuda) return ok;
  ok = ok && refuses([](auto& p) { p.mask[0] &= p.mask[0] - 1; }, {"bits", "plan"});
  ok = ok && refuses([](auto& p) { p.plan = p.l.plan(0); }, {"bits", "plan"});
  ok = ok && refuses(
                 [](auto& p) {  // as many bits as planned, one of them behind the last element
                   auto const last = p.l.shards() - 1;
                   auto& word = p.mask[at(p.l.mask_words() - 1)];
                   auto& block = p.mask[at(last * p.l.words_per_shard())];
                   block &= block - 1;
                   word |= mask_word{1} << 63;
                 },
                 {"beyond"});
  return ok;
}

}  // namespace scape::testing
