// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Typed exceptions. Every message names the operation, the rank where one is known, and what
//! disagrees.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace scape {

//! Where an error was raised (std::source_location where the compiler has it).
struct source_location {
  char const* file = "";
  unsigned line = 0;
  static constexpr source_location current(char const* file = __builtin_FILE(),
                                           unsigned line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

//! Base of everything scape throws. `rank()` and `size()` are -1 outside a communicator.
class error : public std::runtime_error {
 public:
  error(std::string operation, std::string const& what, int rank = -1, int size = -1,
        source_location where = source_location::current())
      : std::runtime_error(compose(operation, what, rank, size)),
        operation_(std::move(operation)),
        rank_(rank),
        size_(size),
        where_(where) {}

  [[nodiscard]] std::string const& operation() const noexcept { return operation_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] source_location where() const noexcept { return where_; }

 private:
  static std::string compose(std::string_view operation, std::string_view what, int rank,
                             int size) {
    std::string text = "scape::";
    text += operation;
    if (rank >= 0) text += " [rank " + std::to_string(rank) + " of " + std::to_string(size) + "]";
    text += ": ";
    text += what;
    return text;
  }

  std::string operation_;
  int rank_;
  int size_;
  source_location where_;
};

//! A caller's argument is wrong. Thrown before anything has been changed or enqueued.
class argument_error : public error {
 public:
  argument_error(std::string operation, std::string const& what, int rank = -1, int size = -1,
                 source_location where = source_location::current())
      : error(std::move(operation), what, rank, size, where) {}
};

//! A peer failed, left, never came, or disagrees. `peer()` is its rank, -1 where the backend cannot
//! tell.
class peer_error : public error {
 public:
  peer_error(std::string operation, std::string const& what, int peer, int rank, int size,
             source_location where = source_location::current())
      : error(std::move(operation), what, rank, size, where), peer_(peer) {}
  [[nodiscard]] int peer() const noexcept { return peer_; }

 private:
  int peer_;
};

//! A saved state is damaged or belongs to another layout. Nothing was loaded.
class checkpoint_error : public error {
 public:
  checkpoint_error(std::string operation, std::string const& what, int rank = -1, int size = -1,
                   source_location where = source_location::current())
      : error(std::move(operation), what, rank, size, where) {}
};

namespace detail {

//! Whose argument is checked: the operation and, where there is one, the rank that called it.
struct caller {
  std::string_view operation;
  int rank = -1;
  int size = -1;
  constexpr caller(char const* op) noexcept : operation(op) {}
  constexpr caller(std::string_view op) noexcept : operation(op) {}
  constexpr caller(std::string_view op, int rank_of_size, int of) noexcept
      : operation(op), rank(rank_of_size), size(of) {}

  [[noreturn]] void fail(std::string const& what,
                         source_location where = source_location::current()) const {
    throw argument_error(std::string(operation), what, rank, size, where);
  }
};

//! Throws argument_error "<name> is <got>, expected <want>; <advice>" unless got == want.
inline void expect_equal(caller who, std::string_view name, std::int64_t got, std::int64_t want,
                         std::string_view advice = {},
                         source_location where = source_location::current()) {
  if (got == want) return;
  std::string text(name);
  text += " is " + std::to_string(got) + ", expected " + std::to_string(want);
  if (!advice.empty()) (text += "; ") += advice;
  who.fail(text, where);
}

//! Throws argument_error with both numbers when the scratch memory is too short.
inline void expect_scratch(caller who, std::size_t got, std::size_t want,
                           source_location where = source_location::current()) {
  if (got >= want) return;
  who.fail("the scratch memory has " + std::to_string(got) + " bytes, " + std::to_string(want) +
               " are needed; see the *_bytes() function",
           where);
}

//! Throws argument_error with `what` unless `ok`.
inline void expect(bool ok, caller who, std::string_view what,
                   source_location where = source_location::current()) {
  if (!ok) who.fail(std::string(what), where);
}

//! The same with a text that is composed only when it is needed: checks of a step allocate nothing.
template <std::invocable Text>
void expect(bool ok, caller who, Text const& what,
            source_location where = source_location::current()) {
  if (!ok) who.fail(what(), where);
}

}  // namespace detail
}  // namespace scape
