// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! 64-bit FNV-1a, eight bytes to a round. Each round is a bijection of the state, so a change
//! inside one eight-byte piece always changes the hash.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace scape::detail {

class fnv1a {
 public:
  void add(std::uint64_t word) noexcept { hash_ = (hash_ ^ word) * 0x100000001b3U; }
  void add(std::span<std::byte const> bytes) noexcept {
    std::uint64_t word = 0;
    for (; bytes.size() >= sizeof(word); bytes = bytes.subspan(sizeof(word))) {
      std::memcpy(&word, bytes.data(), sizeof(word));
      add(word);
    }
    word = 0;
    if (!bytes.empty()) {
      std::memcpy(&word, bytes.data(), bytes.size());
      add(word);
    }
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

}  // namespace scape::detail
