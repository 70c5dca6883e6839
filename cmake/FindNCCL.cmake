# SPDX-License-Identifier: Apache-2.0
#[[
Finds NCCL: target NCCL::NCCL, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY.
Searches NCCL_ROOT (variable or environment), the CUDA toolkit and the usual places. The target
brings the toolkit's headers along, but no runtime.
#]]
find_package(CUDAToolkit QUIET)

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h NCCL_VERSION REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  list(TRANSFORM NCCL_VERSION REPLACE "^.* " "")
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR CUDAToolkit_FOUND
  VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES CUDA::toolkit)
endif()
