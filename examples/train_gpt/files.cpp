// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include "usage_error.hpp"

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string const& what, fs::path const& path, std::string const& why) {
  throw std::runtime_error("cannot " + what + " '" + path.string() + "': " + why);
}

}  // namespace

void write_atomically(fs::path const& path, std::string_view content) {
  fs::path temporary = path;
  temporary += ".tmp";
  errno = 0;
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  std::error_code code;
  if (!out) {
    std::string const why = std::strerror(errno);
    fs::remove(temporary, code);
    fail("write", path, why);
  }
  fs::rename(temporary, path, code);
  if (code) fail("write", path, code.message());
}

std::string read_file(fs::path const& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(in), {}};
  if (!in) fail("read", path, std::strerror(errno));
  return content;
}

void prepare_folder(fs::path const& path) {
  try {
    fs::create_directories(path);
    fs::path const probe = path / ".write_test";
    write_atomically(probe, "");
    fs::remove(probe);
  } catch (std::exception const& e) {
    throw usage_error("the output folder '" + path.string() + "' cannot be used: " + e.what());
  }
}

}  // namespace train_gpt
