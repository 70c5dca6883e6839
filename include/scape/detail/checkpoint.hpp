// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The format in which an optimizer's state is saved, one file per rank.
//!
//! Little-endian: the magic "scapeopt", a 32-bit version, then 64-bit words: layout fingerprint,
//! model fingerprint, rule, rank, number of ranks P, lag, step, skipped steps, the P + 1 shard
//! boundaries, number of sections; for each section its bytes (64 bit) and its content; last, the
//! FNV-1a hash of all before it. Every size follows from the boundaries and the lag, so a foreign
//! or damaged file is known before anything is taken from it.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <istream>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <scape/config.hpp>
#include <scape/detail/fnv1a.hpp>
#include <scape/error.hpp>
#include <scape/layout.hpp>

namespace scape::detail {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

//! What a state belongs to, and how far it has come.
struct checkpoint_header {
  std::uint64_t fingerprint = 0;
  std::uint64_t model = 0;
  std::uint64_t rule = 0;
  std::uint64_t rank = 0;
  std::uint64_t size = 0;
  std::uint64_t lag = 0;
  std::uint64_t step = 0;
  std::uint64_t skipped = 0;
};

inline constexpr std::array<char, 8> checkpoint_magic = {'s', 'c', 'a', 'p', 'e', 'o', 'p', 't'};
inline constexpr std::uint32_t checkpoint_version = 2;

[[nodiscard]] inline std::uint64_t hash_of(std::string_view text) noexcept {
  fnv1a hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.value();
}

//! How a part of the state is spread over the ranks.
enum class spread : std::uint8_t {
  summed,   //!< every rank has n floats of its own; their sum counts
  sharded,  //!< every rank has its shard's elements
  masks     //!< every rank has the same global masks, one after the other
};

struct checkpoint_section {
  spread kind;
  std::size_t element;  //!< bytes
  std::span<std::byte> bytes;

  template <class Range>
  checkpoint_section(spread how, Range& values)
      : kind(how), element(sizeof(values[0])), bytes(std::as_writable_bytes(std::span(values))) {}
};

//! The parts of a dense optimizer's state, and of a sparse one's.
template <class Rule, class Floats>
[[nodiscard]] std::vector<checkpoint_section> sections_of(Floats& m, Floats& v) {
  std::vector<checkpoint_section> result = {{spread::sharded, m}};
  if (Rule::keeps_second_moment) result.emplace_back(spread::sharded, v);
  return result;
}
template <class Rule, class Floats, class Residual, class Ages, class Masks>
[[nodiscard]] std::vector<checkpoint_section> sections_of(Floats& m, Floats& v, Residual& residual,
                                                          Ages& age, Masks& masks) {
  auto result = sections_of<Rule>(m, v);
  result.emplace_back(spread::summed, residual);
  result.emplace_back(spread::sharded, age);
  result.emplace_back(spread::masks, masks);
  return result;
}

[[noreturn]] inline void fail_checkpoint(caller who, std::string const& what) {
  throw checkpoint_error(std::string(who.operation), what, who.rank, who.size);
}

//! Throws unless a number in a file is what it must be.
inline void expect_same(caller who, std::string_view what, std::uint64_t got, std::uint64_t want) {
  if (got == want) return;
  fail_checkpoint(who, std::string(what) + " in the file is " + std::to_string(got) +
                           ", expected " + std::to_string(want));
}

//! Writes values and, at the end, the hash of them all.
class hashing_writer {
 public:
  hashing_writer(caller who, std::ostream& out) : who_(who), out_(&out) {}

  template <class Range>
  void write(Range const& values) {
    auto const bytes = std::as_bytes(std::span(values));
    hash_.add(bytes);
    out_->write(reinterpret_cast<char const*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
  }
  template <class T>
  void value(T const& x) {
    write(std::span(&x, 1));
  }
  void end() {
    value(hash_.value());
    if (!*out_) fail_checkpoint(who_, "writing failed; is the disk full?");
  }

 private:
  caller who_;
  std::ostream* out_;
  fnv1a hash_;
};

//! Reads them and, at the end, compares the hash.
class hashing_reader {
 public:
  hashing_reader(caller who, std::istream& in) : who_(who), in_(&in) {}

  void read(std::span<std::byte> bytes) {
    in_->read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (in_->gcount() != static_cast<std::streamsize>(bytes.size())) {
      fail("the data ends early: " + std::to_string(in_->gcount()) + " of " +
           std::to_string(bytes.size()) + " bytes are left of a part; the file was cut short");
    }
    hash_.add(bytes);
  }
  template <class T>
  T value(T into) {
    read(std::as_writable_bytes(std::span(&into, 1)));
    return into;
  }
  void end() {
    auto const sum = hash_.value();
    if (value(std::uint64_t{}) != sum) fail("the checksum does not match; the file is damaged");
  }
  void expect_same(std::string_view what, std::uint64_t got, std::uint64_t want) const {
    detail::expect_same(who_, what, got, want);
  }
  [[noreturn]] void fail(std::string const& what) const { fail_checkpoint(who_, what); }

 private:
  caller who_;
  std::istream* in_;
  fnv1a hash_;
};

//! Reads one rank's file of an optimizer's state.
class checkpoint_reader : public hashing_reader {
 public:
  checkpoint_reader(caller who, std::istream& in) : hashing_reader(who, in) {
    if (value(std::array<char, 8>{}) != checkpoint_magic) {
      fail("this is not a saved optimizer state");
    }
    expect_same("the format version", value(std::uint32_t{}), checkpoint_version);
    header = value(checkpoint_header{});
  }

  std::vector<std::int64_t> boundaries() {
    std::vector<std::int64_t> result(static_cast<std::size_t>(header.size) + 1);
    read(std::as_writable_bytes(std::span(result)));
    return result;
  }
  std::vector<std::byte> section(std::size_t size) {
    expect_same("the size of a section", value(std::uint64_t{}), size);
    std::vector<std::byte> result(size);
    read(result);
    return result;
  }

  void expect_header(checkpoint_header const& expected) const {
    expect_same("the number of ranks", header.size, expected.size);
    expect_same("the rank", header.rank, expected.rank);
    expect_same("the update rule's hash", header.rule, expected.rule);
    expect_same("the lag", header.lag, expected.lag);
  }

  checkpoint_header header;
};

//! Replaces the content of the sections.
inline void commit(std::vector<std::vector<std::byte>> const& staged,
                   std::span<checkpoint_section const> sections) {
  auto next = staged.begin();
  for (auto const& section : sections) {
    if (!section.bytes.empty()) {
      std::memcpy(section.bytes.data(), next->data(), section.bytes.size());
    }
    ++next;
  }
}

inline void save_checkpoint(caller who, std::ostream& out, checkpoint_header const& header,
                            layout const& layout, std::span<checkpoint_section const> sections) {
  hashing_writer to(who, out);
  to.write(checkpoint_magic);
  to.value(checkpoint_version);
  to.value(header);
  to.write(layout.boundaries());
  to.value(std::uint64_t{sections.size()});
  for (auto const& section : sections) {
    to.value(std::uint64_t{section.bytes.size()});
    to.write(section.bytes);
  }
  to.end();
}

//! Reads and checks everything, then fills the sections; on any error they are left as they were.
//! `expected.step` and `expected.skipped` are not compared. Returns the header read.
inline checkpoint_header load_checkpoint(caller who, std::istream& in,
                                         checkpoint_header const& expected,
                                         std::span<checkpoint_section const> sections) {
  checkpoint_reader reader(who, in);
  reader.expect_header(expected);
  reader.expect_same("the layout's fingerprint", reader.header.fingerprint, expected.fingerprint);
  reader.boundaries();
  reader.expect_same("the number of sections", reader.value(std::uint64_t{}), sections.size());
  std::vector<std::vector<std::byte>> staged;
  for (auto const& section : sections) staged.push_back(reader.section(section.bytes.size()));
  reader.end();
  commit(staged, sections);
  return reader.header;
}

//! Where the old shards' elements go in one rank's state under another layout.
class reshard {
 public:
  reshard(layout const& to, int rank, std::span<std::int64_t const> from)
      : to_(&to), rank_(rank), from_(from) {
    for (std::size_t p = 0; p + 1 < from.size(); ++p) {
      longest_ = std::max(longest_, from[p + 1] - from[p]);
    }
  }

  //! Bytes of a section in the file of rank p.
  [[nodiscard]] std::size_t size(checkpoint_section const& section, std::size_t p) const {
    switch (section.kind) {
      case spread::summed:
        return section.bytes.size();
      case spread::sharded:
        return section.element * static_cast<std::size_t>(from_[p + 1] - from_[p]);
      default:
        return slots(section) * mask_words() * sizeof(mask_word);
    }
  }

  //! Adds what the file of rank p has to the new content.
  void add(checkpoint_section const& section, std::size_t p, std::span<std::byte const> old,
           std::span<std::byte> now) const {
    switch (section.kind) {
      case spread::summed:
        if (p % static_cast<std::size_t>(to_->shards()) == static_cast<std::size_t>(rank_)) {
          add_floats(old, now);
        }
        break;
      case spread::sharded:
        copy_shard(section.element, p, old, now);
        break;
      default:
        if (p == 0) copy_masks(slots(section), old, now);
    }
  }

 private:
  [[nodiscard]] std::size_t slots(checkpoint_section const& section) const {
    auto const words = static_cast<std::size_t>(to_->mask_words());
    return words == 0 ? 0 : section.bytes.size() / sizeof(mask_word) / words;
  }
  [[nodiscard]] std::size_t words_per_shard() const {
    return static_cast<std::size_t>(scape::mask_words(longest_));
  }
  [[nodiscard]] std::size_t mask_words() const { return (from_.size() - 1) * words_per_shard(); }

  static void add_floats(std::span<std::byte const> old, std::span<std::byte> now) {
    for (std::size_t i = 0; i < now.size(); i += sizeof(float)) {
      float a = 0, b = 0;
      std::memcpy(&a, now.data() + i, sizeof(a));
      std::memcpy(&b, old.data() + i, sizeof(b));
      a += b;
      std::memcpy(now.data() + i, &a, sizeof(a));
    }
  }

  void copy_shard(std::size_t element, std::size_t p, std::span<std::byte const> old,
                  std::span<std::byte> now) const {
    auto const begin = std::max(from_[p], to_->begin(rank_));
    auto const end = std::min(from_[p + 1], to_->begin(rank_) + to_->shard_size(rank_));
    if (begin >= end) return;
    auto const bytes = [element](std::int64_t elements) {
      return element * static_cast<std::size_t>(elements);
    };
    std::memcpy(now.data() + bytes(begin - to_->begin(rank_)), old.data() + bytes(begin - from_[p]),
                bytes(end - begin));
  }

  void copy_masks(std::size_t slots, std::span<std::byte const> old,
                  std::span<std::byte> now) const {
    std::vector<mask_word> source(old.size() / sizeof(mask_word));
    std::vector<mask_word> target(now.size() / sizeof(mask_word));
    std::ranges::copy(old, std::as_writable_bytes(std::span(source)).begin());
    for (std::size_t slot = 0; slot < slots; ++slot) {
      auto const* words = source.data() + slot * mask_words();
      auto* const out = target.data() + slot * static_cast<std::size_t>(to_->mask_words());
      int q = 0;
      for (std::size_t p = 0; p + 1 < from_.size(); ++p, words += words_per_shard()) {
        for (std::size_t w = 0; w < words_per_shard(); ++w) {
          for (auto bits = words[w]; bits != 0; bits &= bits - 1) {
            auto const j =
                from_[p] + static_cast<std::int64_t>(w) * mask_word_bits + std::countr_zero(bits);
            while (j >= to_->begin(q) + to_->shard_size(q)) ++q;
            auto const i = j - to_->begin(q);
            out[q * to_->words_per_shard() + i / mask_word_bits] |= mask_word{1}
                                                                    << (i % mask_word_bits);
          }
        }
      }
    }
    std::ranges::copy(std::as_bytes(std::span(target)), now.begin());
  }

  layout const* to_;
  int rank_;
  std::span<std::int64_t const> from_;
  std::int64_t longest_ = 0;
};

//! The same from the files of all ranks of an earlier run, in rank order, however many they were
//! and wherever their shards began. Of the summed parts, rank p takes those of the old ranks p,
//! p + P, p + 2P, ...
inline checkpoint_header load_checkpoint(caller who, std::span<std::istream* const> files,
                                         checkpoint_header const& expected, layout const& layout,
                                         std::span<checkpoint_section const> sections) {
  std::vector<std::vector<std::byte>> staged;
  for (auto const& section : sections) staged.emplace_back(section.bytes.size());
  checkpoint_header first;
  std::vector<std::int64_t> boundaries;
  for (std::size_t p = 0; p < files.size(); ++p) {
    checkpoint_reader reader(who, *files[p]);
    auto own = expected;
    own.rank = p;
    own.size = files.size();
    reader.expect_header(own);
    reader.expect_same("the model's fingerprint", reader.header.model, expected.model);
    auto const begins = reader.boundaries();
    if (p == 0) {
      first = reader.header;
      boundaries = begins;
      if (begins.front() != 0 || begins.back() != layout.size() ||
          !std::ranges::is_sorted(begins)) {
        reader.fail("the shard boundaries are wrong; the file is damaged");
      }
    }
    reader.expect_same("the step", reader.header.step, first.step);
    reader.expect_same("the number of skipped steps", reader.header.skipped, first.skipped);
    if (begins != boundaries) reader.fail("the files are of runs with different shards");
    reader.expect_same("the number of sections", reader.value(std::uint64_t{}), sections.size());
    reshard const moved(layout, static_cast<int>(expected.rank), boundaries);
    std::vector<std::vector<std::byte>> old;
    for (auto const& section : sections) old.push_back(reader.section(moved.size(section, p)));
    reader.end();
    for (std::size_t s = 0; s < sections.size(); ++s) moved.add(sections[s], p, old[s], staged[s]);
  }
  if (files.empty()) fail_checkpoint(who, "there are no files");
  commit(staged, sections);
  return first;
}

}  // namespace scape::detail
