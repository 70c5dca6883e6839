// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace scape::detail {

//! The compiler's spelling of T. Ranks compare types by it.
template <class T>
constexpr std::string_view type_name() noexcept {
#if defined(__GNUC__) || defined(__clang__)
  std::string_view const text = __PRETTY_FUNCTION__;
  auto const begin = text.find("T = ") + 4;
  auto const end = text.find(';', begin);
  return text.substr(begin, (end == text.npos ? text.rfind(']') : end) - begin);
#else
  return __FUNCSIG__;
#endif
}

}  // namespace scape::detail
