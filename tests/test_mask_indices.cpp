// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include <scape/config.hpp>
#include <scape/detail/mask_indices.hpp>

#include "support/rank_data.hpp"

namespace {

using namespace scape::testing;
using scape::mask_word;
using scape::detail::index_words;
using scape::detail::indices_to_mask;
using scape::detail::mask_to_indices;
using list = std::vector<std::uint16_t>;

list list_of(std::vector<mask_word> const& mask, std::int64_t n) {
  std::int64_t bits = 0;
  for (auto const word : mask) bits += std::popcount(word);
  list result(at(index_words(bits, n)), 0xcbcb);
  mask_to_indices(mask, n, result);
  return result;
}

}  // namespace

TEST_CASE("the format, by hand") {
  CHECK(index_words(0, 0) == 0);
  CHECK(index_words(5, 1) == 7);
  CHECK(index_words(5, 65536) == 7);
  CHECK(index_words(5, 65537) == 9);
  std::vector<mask_word> mask(1025);
  mask[0] = 0b101;
  mask[1023] = mask_word{1} << 63U;
  mask[1024] = 0b10;
  CHECK(list_of(mask, 65538) == list{3, 0, 1, 0, 0, 2, 65535, 1});
  CHECK(list_of({}, 0).empty());
}

TEST_CASE("bits come back, full blocks included") {
  for (std::int64_t const n : {0, 1, 63, 64, 65, 1000, 65535, 65536, 65537, 131072, 200000}) {
    for (int const one_in : {0, 1, 2, 17, 1000, 70000}) {
      std::vector<mask_word> mask(at(scape::mask_words(n)) + 2);
      for (std::int64_t i = 0; i < n && one_in > 0; ++i) {
        auto const set = scramble(3, at(one_in), at(i)) % at(one_in) == 0;
        mask[at(i / 64)] |= mask_word{set} << (i % 64);
      }
      std::vector<mask_word> back(mask.size(), ~mask_word{0});
      CHECK(indices_to_mask(list_of(mask, n), n, back));
      CHECK(back == mask);
    }
  }
}

TEST_CASE("a damaged list is noticed and nothing is written elsewhere") {
  std::vector<mask_word> mask(1026);  // the last word is beyond the elements
  auto const n = std::int64_t{65600};
  auto const refused = [&](list const& damaged) {
    bool const taken = indices_to_mask(damaged, n, mask);
    CHECK(mask.back() == 0);
    return !taken;
  };
  CHECK_FALSE(refused({2, 0, 1, 0, 7, 9, 63}));
  CHECK(refused({2, 0, 1, 0, 7, 9, 64}));  // beyond the elements
  CHECK(refused({2, 0, 1, 0, 9, 7, 63}));  // descending
  CHECK(refused({2, 0, 1, 0, 7, 7, 63}));  // twice
  CHECK(refused({2, 0, 2, 0, 7, 9, 63}));  // too many in a block
  CHECK(refused({2, 1, 1, 0, 7, 9, 63}));  // far too many
  CHECK(refused({2, 0, 0, 0, 7, 9, 63}));  // one left
}
