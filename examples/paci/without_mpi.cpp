// SPDX-License-Identifier: Apache-2.0
#include "paci/grid.hpp"
#include "train_gpt/usage_error.hpp"

namespace paci {

std::unique_ptr<grid> make_mpi_grid(int&, char**&) {
  throw train_gpt::usage_error(
      "--comm mpi: this program was built without MPI; build it with -DSCAPE_MPI=ON");
}

}  // namespace paci
