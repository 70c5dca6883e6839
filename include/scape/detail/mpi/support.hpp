// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! MPI's errors, and what it says of itself.

#include <mpi.h>

#include <array>
#include <atomic>
#include <span>
#include <string>
#include <string_view>

#include <scape/error.hpp>

namespace scape {

//! MPI refused or failed. `code()` is its error code.
class mpi_error : public error {
 public:
  mpi_error(detail::caller who, int code, std::string const& what,
            source_location where = source_location::current())
      : error(std::string(who.operation), what, who.rank, who.size, where), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

namespace detail {

inline std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return "error code " + std::to_string(code);
  }
  return {text.data(), static_cast<std::size_t>(length)};
}

//! Throws mpi_error "<call>: <text>" unless the call succeeded.
inline void check_mpi(int code, caller who, char const* call,
                      source_location where = source_location::current()) {
  if (code != MPI_SUCCESS) throw mpi_error(who, code, call + (": " + mpi_text(code)), where);
}

constexpr std::string_view mpi_thread_name(int level) noexcept {
  return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
         : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
         : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                          : "MPI_THREAD_MULTIPLE";
}

inline bool mpi_initialized() noexcept {
  int initialized = 0;
  MPI_Initialized(&initialized);
  return initialized != 0;
}

inline bool mpi_finalized() noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

//! Throws unless MPI can be used.
inline void expect_mpi(caller who) {
  expect(mpi_initialized(), who,
         "MPI is not initialised; make a scape::mpi_environment or call MPI_Init_thread first");
  expect(!mpi_finalized(), who, "MPI is finalised already");
}

//! MPI_Testall, but request by request: MPI_Testall itself reports errors to MPI_COMM_WORLD's
//! handler in some MPIs. A request that failed is complete.
inline bool all_complete(std::span<MPI_Request> requests) noexcept {
  for (auto& request : requests) {
    int complete = 0;
    if (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && complete == 0) {
      return false;
    }
  }
  return true;
}

//! Whether a communicator has failed in this process: then MPI_Finalize may hang.
inline std::atomic<bool>& mpi_has_failed() noexcept {
  static std::atomic<bool> failed = false;
  return failed;
}

}  // namespace detail
}  // namespace scape
