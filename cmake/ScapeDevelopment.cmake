# SPDX-License-Identifier: Apache-2.0
# scape_development: scape::scape and the flags of our own tests, benchmarks and examples.
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(scape_development INTERFACE)
target_link_libraries(scape_development INTERFACE scape::scape)

set(SCAPE_WARNINGS -Wall -Wextra -Wconversion -Wshadow)
set(host_flags ${SCAPE_WARNINGS})
if(SCAPE_WERROR)
  list(APPEND host_flags -Werror)
  target_compile_options(scape_development INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(SCAPE_NATIVE)
  list(APPEND host_flags -march=native)
endif()
foreach(flag IN LISTS host_flags)
  target_compile_options(scape_development INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:${flag}> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flag}>)
endforeach()
if(SCAPE_SANITIZE)
  list(JOIN SCAPE_SANITIZE "," sanitizers)
  # vptr opens a pipe for every look at memory: a false alarm where a test has used up all files.
  set(sanitizer_flags -fsanitize=${sanitizers} -fno-sanitize=vptr -fno-sanitize-recover=all)
  target_compile_options(scape_development INTERFACE ${sanitizer_flags} -fno-omit-frame-pointer)
  target_link_options(scape_development INTERFACE ${sanitizer_flags})
endif()
