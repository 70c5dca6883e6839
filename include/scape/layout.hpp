// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One validated description of the flat parameter vector, from which every count follows.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <scape/config.hpp>
#include <scape/detail/fnv1a.hpp>
#include <scape/detail/mask_indices.hpp>
#include <scape/error.hpp>

namespace scape {

//! How the elements of a span take part in the sync.
enum class span_policy : std::uint8_t {
  sparse,  //!< compete for a place in the mask
  always,  //!< in every mask (the usual choice for 1-D tensors)
  frozen   //!< in no mask: never sent, never changed; give zeros as its gradient
};

//! A tensor, or any other contiguous part of the flat vector, in elements.
struct parameter_span {
  std::string name = {};
  std::int64_t offset = 0;
  std::int64_t length = 0;
  span_policy policy = span_policy::sparse;
  //! Own density in [0, 1]: the span then competes only within itself. Without one, it competes
  //! within the shard at the density of the step.
  std::optional<double> density = std::nullopt;
  float lr_scale = 1;     //!< multiplies the learning rate
  float decay_scale = 1;  //!< multiplies the weight decay
};

//! Elements [begin, end).
struct index_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return end - begin; }
  bool operator==(index_range const&) const = default;
};

//! Where spans without a density of their own compete.
enum class topk_scope : std::uint8_t { shard, tensor };

struct layout_options {
  //! Equal shards are rounded up to this many elements (the last ones may be shorter or empty).
  std::int64_t alignment = 64;
  //! Shard starts and the total length, P + 1 values from 0 to n, instead of equal shards.
  std::vector<std::int64_t> boundaries = {};
  topk_scope scope = topk_scope::shard;
};

//! How many values every shard sends in one step. Made by layout::plan, reusable as storage.
struct send_plan {
  std::vector<std::int64_t> counts;   //!< values per shard, P of them
  std::vector<std::int64_t> offsets;  //!< where each shard's values start; P + 1 of them
  std::vector<std::int64_t> group_k;  //!< values per selection group
  [[nodiscard]] std::int64_t total() const noexcept { return offsets.back(); }
};

//! n parameters, P shards and the spans between them.
//!
//! Shard p owns elements [begin(p), begin(p + 1)). In masks every shard starts at a word of its
//! own and takes words_per_shard() words, so a global mask is P equal blocks: bit i of shard p's
//! word w is element begin(p) + 64 w + i. Bits without an element are 0.
class layout {
 public:
  //! Elements of one shard that compete for k places; indices are relative to the shard.
  struct selection_group {
    span_policy policy = span_policy::sparse;
    std::optional<double> density = std::nullopt;
    bool shared = true;  //!< spans without a density of their own join it
    std::int64_t length = 0;
    std::vector<index_range> ranges = {};
  };

  //! Shard-relative elements that share their scales; together they cover the shard.
  struct scale_range {
    index_range range = {};
    float lr_scale = 1;
    float decay_scale = 1;
    bool frozen = false;
  };

  //! One sparse span of n elements.
  layout(std::int64_t n, int shards, layout_options const& options = {})
      : layout(n, shards, {{.name = "parameters", .offset = 0, .length = n}}, options) {}

  //! Spans in ascending order, covering [0, n) without gaps or overlaps.
  layout(std::int64_t n, int shards, std::vector<parameter_span> spans,
         layout_options const& options = {})
      : size_(n), shards_(shards), spans_(std::move(spans)) {
    detail::expect(shards >= 1, "layout", [&] {
      return "the number of shards is " + std::to_string(shards) + ", expected at least 1";
    });
    detail::expect(n >= 0 && n <= largest / (shards + 1), "layout", [&] {
      return "the length n is " + std::to_string(n) + ", expected 0 to " +
             std::to_string(largest / (shards + 1));
    });
    place_shards(options);
    check_spans();
    for (int p = 0; p < shards_; ++p) add_shard(p, options.scope);
  }

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] int shards() const noexcept { return shards_; }
  [[nodiscard]] std::span<parameter_span const> spans() const noexcept { return spans_; }

  [[nodiscard]] std::int64_t begin(int shard) const noexcept { return begins_[at(shard)]; }
  [[nodiscard]] std::int64_t shard_size(int shard) const noexcept {
    return begins_[at(shard) + 1] - begins_[at(shard)];
  }
  //! Where the shards begin, and n: P + 1 values.
  [[nodiscard]] std::span<std::int64_t const> boundaries() const noexcept { return begins_; }
  //! Length of the longest shard.
  [[nodiscard]] std::int64_t max_shard_size() const noexcept { return max_shard_size_; }
  //! Words of one shard's block in a mask; the same for all shards.
  [[nodiscard]] std::int64_t words_per_shard() const noexcept {
    return scape::mask_words(max_shard_size_);
  }
  //! Words of a global mask.
  [[nodiscard]] std::int64_t mask_words() const noexcept { return shards_ * words_per_shard(); }
  //! One words_per_shard() per shard: the counts of a mask all-gather.
  [[nodiscard]] std::span<std::int64_t const> mask_counts() const noexcept { return mask_counts_; }

  [[nodiscard]] std::span<selection_group const> groups(int shard) const noexcept {
    return std::span(groups_).subspan(first_group_[at(shard)],
                                      first_group_[at(shard) + 1] - first_group_[at(shard)]);
  }
  //! Index in send_plan::group_k of the shard's first group.
  [[nodiscard]] std::size_t first_group(int shard) const noexcept {
    return first_group_[at(shard)];
  }
  [[nodiscard]] std::span<scale_range const> scales(int shard) const noexcept {
    return std::span(scales_).subspan(first_scale_[at(shard)],
                                      first_scale_[at(shard) + 1] - first_scale_[at(shard)]);
  }

  //! k of one group of `length` elements: the nearest integer to density * length, at least 1 if
  //! both are positive (so that nothing waits for ever), at most length.
  [[nodiscard]] static std::int64_t k_of(double density, std::int64_t length) noexcept {
    if (density <= 0 || length == 0) return 0;
    auto const k = std::llround(density * static_cast<double>(length));
    return std::clamp<std::int64_t>(k, 1, length);
  }

  //! Counts of a step at `density`, every density (own ones too) raised to `exponent`: 1 is the
  //! density itself and 0 is dense, with a geometric ramp between. Allocates only if `plan` is new.
  void plan(double density, double exponent, send_plan& plan) const {
    detail::expect(density >= 0 && density <= 1, "layout::plan", "density is outside [0, 1]");
    detail::expect(exponent >= 0 && exponent <= 1, "layout::plan", "exponent is outside [0, 1]");
    auto const effective = [exponent](double d) {
      return exponent == 1 ? d : std::pow(d, exponent);
    };
    plan.counts.assign(static_cast<std::size_t>(shards_), 0);
    plan.offsets.assign(static_cast<std::size_t>(shards_) + 1, 0);
    plan.group_k.assign(groups_.size(), 0);
    for (int p = 0; p < shards_; ++p) {
      for (auto g = first_group_[at(p)]; g != first_group_[at(p) + 1]; ++g) {
        auto const& group = groups_[g];
        auto const d =
            group.policy == span_policy::always ? 1.0 : effective(group.density.value_or(density));
        plan.group_k[g] = k_of(d, group.length);
        plan.counts[at(p)] += plan.group_k[g];
      }
      plan.offsets[at(p) + 1] = plan.offsets[at(p)] + plan.counts[at(p)];
    }
  }
  [[nodiscard]] send_plan plan(double density, double exponent = 1) const {
    send_plan result;
    plan(density, exponent, result);
    return result;
  }

  //! Bytes rank `rank` receives in a reduce-scatter or an all-gather of the plan's values: all
  //! blocks but its own, which is also what every bandwidth-optimal algorithm makes it send.
  [[nodiscard]] std::int64_t value_wire_bytes(send_plan const& plan, int rank,
                                              std::size_t value_bytes) const noexcept {
    return (plan.total() - plan.counts[at(rank)]) * static_cast<std::int64_t>(value_bytes);
  }
  //! Bytes a rank receives in a mask all-gather, with masks as bits.
  [[nodiscard]] std::int64_t mask_wire_bytes() const noexcept {
    return (mask_words() - words_per_shard()) * static_cast<std::int64_t>(sizeof(mask_word));
  }
  //! The same for a mask of the plan in the shorter form.
  [[nodiscard]] std::int64_t mask_wire_bytes(send_plan const& plan, int rank) const noexcept {
    if (!mask_as_indices(plan)) return mask_wire_bytes();
    return 2 * (index_words(plan) - index_words(plan, rank));
  }
  //! Whether a mask of the plan takes fewer bytes as lists of 16-bit indices, for the rank that
  //! receives most: below a density of about 1 in 16. All ranks agree without asking.
  [[nodiscard]] bool mask_as_indices(send_plan const& plan) const noexcept {
    auto least = index_words(plan, 0);
    for (int p = 1; p < shards_; ++p) least = std::min(least, index_words(plan, p));
    return 2 * (index_words(plan) - least) < mask_wire_bytes();
  }
  //! 16-bit words of one shard's mask as such a list, and of all shards'.
  [[nodiscard]] std::int64_t index_words(send_plan const& plan, int shard) const noexcept {
    return detail::index_words(plan.counts[at(shard)], shard_size(shard));
  }
  [[nodiscard]] std::int64_t index_words(send_plan const& plan) const noexcept {
    std::int64_t words = 0;
    for (int p = 0; p < shards_; ++p) words += index_words(plan, p);
    return words;
  }

  //! 64-bit FNV-1a hash of n, the shards and the selection groups, own densities included.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    detail::fnv1a hash;
    auto const mix = [&hash](std::uint64_t value) { hash.add(value); };
    mix(static_cast<std::uint64_t>(size_));
    for (auto const b : begins_) mix(static_cast<std::uint64_t>(b));
    for (auto const& group : groups_) {
      mix(static_cast<std::uint64_t>(group.policy));
      mix(std::bit_cast<std::uint64_t>(group.density.value_or(-1.0)));
      for (auto const& r : group.ranges) {
        mix(static_cast<std::uint64_t>(r.begin));
        mix(static_cast<std::uint64_t>(r.end));
      }
    }
    return hash.value();
  }

  //! The same of n and the spans alone, however they are sharded.
  [[nodiscard]] std::uint64_t model_fingerprint() const noexcept {
    detail::fnv1a hash;
    hash.add(static_cast<std::uint64_t>(size_));
    for (auto const& s : spans_) {
      hash.add(static_cast<std::uint64_t>(s.length));
      hash.add(static_cast<std::uint64_t>(s.policy));
      hash.add(std::bit_cast<std::uint64_t>(s.density.value_or(-1.0)));
    }
    return hash.value();
  }

 private:
  //! Keeps shards * shard length within 64 bits.
  static constexpr auto largest = std::numeric_limits<std::int64_t>::max() / 2;

  static std::size_t at(int shard) noexcept { return static_cast<std::size_t>(shard); }

  void place_shards(layout_options const& options) {
    if (options.boundaries.empty()) {
      detail::expect(options.alignment >= 1 && options.alignment <= largest / (shards_ + 1),
                     "layout", [&] {
                       return "alignment is " + std::to_string(options.alignment) +
                              ", expected at least 1 and not more than a shard can hold";
                     });
      auto const share = size_ / shards_ + (size_ % shards_ != 0 ? 1 : 0);
      auto const length = (share + options.alignment - 1) / options.alignment * options.alignment;
      for (int p = 0; p <= shards_; ++p) begins_.push_back(std::min(p * length, size_));
    } else {
      detail::expect_equal("layout", "the number of boundaries",
                           static_cast<std::int64_t>(options.boundaries.size()), shards_ + 1,
                           "give P + 1 values from 0 to n");
      detail::expect_equal("layout", "the first boundary", options.boundaries.front(), 0);
      detail::expect_equal("layout", "the last boundary", options.boundaries.back(), size_);
      detail::expect(std::ranges::is_sorted(options.boundaries), "layout",
                     "the boundaries are not ascending");
      begins_ = options.boundaries;
    }
    for (int p = 0; p < shards_; ++p) max_shard_size_ = std::max(max_shard_size_, shard_size(p));
    mask_counts_.assign(at(shards_), words_per_shard());
  }

  void check_spans() const {
    std::int64_t next = 0;
    for (auto const& s : spans_) {
      auto const name = "span '" + s.name + "'";
      detail::expect_equal("layout", "the offset of " + name, s.offset, next,
                           "spans are ascending and cover [0, n) without gaps or overlaps");
      detail::expect(s.length >= 0 && s.length <= size_ - next, "layout",
                     name + " has length " + std::to_string(s.length) + ", " +
                         std::to_string(size_ - next) +
                         " elements are left of n = " + std::to_string(size_));
      detail::expect(std::isfinite(s.lr_scale) && std::isfinite(s.decay_scale), "layout",
                     [&] { return name + " has a scale that is not finite"; });
      detail::expect(!s.density || (*s.density >= 0 && *s.density <= 1), "layout",
                     name + " has a density outside [0, 1]");
      next += s.length;
    }
    detail::expect_equal("layout", "the end of the last span", next, size_, "spans cover [0, n)");
  }

  void add_shard(int p, topk_scope scope) {
    if (p == 0) {
      first_group_.push_back(0);
      first_scale_.push_back(0);
    }
    auto const first_group = groups_.size();
    auto const first_scale = scales_.size();
    for (auto const& s : spans_) {
      index_range const range{std::max(s.offset, begin(p)) - begin(p),
                              std::min(s.offset + s.length, begin(p) + shard_size(p)) - begin(p)};
      if (range.size() <= 0) continue;
      add_scale(first_scale, {range, s.lr_scale, s.decay_scale, s.policy == span_policy::frozen});
      if (s.policy != span_policy::frozen) add_range(first_group, s, scope, range);
    }
    first_group_.push_back(groups_.size());
    first_scale_.push_back(scales_.size());
  }

  void add_scale(std::size_t first, scale_range next) {
    auto const same = [](scale_range const& a, scale_range const& b) {
      return a.lr_scale == b.lr_scale && a.decay_scale == b.decay_scale && a.frozen == b.frozen;
    };
    if (scales_.size() > first && same(scales_.back(), next)) {
      scales_.back().range.end = next.range.end;
    } else {
      scales_.push_back(next);
    }
  }

  void add_range(std::size_t first, parameter_span const& s, topk_scope scope, index_range range) {
    bool const alone =
        s.policy == span_policy::sparse && (s.density || scope == topk_scope::tensor);
    auto group = groups_.end();
    if (!alone) {
      group = std::find_if(groups_.begin() + static_cast<std::ptrdiff_t>(first), groups_.end(),
                           [&](auto const& g) { return g.policy == s.policy && g.shared; });
    }
    if (group == groups_.end()) {
      groups_.push_back(
          {.policy = s.policy, .density = alone ? s.density : std::nullopt, .shared = !alone});
      group = std::prev(groups_.end());
    }
    if (!group->ranges.empty() && group->ranges.back().end == range.begin) {
      group->ranges.back().end = range.end;
    } else {
      group->ranges.push_back(range);
    }
    group->length += range.size();
  }

  std::int64_t size_;
  int shards_;
  std::int64_t max_shard_size_ = 0;
  std::vector<parameter_span> spans_;
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> mask_counts_;
  std::vector<selection_group> groups_;
  std::vector<std::size_t> first_group_;
  std::vector<scale_range> scales_;
  std::vector<std::size_t> first_scale_;
};

}  // namespace scape
