// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Counts what operator new hands out, on any thread. It replaces the global operators, all of
//! them, so only one file of an executable may include it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace scape::testing {

inline std::atomic<std::int64_t> allocation_count = 0;

inline void* counted_allocation(std::size_t bytes, std::size_t alignment) noexcept {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (alignment == 0) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}
inline void* checked(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace scape::testing

// Not inlined: GCC would see free() on what it takes for the library's operator new.
#define SCAPE_REPLACED [[gnu::noinline]]

SCAPE_REPLACED void* operator new(std::size_t n) {
  return scape::testing::checked(scape::testing::counted_allocation(n, 0));
}
SCAPE_REPLACED void* operator new[](std::size_t n) {
  return scape::testing::checked(scape::testing::counted_allocation(n, 0));
}
SCAPE_REPLACED void* operator new(std::size_t n, std::align_val_t a) {
  return scape::testing::checked(
      scape::testing::counted_allocation(n, static_cast<std::size_t>(a)));
}
SCAPE_REPLACED void* operator new[](std::size_t n, std::align_val_t a) {
  return scape::testing::checked(
      scape::testing::counted_allocation(n, static_cast<std::size_t>(a)));
}
SCAPE_REPLACED void* operator new(std::size_t n, std::nothrow_t const&) noexcept {
  return scape::testing::counted_allocation(n, 0);
}
SCAPE_REPLACED void* operator new[](std::size_t n, std::nothrow_t const&) noexcept {
  return scape::testing::counted_allocation(n, 0);
}
SCAPE_REPLACED void operator delete(void* p) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete[](void* p) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete(void* p, std::size_t) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
SCAPE_REPLACED void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
SCAPE_REPLACED void operator delete(void* p, std::nothrow_t const&) noexcept { std::free(p); }
SCAPE_REPLACED void operator delete[](void* p, std::nothrow_t const&) noexcept { std::free(p); }

#undef SCAPE_REPLACED
