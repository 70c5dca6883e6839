// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Everything that needs only a C++20 compiler and threads.

#include <scape/agreement.hpp>
#include <scape/checkpoint.hpp>
#include <scape/comm/hierarchical.hpp>
#include <scape/comm/self.hpp>
#include <scape/comm/threads.hpp>
#include <scape/concepts.hpp>
#include <scape/config.hpp>
#include <scape/context/host.hpp>
#include <scape/cost_model.hpp>
#include <scape/error.hpp>
#include <scape/float16.hpp>
#include <scape/lagged_mask_allgather.hpp>
#include <scape/layout.hpp>
#include <scape/network_cost.hpp>
#include <scape/optim/adams.hpp>
#include <scape/optim/adamw.hpp>
#include <scape/optim/dense_optimizer.hpp>
#include <scape/optim/options.hpp>
#include <scape/optim/sparse_optimizer.hpp>
#include <scape/optim/statistics.hpp>
#include <scape/packed_bitmask.hpp>
#include <scape/partitioned_topk_mask.hpp>
#include <scape/pipeline/refresh_intervals.hpp>
#include <scape/pipeline/stage_schedule.hpp>
#include <scape/single_buffer_moment_rebuild.hpp>
#include <scape/sparse_all_gather.hpp>
#include <scape/sparse_all_reduce.hpp>
#include <scape/sparse_reduce_scatter.hpp>
#include <scape/version.hpp>
#include <scape/workspace.hpp>
