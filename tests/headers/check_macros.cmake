# SPDX-License-Identifier: Apache-2.0
# Fails if a header under INCLUDE defines a macro whose name does not begin with SCAPE_.
file(GLOB_RECURSE headers ${INCLUDE}/*)
foreach(header IN LISTS headers)
  file(STRINGS ${header} lines REGEX "^[ \t]*#[ \t]*define[ \t]")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "define[ \t]+SCAPE_")
      message(SEND_ERROR "${header}: ${line}")
    endif()
  endforeach()
endforeach()
