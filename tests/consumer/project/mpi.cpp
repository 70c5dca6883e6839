// SPDX-License-Identifier: Apache-2.0
#include <scape/comm/mpi.hpp>

static_assert(scape::communicator<scape::mpi_communicator>);

int main() { return scape::mpi_options{}.deadline.count() > 0 ? 0 : 1; }
