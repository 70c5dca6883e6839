// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! The command line of nccl_multi_gpu.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

inline constexpr char const* usage =
    "nccl_multi_gpu [--threads]\n"
    "    all GPUs of this machine, with a thread of one process for each\n"
    "nccl_multi_gpu --rank R --size N --id-file FILE\n"
    "    one of N processes with a GPU for each; rank 0 writes FILE, the others read it\n"
    "\n"
    "--graph      capture the step into CUDA graphs\n"
    "--offload    keep the residual of the other ranks' shards in host memory\n"
    "--n N        parameters\n"
    "--steps S    steps";

inline bool wants_help(std::span<char* const> arguments) {
  return std::ranges::any_of(arguments, [](std::string_view a) { return a == "--help"; });
}

struct settings {
  std::int64_t n = std::int64_t{1} << 20;
  std::int64_t steps = 500;
  bool graph = false;
  bool offload = false;
  std::int64_t rank = -1;  // -1: all ranks are threads of this process
  std::int64_t size = 0;
  std::string id_file;
};

struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool ok, std::string const& message) {
  if (!ok) throw usage_error(message);
}

//! Throws usage_error.
inline settings parse(std::span<char* const> arguments) {
  settings o;
  bool threads = false;
  constexpr std::int64_t largest = 1'000'000'000;
  std::map<std::string_view, bool*> const flags{
      {"--threads", &threads}, {"--graph", &o.graph}, {"--offload", &o.offload}};
  std::map<std::string_view, std::int64_t*> const numbers{
      {"--n", &o.n}, {"--steps", &o.steps}, {"--rank", &o.rank}, {"--size", &o.size}};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string const name = arguments[i];
    if (auto const flag = flags.find(name); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    auto const number = numbers.find(name);
    expect(number != numbers.end() || name == "--id-file",
           "unknown option " + name + "; see --help");
    expect(++i < arguments.size(), name + " needs a value");
    std::string_view const value = arguments[i];
    if (number == numbers.end()) {
      o.id_file = value;
      continue;
    }
    auto& to = *number->second;
    auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), to);
    expect(error == std::errc() && end == value.data() + value.size() && to >= 0 && to <= largest,
           name + " is " + std::string(value) + ", expected a number from 0 to " +
               std::to_string(largest));
  }
  expect(o.n >= 1, "--n is 0, at least 1 is needed");
  expect(o.steps >= 5, "--steps is " + std::to_string(o.steps) + ", at least 5 are needed");
  bool const processes = o.rank >= 0;
  expect(processes == o.size > 0 && processes != o.id_file.empty() && !(processes && threads),
         "--rank, --size and --id-file belong together, and exclude --threads");
  expect(o.rank < o.size || !processes, "--rank is " + std::to_string(o.rank) +
                                            ", expected less than --size " +
                                            std::to_string(o.size));
  return o;
}
