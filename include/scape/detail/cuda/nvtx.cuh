// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! A named range in profiles, for as long as the object lives.

#include <nvtx3/nvtx3.hpp>

namespace scape::detail::cuda {

struct nvtx_domain {
  static constexpr char const* name = "scape";
};
using nvtx_range = nvtx3::scoped_range_in<nvtx_domain>;

}  // namespace scape::detail::cuda
