// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <scape/error.hpp>

namespace scape::detail {

//! Flushes a file or folder to the disk; false with errno if that fails.
inline bool flush_to_disk(std::filesystem::path const& path) {
  auto const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  auto const failed = ::fsync(file) != 0 ? errno : 0;
  ::close(file);
  errno = failed;
  return failed == 0;
}

//! Makes `path` what write(std::ostream&) writes. After a crash at any moment, the file is the old
//! one or the new one. Throws checkpoint_error, and leaves the old one.
template <class Write>
void write_durably(caller who, std::filesystem::path const& path, Write const& write) {
  auto const temporary = std::filesystem::path(path.string() + ".tmp");
  auto const fail = [&](int code) {
    auto const why = std::generic_category().message(code);
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw checkpoint_error(std::string(who.operation),
                           "cannot write '" + path.string() + "': " + why, who.rank, who.size);
  };
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  if (!out) fail(errno);
  try {
    write(out);
  } catch (...) {
    out.close();
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  out.close();
  if (!out || !flush_to_disk(temporary)) fail(errno);
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) fail(error.value());
  auto const folder = path.parent_path();
  if (!flush_to_disk(folder.empty() ? "." : folder)) fail(errno);
}

}  // namespace scape::detail
