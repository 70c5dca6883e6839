# SPDX-License-Identifier: Apache-2.0
# SOURCE compiles; or, with CASE, it does not and the diagnostics contain EXPECTED.
set(define)
if(CASE)
  set(define -D${CASE})
endif()
execute_process(
  COMMAND ${CXX} -std=c++20 -fsyntax-only -I${INCLUDE} ${define} ${SOURCE}
  RESULT_VARIABLE result OUTPUT_VARIABLE diagnostics ERROR_VARIABLE diagnostics)
if(NOT CASE)
  if(result)
    message(FATAL_ERROR "does not compile:\n${diagnostics}")
  endif()
elseif(NOT result)
  message(FATAL_ERROR "${CASE} compiles")
else()
  string(FIND "${diagnostics}" "${EXPECTED}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "\"${EXPECTED}\" is not in the diagnostics of ${CASE}:\n${diagnostics}")
  endif()
endif()
