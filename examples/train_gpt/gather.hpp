// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! One value of every rank.

#include <cstdint>
#include <scape/context/host.hpp>
#include <span>
#include <vector>

namespace train_gpt {

//! Collective: every rank's `mine`, in rank order.
template <class T, class Comm>
std::vector<T> gather(Comm& comm, T const& mine) {
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  std::vector<std::int64_t> const ones(all.size(), 1);
  scape::host_context const context;
  comm.all_gather(context, std::span(&mine, 1), std::span(all), std::span(ones)).wait(context);
  return all;
}

}  // namespace train_gpt
