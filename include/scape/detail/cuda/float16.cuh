// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! CUDA's own 16-bit floats as gradients, weights and wire types.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include <scape/float16.hpp>

namespace scape::detail {

template <>
inline constexpr bool is_binary16<__half> = true;
template <>
inline constexpr bool is_bfloat16<__nv_bfloat16> = true;

}  // namespace scape::detail
