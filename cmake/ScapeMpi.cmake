# SPDX-License-Identifier: Apache-2.0
# scape::mpi: the headers that need MPI, by its C interface. Part of this project's build with
# SCAPE_MPI, and of its package's component mpi. MPI_CXX_COMPILER names the wrapper compiler of
# another MPI than the first one found.
if(NOT TARGET scape::mpi)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI 3.1 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(scape::mpi INTERFACE IMPORTED GLOBAL)
    target_link_libraries(scape::mpi INTERFACE scape::scape MPI::MPI_CXX)
  endif()
endif()
