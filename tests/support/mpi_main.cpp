// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

#include <cstdio>

// The cases run in all processes. Not an mpi_environment: some cases end communicators.
int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (level < MPI_THREAD_MULTIPLE) {
    std::fprintf(stderr, "this MPI has no MPI_THREAD_MULTIPLE\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  doctest::Context context(argc, argv);
  context.setOption("minimal", rank != 0);
  int failed = context.run();
  if (failed != 0) std::fprintf(stderr, "failed on rank %d\n", rank);
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
