// SPDX-License-Identifier: Apache-2.0
// Takes the place of cuda_optimizer.cu in a build without CUDA.
#include <stdexcept>

#include "cuda_optimizer.hpp"

namespace train_gpt {

std::optional<int> cuda_devices() { return std::nullopt; }

std::unique_ptr<rank_optimizer> make_cuda_optimizer(scape::thread_communicator&,
                                                    scape::layout const&, options const&,
                                                    run_spec const&) {
  throw std::logic_error("this program was built without CUDA");
}

}  // namespace train_gpt
