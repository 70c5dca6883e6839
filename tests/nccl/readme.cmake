# SPDX-License-Identifier: Apache-2.0
# Makes a function of the README's block of CUDA code, to see that it compiles.
file(READ ${PROJECT_SOURCE_DIR}/README.md readme)
string(REGEX MATCH "<!-- cuda -->\n```cpp\n(.*)```\n<!-- /cuda -->" block "${readme}")
set(code "${CMAKE_MATCH_1}")
string(REGEX REPLACE "#include [^\n]*\n" "" body "${code}")
string(REGEX REPLACE "\n\n.*" "\n" includes "${code}")
if(NOT includes MATCHES "#include" OR NOT body MATCHES "opt.step")
  message(FATAL_ERROR "the README's block of CUDA code was not found")
endif()
file(CONFIGURE OUTPUT readme.cu CONTENT [[
@includes@
#include <span>

void readme(ncclUniqueId const& id, int rank, int size, scape::layout const& layout,
            scape::sparse_optimizer_options const& options, cudaStream_t stream,
            std::span<float> weights, std::span<float> gradient) {
@body@}
]] @ONLY)
