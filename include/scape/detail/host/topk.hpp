// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Exact top-k of a statistic as mask bits, usually in one read of the statistic's inputs.
//!
//! The k-th largest key T is known to lie in a bracket of keys, from a hint or from a sample. One
//! pass sets the bits of all keys above the bracket and collects the few inside it, which are
//! settled afterwards. If T lay elsewhere, or too much was inside, what the pass counted narrows
//! the bracket; histograms narrow it further, at worst to T alone. Nothing here depends on which
//! way was taken but the time.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <scape/concepts.hpp>
#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/detail/host/topk_candidates.hpp>
#include <scape/detail/host/topk_keys.hpp>
#include <scape/workspace.hpp>

namespace scape::detail::topk {

//! A statistic whose prefetch(i) asks for the inputs of elements i ... i + 63, of which i is the
//! first of a mask word. Worth it above the cache: the hardware does not look as far ahead.
template <class F>
concept prefetching_statistic = statistic<F> && requires(F const& f, std::int64_t i) {
  f.prefetch(i);
};

//! The keys of a statistic, a word at a time. Behind two pointers, so that the selection below is
//! compiled once and not for every statistic.
class key_source {
 public:
  template <statistic F>
  key_source(F const& f, key nan_key) noexcept
      : statistic_(&f), nan_key_(nan_key), word_(&word_of<F>), one_(&one_of<F>) {}

  //! Fills keys.at[l] for the elements 64 w + l in `lanes`, an unbroken run; `end` is the end of
  //! the range they are in. Other keys have no meaning.
  void word(std::int64_t w, mask_word lanes, std::int64_t end, key_block& keys) const {
    word_(*this, w * mask_word_bits, lanes, end, keys);
  }
  [[nodiscard]] key one(std::int64_t i) const { return one_(*this, i); }

 private:
  static constexpr std::int64_t prefetch_distance = 16 * mask_word_bits;

  template <class F>
  static void word_of(key_source const& self, std::int64_t first, mask_word lanes,
                      std::int64_t range_end, key_block& keys) {
    auto const& f = *static_cast<F const*>(self.statistic_);
    auto const nan_key = self.nan_key_;
    if constexpr (prefetching_statistic<F>) {
      auto const ahead = first + prefetch_distance;
      if (ahead + mask_word_bits <= range_end) f.prefetch(ahead);
    }
    if (lanes == ~mask_word{0}) {
      for (int l = 0; l < mask_word_bits; ++l) keys.at[l] = key_of(f(first + l), nan_key);
    } else {
      keys = {};
      auto const end = mask_word_bits - std::countl_zero(lanes);
      for (auto l = std::int64_t{std::countr_zero(lanes)}; l < end; ++l) {
        keys.at[l] = key_of(f(first + l), nan_key);
      }
    }
  }

  template <class F>
  static key one_of(key_source const& self, std::int64_t i) {
    return key_of((*static_cast<F const*>(self.statistic_))(i), self.nan_key_);
  }

  void const* statistic_;
  key nan_key_;
  void (*word_)(key_source const&, std::int64_t, mask_word, std::int64_t, key_block&);
  key (*one_)(key_source const&, std::int64_t);
};

//! One selection: k of the elements of a domain by their keys, k below their number.
class selection {
 public:
  selection(host_context const& ctx, carver& memory, domain const& elements, std::int64_t eligible,
            std::int64_t k, key_source const& keys, mask_word* out)
      : ctx_(ctx),
        totals_(memory.take<std::int64_t>(1 << histogram::max_bits)),
        pool_(memory, elements.length),
        domain_(elements),
        keys_(keys),
        out_(out),
        eligible_(eligible),
        k_(k),
        parts_(elements.length < min_parallel ? 1 : std::min(ctx.threads(), max_parts)),
        rank_(k) {}

  //! Sets the bits; `guess` is where T is tried first, if not empty.
  outcome run(bracket guess) {
    bool sampled = guess.empty();
    auto trial = sampled ? sample() : guess;
    bool done = attempt(trial);
    outcome result{0, inside_, above_ <= k_};
    while (!done) {
      trial = sampled ? proven_ : intersection(sample(), proven_);
      if (trial.empty() || trial == proven_) trial = narrow_to_capacity();
      sampled = true;
      done = attempt(trial);
    }
    result.threshold = threshold_;
    return result;
  }

 private:
  static constexpr int max_parts = 128;
  static constexpr std::int64_t min_parallel = 1 << 16;  // below, waking threads costs more
  static constexpr std::int64_t min_sampled = 1024;

  struct alignas(64) part_state {
    std::int64_t above = 0;
    std::int64_t inside = 0;
    candidate_pool::chain chain = {};
    bool complete = true;
  };

  static int bit_width(std::int64_t n) noexcept {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n)));
  }

  //! Calls f(part) for all parts.
  template <class Body>
  void for_each_part(bool parallel, Body&& body) const {
    if (parts_ == 1 || !parallel) {
      for (int part = 0; part < parts_; ++part) body(part);
    } else {
      ctx_.parallel([&](int part, int) {
        if (part < parts_) body(part);
      });
    }
  }

  //! The one traversal: calls visit(w, lanes, keys) for the words of a part until it returns
  //! false. Keys outside `lanes` have no meaning.
  template <class Visit>
  SCAPE_ALWAYS_INLINE void for_each_key_block(int part, Visit&& visit) const {
    domain_.for_each_word(domain_.words(part, parts_),
                          [&](std::int64_t w, mask_word in_range, index_range range) {
                            auto const lanes = in_range & ~domain_.excluded(w);
                            if (lanes == 0) return true;
                            key_block keys;
                            keys_.word(w, in_range, range.end, keys);
                            return visit(w, lanes, keys);
                          });
  }

  //! Sets the bits above the bracket, collects what is inside, then decides. If T was inside and
  //! all of it could be collected, the mask is complete; else proven_ is narrower than before.
  bool attempt(bracket b) {
    pool_.clear();
    for_each_part(true, [&](int part) {
      part_state state;
      bool collecting = !b.single();
      for_each_key_block(part, [&](std::int64_t w, mask_word lanes, key_block const& keys) {
        auto const above = bits_above(keys, b.hi) & lanes;
        auto const inside = bits_above(keys, b.lo - 1) & lanes & ~above;
        out_[w] = (out_[w] & ~lanes) | above;
        state.above += std::popcount(above);
        state.inside += std::popcount(inside);
        if (collecting && inside != 0)
          collecting = state.complete = pool_.append(state.chain, w, inside, keys);
        return state.above <= k_;
      });
      pool_.close(state.chain);
      states_[part] = state;
    });
    above_ = inside_ = 0;
    bool complete = true;
    for (int part = 0; part < parts_; ++part) {
      above_ += states_[part].above;
      inside_ += states_[part].inside;
      complete = complete && states_[part].complete;
    }
    if (above_ == k_) {
      threshold_ = b.hi;  // any key between T and the next smaller one will do
      return true;
    }
    if (above_ > k_) {
      proven_.lo = b.hi + 1;
      return false;
    }
    if (above_ + inside_ < k_) {
      proven_.hi = b.lo - 1;
      rank_ = k_ - above_ - inside_;
      return false;
    }
    proven_ = b;
    rank_ = k_ - above_;
    if (!complete) return false;
    b.single() ? set_equal() : set_candidates();
    threshold_ = proven_.lo;
    return true;
  }

  //! T is among the collected keys; those equal to it are taken in order.
  void set_candidates() {
    auto const parallel = inside_ >= min_parallel;
    while (!proven_.single()) {
      narrow(proven_, rank_, inside_, parallel,
             [&](int part, auto&& sink) { pool_.for_each_block(states_[part].chain, sink); });
    }
    auto wanted = rank_;
    for (int part = 0; part < parts_; ++part) {
      pool_.for_each(states_[part].chain, [&](key candidate, std::int64_t i) {
        bool taken = candidate > proven_.lo;
        if (candidate == proven_.lo) taken = wanted-- > 0;
        out_[i / mask_word_bits] |= mask_word{taken} << (i % mask_word_bits);
      });
    }
  }

  //! T is proven_.lo: a second, early-ending pass sets the first rank_ bits of keys equal to it.
  void set_equal() {
    auto wanted = rank_;
    for (int part = 0; part < parts_; ++part) {
      wanted -= std::exchange(states_[part].inside, wanted);
    }
    for_each_part(true, [&](int part) {
      auto rest = states_[part].inside;
      if (rest <= 0) return;
      for_each_key_block(part, [&](std::int64_t w, mask_word lanes, key_block const& keys) {
        auto const equal = bits_above(keys, proven_.lo - 1) & ~bits_above(keys, proven_.lo) & lanes;
        out_[w] |= lowest_bits(equal, rest);
        rest -= std::popcount(equal);
        return rest > 0;
      });
    });
  }

  //! Counts the keys of b, whose rank-th largest is wanted, in bins, and makes b the bin with that
  //! key and rank its rank in there. source(part, sink) calls sink(keys) with blocks of about
  //! `count` keys in all; keys of no element are 0. Returns the number of keys in the bin.
  template <class Source>
  std::int64_t narrow(bracket& b, std::int64_t& rank, std::int64_t count, bool parallel,
                      Source const& source) {
    auto const bits = std::clamp(bit_width(count) - 2, 6, histogram::max_bits);
    binning const bins(b, bits);
    std::ranges::fill(totals_.first(bins.bins), 0);
    for_each_part(parallel, [&](int part) {
      histogram counts(bins, parallel && parts_ > 1);
      source(part, [&](key_block const& keys) { counts.add(keys, totals_); });
      counts.flush(totals_);
    });
    auto bin = bins.bins - 1;
    for (; bin > 0 && rank > totals_[bin]; --bin) rank -= totals_[bin];
    b = bins.bin(bin);
    return totals_[bin];
  }

  //! Narrows proven_ by passes over all elements until its keys can be collected, or to T.
  bracket narrow_to_capacity() {
    for (auto count = eligible_; !proven_.single() && count > pool_.capacity(parts_);) {
      count = narrow(proven_, rank_, eligible_, true, [&](int part, auto&& sink) {
        for_each_key_block(part, [&](std::int64_t, mask_word lanes, key_block& keys) {
          for (auto others = ~lanes; others != 0; others &= others - 1) {
            keys.at[std::countr_zero(others)] = 0;
          }
          sink(keys);
          return true;
        });
      });
    }
    return proven_;
  }

  //! A bracket that holds T unless the sample, one element of each of many equal stretches, is off
  //! by more than four standard deviations. Everything, while that can be collected.
  bracket sample() {
    auto const n = domain_.length;
    if (n <= min_sampled) return {};
    auto const size = std::int64_t{1} << ((bit_width(n) + 7) / 2);
    auto const blocks =
        pool_.sample_memory().first(static_cast<std::size_t>(size / mask_word_bits));
    std::atomic<std::int64_t> taken = 0;
    for_each_part(true, [&](int part) {
      auto const [first, last] = part_of(size, part, parts_);
      auto const stretch = n / size;
      auto range = domain_.ranges.begin();
      std::int64_t passed = 0, mine = 0;
      for (auto s = first; s < last; ++s) {
        auto const random = (static_cast<std::uint64_t>(s + 1) * 0x9e3779b97f4a7c15U) >> 33;
        auto const position =
            s * stretch +
            static_cast<std::int64_t>((random * static_cast<std::uint64_t>(stretch)) >> 31);
        while (position - passed >= range->size()) passed += (range++)->size();
        auto const i = range->begin + position - passed;
        bool const competes =
            (domain_.excluded(i / mask_word_bits) >> (i % mask_word_bits) & 1) == 0;
        blocks[static_cast<std::size_t>(s / mask_word_bits)].at[s % mask_word_bits] =
            competes ? keys_.one(i) : 0;
        mine += competes ? 1 : 0;
      }
      taken.fetch_add(mine, std::memory_order_relaxed);
    });
    if (taken == 0) return {};
    auto const key_of_rank = [&](std::int64_t rank) {
      bracket b;
      while (!b.single()) {
        narrow(b, rank, size, size >= min_parallel, [&](int part, auto&& sink) {
          auto const [first, last] = part_of(std::ssize(blocks), part, parts_);
          for (auto i = first; i < last; ++i) sink(blocks[static_cast<std::size_t>(i)]);
        });
      }
      return b.lo;
    };
    auto const m = static_cast<double>(taken);
    auto const share = static_cast<double>(k_) / static_cast<double>(eligible_);
    auto const margin = 4 * std::sqrt(m * share * (1 - share)) + 4;
    auto const above = static_cast<std::int64_t>(m * share - margin);
    auto const within = static_cast<std::int64_t>(m * share + margin) + 1;
    return {within > taken ? smallest_key : key_of_rank(within),
            above < 1 ? largest_key : key_of_rank(above)};
  }

  host_context const& ctx_;
  std::span<std::int64_t> totals_;
  candidate_pool pool_;
  domain const& domain_;
  key_source const& keys_;
  mask_word* out_;
  std::int64_t eligible_, k_;
  int parts_;
  bracket proven_ = {};                  //!< holds T
  std::int64_t rank_;                    //!< of T among the keys in proven_, from the top
  std::int64_t above_ = 0, inside_ = 0;  //!< of the last attempt
  key threshold_ = 0;
  part_state states_[max_parts];
};

//! Scratch bytes of select() for at most n elements.
inline std::size_t scratch_bytes(std::int64_t n) {
  workspace_size size;
  size.add<std::int64_t>(1 << histogram::max_bits);
  candidate_pool::add_bytes(size, n);
  return size.bytes();
}

//! Sets k bits of the domain in `out`, where they are 0 before, or all of them if it has fewer:
//! largest keys first, lower indices first among equal ones, and excluded elements last.
//! `guess` is where the k-th largest key is looked for first, if not empty.
inline outcome select(host_context const& ctx, domain const& elements, std::int64_t k,
                      key_source const& keys, bracket guess, mask_word* out) {
  if (k <= 0 || elements.length == 0) return {};
  auto const eligible = elements.count();
  if (k >= eligible) {
    elements.set_all(k - eligible, out);
    return {};
  }
  carver memory(ctx.scratch, "partitioned_topk_mask");
  return selection(ctx, memory, elements, eligible, k, keys, out).run(guess);
}

}  // namespace scape::detail::topk
