# SPDX-License-Identifier: Apache-2.0
# Fails if scape.hpp reaches a header of MPI, NCCL or CUDA, even where they are installed.
execute_process(
  COMMAND ${CXX} -std=c++20 -M -x c++ -I${INCLUDE} ${INCLUDE}/scape/scape.hpp
  OUTPUT_VARIABLE files COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "/(mpi|nccl|cuda)[^ /\n]*\\.(h|hpp|cuh)" backend "${files}")
if(backend)
  message(FATAL_ERROR "scape.hpp includes ${backend}")
endif()
