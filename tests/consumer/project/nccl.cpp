// SPDX-License-Identifier: Apache-2.0
#include <scape/comm/nccl.hpp>

static_assert(scape::cuda_communicator<scape::nccl_communicator>);

int main() { return scape::nccl_options{}.deadline.count() > 0 ? 0 : 1; }
