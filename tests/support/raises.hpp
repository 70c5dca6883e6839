// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! What a call throws, as text.

#include <initializer_list>
#include <string>
#include <string_view>

#include <scape/error.hpp>

namespace scape::testing {

//! The message of the Error that f() throws; "" if it throws nothing. Others pass through.
template <class Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (Error const& e) {
    return e.what();
  }
  return {};
}

//! True if f() throws an Error whose message contains all of `parts`.
template <class Error, class F>
bool raises(F&& f, std::initializer_list<std::string_view> parts) {
  auto const message = message_of<Error>(f);
  for (auto const part : parts) {
    if (message.find(part) == std::string::npos) return false;
  }
  return !message.empty();
}

//! True if f() throws a peer_error that names rank `peer` and whose message contains all of
//! `parts`.
template <class F>
bool names_peer(int peer, F&& f, std::initializer_list<std::string_view> parts) {
  bool named = false;
  auto const call = [&] {
    try {
      f();
    } catch (peer_error const& e) {
      named = e.peer() == peer;
      throw;
    }
  };
  return raises<peer_error>(call, parts) && named;
}

//! The same for argument_error, the most frequent one.
template <class F>
bool rejects(F&& f, std::initializer_list<std::string_view> parts) {
  return raises<argument_error>(f, parts);
}

}  // namespace scape::testing
