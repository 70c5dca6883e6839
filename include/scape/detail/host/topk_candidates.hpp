// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Where the top-k keeps keys: counted in bins, or collected with their places.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <scape/config.hpp>
#include <scape/detail/host/topk_keys.hpp>
#include <scape/workspace.hpp>

namespace scape::detail::topk {

//! A bracket cut into at most 2^bits bins of 2^shift keys.
struct binning {
  key lo;
  std::uint32_t width;
  int shift;
  std::uint32_t bins;

  binning(bracket b, int bits) noexcept
      : lo(b.lo),
        width(static_cast<std::uint32_t>(b.hi - b.lo)),
        shift(std::max(0, static_cast<int>(std::bit_width(width)) - bits)),
        bins((width >> shift) + 1) {}
  [[nodiscard]] key hi() const noexcept { return lo + static_cast<key>(width); }
  //! The bin of a key, or `bins` if it is outside.
  [[nodiscard]] SCAPE_ALWAYS_INLINE std::uint32_t of(key t) const noexcept {
    auto const offset = static_cast<std::uint32_t>(t - lo);
    return offset <= width ? offset >> shift : bins;
  }
  [[nodiscard]] bracket bin(std::uint32_t i) const noexcept {
    auto const first = i << shift;
    auto const last = std::min(first + ((std::uint32_t{1} << shift) - 1), width);
    return {lo + static_cast<key>(first), lo + static_cast<key>(last)};
  }
};

//! Counts keys in at most 2^11 bins. Four counters per bin keep equal neighbours from waiting for
//! each other's stores.
class histogram {
 public:
  static constexpr int max_bits = 11;
  using totals = std::span<std::int64_t>;

  //! `shared` if other threads add to the same totals.
  histogram(binning const& bins, bool shared) noexcept : bins_(bins), shared_(shared) { clear(); }

  //! Adds the keys of a block; those outside the bracket do not count.
  void add(key_block const& keys, totals out) noexcept {
    auto inside = bits_above(keys, bins_.lo - 1) & ~bits_above(keys, bins_.hi());
    if (std::popcount(inside) < few) {
      for (; inside != 0; inside &= inside - 1) {
        ++counts_[0][bins_.of(keys.at[std::countr_zero(inside)])];
      }
    } else {
      alignas(64) std::uint32_t bin[mask_word_bits];
      for (int l = 0; l < mask_word_bits; ++l) bin[l] = bins_.of(keys.at[l]);
      for (std::size_t l = 0; l < mask_word_bits; ++l) ++counts_[l % 4][bin[l]];
    }
    if (++blocks_ == max_blocks) flush(out);
  }

  void flush(totals out) noexcept {
    for (std::size_t i = 0; i < bins_.bins; ++i) {
      auto const count =
          std::int64_t{counts_[0][i]} + counts_[1][i] + counts_[2][i] + counts_[3][i];
      if (count == 0) continue;
      if (shared_) {
        std::atomic_ref(out[i]).fetch_add(count, std::memory_order_relaxed);
      } else {
        out[i] += count;
      }
    }
    clear();
  }

 private:
  static constexpr int few = 24;
  static constexpr std::int64_t max_blocks = std::int64_t{1} << 25;  // below 2^30 per counter

  void clear() noexcept {
    for (auto& c : counts_) std::fill_n(c.begin(), bins_.bins + 1, 0U);
    blocks_ = 0;
  }

  binning bins_;
  bool shared_;
  std::int64_t blocks_ = 0;
  std::array<std::array<std::uint32_t, (1 << max_bits) + 1>, 4> counts_;
};

//! Keys inside the bracket with their places, in chunks that threads take from a common stock.
class candidate_pool {
 public:
  static constexpr std::int64_t chunk_blocks = 8;
  static constexpr std::int64_t chunk_size = chunk_blocks * mask_word_bits;

  //! A thread's chunks in ascending order of place, and where the next candidate goes.
  struct chain {
    std::int32_t head = -1;
    std::int32_t tail = -1;
    key* next_key = nullptr;
    key* full = nullptr;  //!< from here on another word may not fit
    std::uint32_t* next_place = nullptr;
    std::int64_t base = 0;
  };

  //! Chunks for 1/32 of the elements, and for all of them while they are few.
  static std::int64_t chunks(std::int64_t n) noexcept {
    return std::min(n, n / 32 + 16384) / (chunk_size - mask_word_bits) + 8;
  }
  static void add_bytes(workspace_size& size, std::int64_t n) {
    auto const count = chunks(n);
    size.add<key_block>(count * chunk_blocks)
        .add<std::uint32_t>(count * chunk_size)
        .add<chunk>(count);
  }
  candidate_pool(carver& memory, std::int64_t n)
      : blocks_(memory.take<key_block>(chunks(n) * chunk_blocks)),
        places_(memory.take<std::uint32_t>(chunks(n) * chunk_size)),
        chunks_(memory.take<chunk>(chunks(n))) {}

  //! Candidates that surely fit.
  [[nodiscard]] std::int64_t capacity(int parts) const noexcept {
    return (std::ssize(chunks_) - parts) * (chunk_size - mask_word_bits);
  }
  //! The same memory for a sample, as long as nothing has been appended.
  [[nodiscard]] std::span<key_block> sample_memory() const noexcept { return blocks_; }
  void clear() noexcept { used_ = 0; }

  //! Appends the keys of word w whose bits are set. False if the pool is used up. Two are written
  //! in any case: how many there are cannot be foreseen, and a branch on it would cost more.
  SCAPE_ALWAYS_INLINE bool append(chain& c, std::int64_t w, mask_word bits,
                                  key_block const& keys) noexcept {
    constexpr int few = 2;
    auto const first = w * mask_word_bits;
    if (c.next_key >= c.full || first - c.base > max_place) {
      if (!extend(c, first)) return false;
    }
    auto const place = static_cast<std::uint32_t>(first - c.base);
    auto const put = [&](int at) {
      auto const l = std::countr_zero(bits) % static_cast<int>(mask_word_bits);
      c.next_key[at] = keys.at[l];
      c.next_place[at] = place + static_cast<std::uint32_t>(l);
      bits &= bits - 1;
    };
    auto const count = std::popcount(bits);
    for (int at = 0; at < few; ++at) put(at);
    for (int at = few; at < count; ++at) put(at);
    c.next_key += count;
    c.next_place += count;
    return true;
  }

  //! To be called after the last append.
  void close(chain& c) noexcept {
    if (c.tail < 0) return;
    auto* const first = keys_of(c.tail);
    at(c.tail).size = c.next_key - first;
    std::fill(c.next_key, first + scape::mask_words(at(c.tail).size) * mask_word_bits, 0);
  }

  //! Calls visit(keys) with blocks of keys; one that is not full ends in zeros.
  template <class Visit>
  void for_each_block(chain const& c, Visit&& visit) const {
    for (auto i = c.head; i >= 0; i = at(i).next) {
      auto const* const blocks = blocks_.data() + i * chunk_blocks;
      for (std::int64_t b = 0; b < scape::mask_words(at(i).size); ++b) visit(blocks[b]);
    }
  }

  //! Calls visit(key, element) in ascending order of the elements.
  template <class Visit>
  void for_each(chain const& c, Visit&& visit) const {
    for (auto i = c.head; i >= 0; i = at(i).next) {
      auto const* const keys = keys_of(i);
      auto const* const places = places_.data() + i * chunk_size;
      for (std::int64_t k = 0; k < at(i).size; ++k) visit(keys[k], at(i).base + places[k]);
    }
  }

 private:
  static constexpr std::int64_t max_place =
      std::numeric_limits<std::uint32_t>::max() - mask_word_bits;

  struct chunk {
    std::int64_t base;
    std::int64_t size;
    std::int32_t next;
  };

  [[nodiscard]] chunk& at(std::int32_t i) const noexcept {
    return chunks_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] key* keys_of(std::int32_t i) const noexcept {
    return reinterpret_cast<key*>(blocks_.data() + i * chunk_blocks);
  }

  //! Closes the last chunk and starts another.
  bool extend(chain& c, std::int64_t base) noexcept {
    close(c);
    auto const i = used_.fetch_add(1, std::memory_order_relaxed);
    if (i >= std::ssize(chunks_)) return false;
    auto const fresh = static_cast<std::int32_t>(i);
    at(fresh) = {base, 0, -1};
    (c.tail < 0 ? c.head : at(c.tail).next) = fresh;
    c.tail = fresh;
    c.next_key = keys_of(fresh);
    c.full = c.next_key + (chunk_size - mask_word_bits) + 1;
    c.next_place = places_.data() + fresh * chunk_size;
    c.base = base;
    return true;
  }

  std::span<key_block> blocks_;
  std::span<std::uint32_t> places_;
  std::span<chunk> chunks_;
  std::atomic<std::int64_t> used_ = 0;
};

}  // namespace scape::detail::topk
