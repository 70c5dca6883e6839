# SPDX-License-Identifier: Apache-2.0
include(FetchContent)

# Tells that something is left out because `package` is missing, or fails if that was not allowed.
function(scape_missing package debian what)
  set(text "${package} not found: ${what} left out. Install it (Debian: apt-get install ${debian})\
 or set SCAPE_FETCH_DEPENDENCIES=ON.")
  if(SCAPE_REQUIRE_DEPENDENCIES)
    message(FATAL_ERROR "${text}")
  endif()
  message(STATUS "${text}")
endfunction()

# Header-only dependency: target `target` with the include directory `subdirectory` of a checkout.
# Its own CMakeLists.txt, with tests and install rules, is not run.
function(scape_fetch_headers package target subdirectory)
  FetchContent_Declare(${package} ${ARGN} GIT_SHALLOW ON SOURCE_SUBDIR no-cmake-here)
  FetchContent_MakeAvailable(${package})
  string(TOLOWER ${package} name)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${${name}_SOURCE_DIR}/${subdirectory}")
endfunction()

# Finds `package`, or downloads it where it is absent and that is allowed.
# Usage: scape_dependency(<package> <target> <Debian package> <what is left out without it>)
# Sets <package>_FOUND in the caller's scope.
macro(scape_dependency package target debian what)
  if(NOT TARGET ${target})
    find_package(${package} QUIET)
  endif()
  if(NOT TARGET ${target} AND SCAPE_FETCH_DEPENDENCIES)
    cmake_language(CALL scape_fetch_${package})
  endif()
  if(TARGET ${target})
    set(${package}_FOUND TRUE)
  else()
    set(${package}_FOUND FALSE)
    scape_missing(${package} ${debian} "${what}")
  endif()
endmacro()

function(scape_fetch_doctest)
  scape_fetch_headers(doctest doctest::doctest ""
    GIT_REPOSITORY https://github.com/doctest/doctest.git GIT_TAG v2.4.11)
endfunction()

function(scape_fetch_Eigen3)
  scape_fetch_headers(Eigen3 Eigen3::Eigen ""
    GIT_REPOSITORY https://gitlab.com/libeigen/eigen.git GIT_TAG 3.4.0)
endfunction()

function(scape_fetch_CLI11)
  scape_fetch_headers(CLI11 CLI11::CLI11 include
    GIT_REPOSITORY https://github.com/CLIUtils/CLI11.git GIT_TAG v2.3.2)
endfunction()

function(scape_fetch_fmt)
  scape_fetch_headers(fmt fmt::fmt include
    GIT_REPOSITORY https://github.com/fmtlib/fmt.git GIT_TAG 9.1.0)
  set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY)
endfunction()

function(scape_fetch_benchmark)
  set(BENCHMARK_ENABLE_TESTING OFF CACHE BOOL "" FORCE)
  set(BENCHMARK_ENABLE_INSTALL OFF CACHE BOOL "" FORCE)
  FetchContent_Declare(benchmark GIT_SHALLOW ON
    GIT_REPOSITORY https://github.com/google/benchmark.git GIT_TAG v1.8.3)
  FetchContent_MakeAvailable(benchmark)
endfunction()
