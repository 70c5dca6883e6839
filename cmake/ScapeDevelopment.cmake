# SPDX-License-Identifier: Apache-2.0
# scape_development: scape::scape and the flags of our own tests, benchmarks and examples.
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(scape_development INTERFACE)
target_link_libraries(scape_development INTERFACE scape::scape)

set(SCAPE_WARNINGS -Wall -Wextra -Wconversion -Wshadow)
set(host_flags ${SCAPE_WARNINGS} $<$<BOOL:${SCAPE_WERROR}>:-Werror>
    $<$<BOOL:${SCAPE_NATIVE}>:-march=native>)
list(JOIN host_flags "," cuda_host_flags)
target_compile_options(scape_development INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${host_flags}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${cuda_host_flags}>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${SCAPE_WERROR}>>:-Werror=all-warnings>")
if(SCAPE_SANITIZE)
  list(JOIN SCAPE_SANITIZE "," sanitizers)
  set(sanitizer_flags -fsanitize=${sanitizers} -fno-sanitize-recover=all)
  target_compile_options(scape_development INTERFACE ${sanitizer_flags} -fno-omit-frame-pointer)
  target_link_options(scape_development INTERFACE ${sanitizer_flags})
endif()
