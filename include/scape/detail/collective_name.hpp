// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! How errors name an operation.

#include <cstdint>
#include <string>
#include <string_view>

#include <scape/detail/type_name.hpp>

namespace scape::detail {

struct collective_name {
  std::string_view operation;
  std::string_view element = {};
  std::int64_t total = 0;  //!< elements of the operation's largest buffer
  int root = -1;           //!< or the peer of a message
};

inline std::string describe(collective_name const& name) {
  std::string text(name.operation);
  if (!name.element.empty()) {
    text += " of " + std::to_string(name.total) + " " + std::string(name.element);
  }
  if (name.root >= 0) {
    text += (name.operation == "send" ? " to rank " : " from rank ") + std::to_string(name.root);
  }
  return text;
}

}  // namespace scape::detail
