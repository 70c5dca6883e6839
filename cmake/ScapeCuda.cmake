# SPDX-License-Identifier: Apache-2.0
# scape::cuda and scape::nccl: the headers that need the CUDA Toolkit, and those that need NCCL too.
# Part of this project's build and of its package; a backend that is not installed has no target.
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
find_package(CUDAToolkit 13 QUIET)
find_package(NCCL 2.18 QUIET)
list(POP_BACK CMAKE_MODULE_PATH)

if(CUDAToolkit_FOUND AND NOT TARGET scape::cuda)
  add_library(scape::cuda INTERFACE IMPORTED GLOBAL)
  # Programs with CUDA code of their own link the runtime that CMAKE_CUDA_RUNTIME_LIBRARY names.
  target_link_libraries(scape::cuda INTERFACE
    scape::scape CUDA::toolkit $<$<LINK_LANGUAGE:CXX>:CUDA::cudart>)
  # Before 3.26, CMake does not know that nvcc has C++20, and leaves the flag out.
  target_compile_options(scape::cuda INTERFACE
    $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
endif()
if(TARGET scape::cuda AND NCCL_FOUND AND NOT TARGET scape::nccl)
  add_library(scape::nccl INTERFACE IMPORTED GLOBAL)
  target_link_libraries(scape::nccl INTERFACE scape::cuda NCCL::NCCL)
endif()
