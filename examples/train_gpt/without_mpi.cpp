// SPDX-License-Identifier: Apache-2.0
// Takes the place of mpi_ranks.cpp in a build without MPI.
#include "rank_group.hpp"
#include "usage_error.hpp"

namespace train_gpt {

std::unique_ptr<rank_group> make_mpi_ranks(int&, char**&) {
  throw usage_error(
      "--comm mpi: this program was built without MPI; install one and build it with "
      "-DSCAPE_MPI=ON, or train with --comm threads");
}

}  // namespace train_gpt
