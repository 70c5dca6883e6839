// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Ranks as processes: this program again, with a test case that only they run.

#include <doctest/doctest.h>

#include <nccl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace scape::testing {

//! What a rank process is told.
struct process_rank {
  std::string task;
  int rank = 0;
  int size = 0;
  ncclUniqueId id = {};
};

//! Runs the test case "process rank" in one process per rank. The unique id goes through a file.
//! Returns the processes' wait statuses.
inline std::vector<int> run_processes(std::string const& task, int size, ncclUniqueId const& id) {
  char path[] = "/tmp/scape_nccl_XXXXXX";
  int const file = mkstemp(path);
  CHECK(write(file, &id, sizeof id) == static_cast<ssize_t>(sizeof id));
  close(file);

  std::vector<pid_t> children(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    auto order = "SCAPE_TEST_RANK=" + task + " " + std::to_string(r) + " " + std::to_string(size) +
                 " " + path;
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(order.data());
    environment.push_back(nullptr);
    std::string arguments[] = {"rank", "--test-case=process rank", "--no-skip", "--minimal"};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), nullptr};
    CHECK(posix_spawn(&children[static_cast<std::size_t>(r)], "/proc/self/exe", nullptr, nullptr,
                      argv, environment.data()) == 0);
  }
  std::vector<int> statuses;
  for (auto const child : children) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    statuses.push_back(status);
  }
  std::remove(path);
  return statuses;
}

//! In a rank process: which one it is.
inline process_rank this_process() {
  process_rank self;
  char task[32] = {}, path[64] = {};
  char const* order = std::getenv("SCAPE_TEST_RANK");
  if (order == nullptr ||
      std::sscanf(order, "%31s %d %d %63s", task, &self.rank, &self.size, path) != 4) {
    return self;
  }
  self.task = task;
  if (auto* const file = std::fopen(path, "rb")) {
    CHECK(std::fread(&self.id, sizeof self.id, 1, file) == 1);
    std::fclose(file);
  }
  return self;
}

}  // namespace scape::testing
