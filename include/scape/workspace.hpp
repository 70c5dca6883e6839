// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Caller-owned memory, and how it is carved into aligned pieces.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include <scape/error.hpp>

namespace scape {

//! Every carved piece starts at a multiple of this many bytes from the start of an aligned block.
inline constexpr std::size_t workspace_alignment = 256;

namespace detail {

//! The largest size_t stands for all sizes beyond it.
constexpr std::size_t saturated_sum(std::size_t a, std::size_t b) noexcept {
  return a + b < a ? std::numeric_limits<std::size_t>::max() : a + b;
}
constexpr std::size_t saturated_bytes(std::int64_t count, std::size_t element) noexcept {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  auto const n = static_cast<std::size_t>(count);
  return n > most / element ? most : n * element;
}

constexpr std::size_t align_up(std::size_t bytes) noexcept {
  auto const padded = saturated_sum(bytes, workspace_alignment - 1);
  return padded == std::numeric_limits<std::size_t>::max()
             ? padded
             : padded / workspace_alignment * workspace_alignment;
}

}  // namespace detail

//! Adds up the bytes of the pieces a primitive carves; `carver` takes the same pieces in the same
//! order. One alignment unit of slack is included, so the block itself may be misaligned. Sizes
//! beyond size_t are its largest value, which no memory has.
class workspace_size {
 public:
  template <class T>
  constexpr workspace_size& add(std::int64_t count) noexcept {
    return add_bytes(detail::saturated_bytes(count, sizeof(T)));
  }
  constexpr workspace_size& add_bytes(std::size_t bytes) noexcept {
    bytes_ = detail::saturated_sum(bytes_, detail::align_up(bytes));
    return *this;
  }
  [[nodiscard]] constexpr std::size_t bytes() const noexcept {
    return bytes_ == 0 ? 0 : detail::saturated_sum(bytes_, workspace_alignment);
  }

 private:
  std::size_t bytes_ = 0;
};

//! Hands out aligned pieces of a block, front to back, and what is left of it to a callee.
class carver {
 public:
  carver(std::span<std::byte> block, detail::caller who)
      : who_(who), begin_(block.data()), size_(block.size()) {
    auto const address = reinterpret_cast<std::uintptr_t>(begin_);
    auto const misaligned = address % workspace_alignment;
    used_ = misaligned == 0 ? 0 : workspace_alignment - misaligned;
  }

  //! `count` uninitialised elements. Throws argument_error, naming the bytes needed so far and the
  //! bytes given, when the block is too short.
  template <class T>
  [[nodiscard]] std::span<T> take(std::int64_t count) {
    auto const bytes = detail::saturated_bytes(count, sizeof(T));
    if (bytes == 0) return {};
    if (used_ > size_ || bytes > size_ - used_) {
      who_.fail("the workspace has " + std::to_string(size_) + " bytes, at least " +
                    std::to_string(detail::saturated_sum(used_, bytes)) +
                    " are needed; ask the matching *_bytes() function for the size",
                source_location::current());
    }
    auto* piece = begin_ + used_;
    used_ += detail::align_up(bytes);
    return {reinterpret_cast<T*>(piece), static_cast<std::size_t>(count)};
  }

  [[nodiscard]] std::span<std::byte> rest() const noexcept {
    if (used_ >= size_) return {};
    return {begin_ + used_, size_ - used_};
  }

 private:
  detail::caller who_;
  std::byte* begin_;
  std::size_t size_;
  std::size_t used_ = 0;
};

//! A zero-filled, aligned, fixed-size block for callers that have no memory of their own.
class host_buffer {
 public:
  explicit host_buffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(
            ::operator new (bytes == 0 ? 1 : bytes, std::align_val_t{workspace_alignment}))),
        size_(bytes) {
    std::memset(data_.get(), 0, bytes);
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }

 private:
  struct release {
    void operator()(std::byte* p) const noexcept {
      ::operator delete (p, std::align_val_t{workspace_alignment});
    }
  };
  std::unique_ptr<std::byte, release> data_;
  std::size_t size_;
};

}  // namespace scape
