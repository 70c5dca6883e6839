// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The format in which an optimizer's state is saved.
//!
//! Little-endian: the magic "scapeopt", a 32-bit version, then 64-bit words: layout fingerprint,
//! rule, rank, size, lag, step, skipped steps, number of sections; for each section its bytes (64
//! bit) and its content; last, the FNV-1a hash of all before it. Every size follows from the
//! layout, so a foreign or damaged file is known before anything is taken from it.

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

#include <scape/detail/fnv1a.hpp>
#include <scape/error.hpp>

namespace scape::detail {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

//! What a state belongs to, and how far it has come.
struct checkpoint_header {
  std::uint64_t fingerprint = 0;
  std::uint64_t rule = 0;
  std::uint64_t rank = 0;
  std::uint64_t size = 0;
  std::uint64_t lag = 0;
  std::uint64_t step = 0;
  std::uint64_t skipped = 0;
};

inline constexpr std::array<char, 8> checkpoint_magic = {'s', 'c', 'a', 'p', 'e', 'o', 'p', 't'};
inline constexpr std::uint32_t checkpoint_version = 1;

[[nodiscard]] inline std::uint64_t hash_of(std::string_view text) noexcept {
  fnv1a hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.value();
}

//! The memory of contiguous ranges, as sections.
template <class... Ranges>
[[nodiscard]] std::array<std::span<std::byte>, sizeof...(Ranges)> sections_of(Ranges&... ranges) {
  return {std::as_writable_bytes(std::span(ranges))...};
}

inline void save_checkpoint(std::ostream& out, checkpoint_header const& header,
                            std::span<std::span<std::byte> const> sections) {
  fnv1a hash;
  auto const write = [&](std::span<std::byte const> bytes) {
    hash.add(bytes);
    out.write(reinterpret_cast<char const*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  };
  auto const write_word = [&](std::uint64_t word) { write(std::as_bytes(std::span(&word, 1))); };
  write(std::as_bytes(std::span(checkpoint_magic)));
  write(std::as_bytes(std::span(&checkpoint_version, 1)));
  write(std::as_bytes(std::span(&header, 1)));
  write_word(sections.size());
  for (auto const section : sections) {
    write_word(section.size());
    write(section);
  }
  auto const sum = hash.value();
  out.write(reinterpret_cast<char const*>(&sum), sizeof(sum));
  if (!out) throw checkpoint_error("save", "writing failed; is the disk full?");
}

//! Reads and checks everything, then fills `sections`; on any error they are left as they were.
//! `expected.step` and `expected.skipped` are not compared. Returns the header read.
inline checkpoint_header load_checkpoint(std::istream& in, checkpoint_header const& expected,
                                         std::span<std::span<std::byte> const> sections) {
  fnv1a hash;
  auto const read = [&](std::span<std::byte> bytes) {
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (in.gcount() != static_cast<std::streamsize>(bytes.size())) {
      throw checkpoint_error("load", "the data ends early: " + std::to_string(in.gcount()) +
                                         " of " + std::to_string(bytes.size()) +
                                         " bytes are left of a part; the file was cut short");
    }
    hash.add(bytes);
  };
  auto const read_value = [&]<class T>(T value) {
    read(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  };
  auto const same = [](std::string_view what, std::uint64_t got, std::uint64_t want) {
    if (got == want) return;
    throw checkpoint_error("load", std::string(what) + " in the file is " + std::to_string(got) +
                                       ", this optimizer has " + std::to_string(want));
  };
  if (read_value(std::array<char, 8>{}) != checkpoint_magic) {
    throw checkpoint_error("load", "this is not a saved optimizer state");
  }
  same("the format version", read_value(std::uint32_t{}), checkpoint_version);
  auto const header = read_value(checkpoint_header{});
  same("the number of ranks", header.size, expected.size);
  same("the rank", header.rank, expected.rank);
  same("the layout's fingerprint", header.fingerprint, expected.fingerprint);
  same("the update rule's hash", header.rule, expected.rule);
  same("the lag", header.lag, expected.lag);
  same("the number of sections", read_value(std::uint64_t{}), sections.size());
  std::vector<std::vector<std::byte>> staged;
  for (auto const section : sections) {
    same("the size of a section", read_value(std::uint64_t{}), section.size());
    staged.emplace_back(section.size());
    read(staged.back());
  }
  auto const sum = hash.value();
  if (read_value(std::uint64_t{}) != sum) {
    throw checkpoint_error("load", "the checksum does not match; the file is damaged");
  }
  auto next = staged.begin();
  for (auto const section : sections) {
    if (!section.empty()) std::memcpy(section.data(), next->data(), section.size());
    ++next;
  }
  return header;
}

}  // namespace scape::detail
