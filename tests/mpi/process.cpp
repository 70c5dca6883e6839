// SPDX-License-Identifier: Apache-2.0

// What a process may do once only, by the mode its first argument names.

#include <mpi.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <scape/comm/mpi.hpp>

namespace {

using namespace std::chrono_literals;

void expect_refused(std::function<void()> const& call, std::string_view part) {
  try {
    call();
  } catch (scape::argument_error const& e) {
    if (std::string_view(e.what()).find(part) != std::string_view::npos) return;
    throw std::logic_error(std::string("refused, but: ") + e.what());
  }
  throw std::logic_error("not refused: " + std::string(part));
}

void make_communicator() { scape::mpi_communicator const comm; }

void lifetime(int argc, char** argv) {
  expect_refused(make_communicator, "MPI is not initialised; make a scape::mpi_environment");
  {
    scape::mpi_environment const mpi(argc, argv, MPI_THREAD_MULTIPLE);
    int level = 0;
    MPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE) throw std::logic_error("not MPI_THREAD_MULTIPLE");
    expect_refused([&] { scape::mpi_environment const again(argc, argv); }, "initialised already");
    make_communicator();
  }
  expect_refused(make_communicator, "MPI is finalised already");
}

void funneled(int argc, char** argv) {
  scape::mpi_environment const mpi(argc, argv, MPI_THREAD_FUNNELED);
  int level = 0;
  MPI_Query_thread(&level);
  if (level >= MPI_THREAD_SERIALIZED) {
    std::puts("this MPI provides more than MPI_THREAD_FUNNELED");
    return;
  }
  expect_refused(
      [] {
        scape::mpi_communicator const comm(MPI_COMM_WORLD,
                                           {.progress = scape::mpi_progress::thread});
      },
      "mpi_progress::thread needs MPI_THREAD_MULTIPLE, but MPI was initialised with "
      "MPI_THREAD_FUNNELED");
  scape::host_context const ctx;
  scape::mpi_communicator comm;
  comm.barrier(ctx).wait(ctx);
  auto handle = comm.barrier(ctx);
  std::exception_ptr wrong;
  std::thread([&] {
    try {
      constexpr auto text = "needs MPI_THREAD_SERIALIZED or more, but MPI was initialised with";
      expect_refused([&] { comm.barrier(ctx).wait(ctx); }, text);
      expect_refused([&] { handle.wait(ctx); }, text);
      expect_refused(make_communicator, text);
    } catch (...) {
      wrong = std::current_exception();
    }
  }).join();
  if (wrong) std::rethrow_exception(wrong);
  handle.wait(ctx);
}

//! What the ranks do over and over again.
void step(scape::mpi_communicator& comm, bool by_messages) {
  scape::host_context const ctx;
  std::array<float, 1> x{1}, y{};
  if (by_messages) {
    auto in = comm.recv(ctx, std::span<float>(y), (comm.rank() + 2) % 3);
    comm.send(ctx, std::span<float const>(x), (comm.rank() + 1) % 3).wait(ctx);
    in.wait(ctx);
  } else {
    comm.all_reduce(ctx, x, std::span<float>(x)).wait(ctx);
  }
}

//! All ranks work until rank 1 is lost in one of two ways; the others' errors name it.
int lose_rank_1(int argc, char** argv, std::string_view mode) {
  scape::mpi_environment const mpi(argc, argv);
  try {
    scape::mpi_communicator comm(MPI_COMM_WORLD, {.deadline = 3s});
    for (int i = 0; i < 1000; ++i) {
      if (comm.rank() == 1 && i == 5) {
        if (mode != "throws") std::raise(SIGKILL);
        throw std::runtime_error("out of data");
      }
      step(comm, mode == "killed_messages");
    }
    return 0;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::this_thread::sleep_for(1s);  // so that the others too have the time to say something
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view const mode = argc > 1 ? argv[1] : "";
  if (mode.starts_with("killed") || mode == "throws") return lose_rank_1(argc, argv, mode);
  try {
    mode == "lifetime" ? lifetime(argc, argv) : funneled(argc, argv);
    return 0;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
