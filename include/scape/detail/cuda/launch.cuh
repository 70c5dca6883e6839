// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Kernel launches that throw, and the sizes they share.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include <scape/context/cuda.hpp>

namespace scape::detail::cuda {

inline constexpr int warp_size = 32;

//! Enqueues kernel(arguments...) on ctx.stream; nothing if the grid is empty.
template <class... Parameters, class... Arguments>
void launch(caller who, cuda_context const& ctx, void (*kernel)(Parameters...), dim3 grid,
            int block, Arguments const&... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(block));
  config.stream = ctx.stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), who,
             "a kernel launch");
}

//! Blocks of a grid-stride loop over `tiles` tiles: enough to fill the device several times over.
inline unsigned blocks_for(caller who, std::int64_t tiles) {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), who, "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), who,
             "cudaDeviceGetAttribute");
  return static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 0, std::int64_t{processors} * 32));
}

}  // namespace scape::detail::cuda
