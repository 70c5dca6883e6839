// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A little text to learn from.

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace scape::testing {

//! 400 lines in a file of its own, which goes with the object.
class text_file {
 public:
  text_file() {
    path_ = (std::filesystem::temp_directory_path() / "scape_text_XXXXXX").string();
    int const file = mkstemp(path_.data());
    if (file < 0) throw std::runtime_error("mkstemp");
    close(file);
    std::ofstream out(path_);
    for (int i = 0; i < 400; ++i) out << "line " << i << " of a text with " << i * i % 97 << '\n';
    if (!out.flush()) throw std::runtime_error("cannot write " + path_);
  }
  text_file(text_file const&) = delete;
  text_file& operator=(text_file const&) = delete;
  ~text_file() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  [[nodiscard]] std::string const& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace scape::testing
