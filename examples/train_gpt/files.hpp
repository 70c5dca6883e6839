// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Files that are either the old or the new ones, never half of them.

#include <filesystem>
#include <string>
#include <string_view>

namespace train_gpt {

//! Writes `path`.tmp and renames it to `path`. Throws std::runtime_error and leaves `path` alone.
void write_atomically(std::filesystem::path const& path, std::string_view content);

//! The content of a file. Throws std::runtime_error.
[[nodiscard]] std::string read_file(std::filesystem::path const& path);

//! Creates the folder where needed and makes sure that files can be made in it. Throws
//! usage_error.
void prepare_folder(std::filesystem::path const& path);

}  // namespace train_gpt
