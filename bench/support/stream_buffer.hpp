// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Large arrays on large pages, where the system has them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace scape::bench {

//! `size` zeroed elements.
template <class T>
class stream_buffer {
 public:
  explicit stream_buffer(std::int64_t size)
      : size_(static_cast<std::size_t>(size)),
        data_(static_cast<T*>(::operator new (size_ * sizeof(T), std::align_val_t{page}))) {
#if defined(__linux__)
    madvise(data_.get(), size_ * sizeof(T), MADV_HUGEPAGE);
#endif
    std::uninitialized_value_construct_n(data_.get(), size_);
  }
  [[nodiscard]] T* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::span<T> span() const noexcept { return {data_.get(), size_}; }

 private:
  static constexpr std::size_t page = std::size_t{1} << 21;
  struct release {
    void operator()(T* p) const noexcept { ::operator delete (p, std::align_val_t{page}); }
  };
  std::size_t size_;
  std::unique_ptr<T, release> data_;
};

}  // namespace scape::bench
