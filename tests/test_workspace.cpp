// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <scape/error.hpp>
#include <scape/workspace.hpp>

#include "support/raises.hpp"

using scape::carver;
using scape::host_buffer;
using scape::workspace_alignment;
using scape::workspace_size;
using scape::testing::rejects;

namespace {

template <class T>
std::uintptr_t address(std::span<T> s) {
  return reinterpret_cast<std::uintptr_t>(s.data());
}

}  // namespace

TEST_CASE("sizes are sums of aligned pieces and one unit for a misaligned block") {
  CHECK(workspace_size().bytes() == 0);
  CHECK(workspace_size().add<float>(0).bytes() == 0);
  CHECK(workspace_size().add<float>(1).bytes() == 2 * workspace_alignment);
  CHECK(workspace_size().add<float>(64).bytes() == 2 * workspace_alignment);
  CHECK(workspace_size().add<float>(65).add<std::byte>(1).bytes() == 4 * workspace_alignment);
  CHECK(workspace_size().add_bytes(257).bytes() == 3 * workspace_alignment);
  constexpr auto n = (std::int64_t{1} << 33) + 1;
  CHECK(workspace_size().add<float>(n).bytes() == (std::size_t{1} << 35) + 2 * workspace_alignment);
}

TEST_CASE("a size beyond 64 bits is the largest one, and no block has it") {
  constexpr auto n = (std::int64_t{1} << 62) + 1;
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  CHECK(workspace_size().add<float>(n).bytes() == most);
  CHECK(workspace_size().add<char>(n).add<char>(n).add<char>(n).add<char>(n).bytes() == most);
  CHECK(workspace_size().add_bytes(most - 1).bytes() == most);
  CHECK(workspace_size().add<float>(n).add<char>(300).bytes() == most);
  host_buffer const memory(1024);
  carver scratch(memory.bytes(), "test");
  CHECK(scratch.take<char>(1).size() == 1);
  CHECK(rejects([&] { return scratch.take<float>(n); }, {"1024 bytes", std::to_string(most)}));
}

TEST_CASE("the computed size is enough at every misalignment, and pieces are aligned and apart") {
  host_buffer const memory(8192);
  auto const bytes =
      workspace_size().add<float>(5).add<std::uint16_t>(0).add<double>(33).add<char>(1).bytes();
  for (std::size_t shift = 0; shift < workspace_alignment; ++shift) {
    CAPTURE(shift);
    carver scratch(memory.bytes().subspan(shift, bytes), "test");
    auto const a = scratch.take<float>(5);
    auto const none = scratch.take<std::uint16_t>(0);
    auto const b = scratch.take<double>(33);
    auto const c = scratch.take<char>(1);
    CHECK(a.size() == 5);
    CHECK(none.empty());
    CHECK(b.size() == 33);
    CHECK(address(a) % workspace_alignment == 0);
    CHECK(address(b) % workspace_alignment == 0);
    CHECK(address(c) % workspace_alignment == 0);
    CHECK(address(a) + a.size_bytes() <= address(b));
    CHECK(address(b) + b.size_bytes() <= address(c));
    CHECK(address(c) < address(memory.bytes()) + shift + bytes);
  }
}

TEST_CASE("a short block is an error with both numbers") {
  host_buffer const memory(1024);
  carver scratch(memory.bytes().first(300), "some_primitive");
  CHECK(scratch.take<std::byte>(300).size() == 300);
  CHECK(rejects([&] { (void)scratch.take<float>(1); },
                {"scape::some_primitive", "300 bytes", "516"}));

  carver exact(memory.bytes().first(8), "op");
  CHECK_NOTHROW((void)exact.take<double>(1));
  carver short_by_one(memory.bytes().first(7), "op");
  CHECK(rejects([&] { (void)short_by_one.take<double>(1); }, {"7 bytes", "at least 8"}));

  carver empty({}, "op");
  CHECK(empty.take<double>(0).empty());
  CHECK(empty.rest().empty());
  CHECK(rejects([&] { (void)empty.take<char>(1); }, {"0 bytes", "at least 1"}));

  carver misaligned(memory.bytes().subspan(1, 255), "op");
  CHECK(misaligned.take<int>(0).empty());
  CHECK(misaligned.rest().empty());
  CHECK(rejects([&] { (void)misaligned.take<char>(1); }, {"255 bytes", "at least 256"}));
}

TEST_CASE("the rest begins aligned behind what was taken") {
  host_buffer const memory(1024);
  carver scratch(memory.bytes(), "op");
  CHECK(scratch.rest().size() == 1024);
  (void)scratch.take<char>(1);
  CHECK(scratch.rest().size() == 1024 - workspace_alignment);
  CHECK(address(scratch.rest()) == address(memory.bytes()) + workspace_alignment);
  (void)scratch.take<char>(768);
  CHECK(scratch.rest().empty());
}

TEST_CASE("host_buffer is aligned, zeroed and of the size asked for") {
  for (std::size_t const size : {0U, 1U, 255U, 4096U}) {
    host_buffer const buffer(size);
    CHECK(buffer.bytes().size() == size);
    CHECK(address(buffer.bytes()) % workspace_alignment == 0);
    for (auto const b : buffer.bytes()) CHECK(b == std::byte{0});
  }
  host_buffer first(16);
  first.bytes()[3] = std::byte{7};
  host_buffer second(std::move(first));
  CHECK(second.bytes()[3] == std::byte{7});
}
