# SPDX-License-Identifier: Apache-2.0

# One doctest executable and one ctest entry.
# Usage: scape_add_test(<name> [SOURCES <file>...] [LIBRARIES <target>...] [LABELS <label>...]
#                       [TIMEOUT <seconds>] [ARGUMENTS <argument>...])
# SOURCES defaults to <name>.cpp, LABELS to unit, TIMEOUT to 120.
function(scape_add_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;ARGUMENTS" ${ARGN})
  if(NOT arg_SOURCES)
    set(arg_SOURCES ${name}.cpp)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(SCAPE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE
    scape_doctest_main scape_development doctest::doctest ${arg_LIBRARIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGUMENTS})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
