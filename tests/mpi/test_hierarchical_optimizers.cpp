// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include <scape/comm/threads.hpp>
#include <scape/layout.hpp>
#include <scape/optim/sparse_optimizer.hpp>

#include "cases/dense_optimizer.hpp"
#include "cases/sparse_optimizer.hpp"
#include "support/hierarchical_mpi_backend.hpp"
#include "support/optimizer_rig.hpp"
#include "support/rank_data.hpp"

namespace scape::testing {
namespace {

using one = hierarchical_mpi_backend<nodes_of_threads<1>>;
using two = hierarchical_mpi_backend<nodes_of_threads<2>>;
using three = hierarchical_mpi_backend<nodes_of_threads<3>>;
using split = hierarchical_mpi_backend<nodes_of_processes<2>>;

template <class Comm>
std::vector<optimizer_state> trained(Comm& comm, layout const& l) {
  sparse_rig<adams, float, Comm> r(comm, l, exact_options(0.25));
  std::vector<optimizer_state> states;
  for (int t = 0; t < 6; ++t) {
    r.step(integer_gradient(1, comm.rank(), t, l.size()));
    states.push_back(r.state());
  }
  return states;
}

TEST_CASE_TEMPLATE("a training has the flat communicator's bits", Backend, one, two, three, split) {
  int const size = Backend::size();
  layout const l(130 * size, size);
  std::vector<std::vector<optimizer_state>> flat(at(size));
  run_threads(size, [&](thread_communicator& comm) { flat[at(comm.rank())] = trained(comm, l); });
  Backend::ranks(size, [&](auto& comm) { CHECK(trained(comm, l) == flat[at(comm.rank())]); });
}

TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_1, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_2, two, split);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_3, two, split);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_5, two, split);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_13, three);
TEST_CASE_TEMPLATE_INVOKE(sparse_optimizer_16, two, split);

TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_1, two, split);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_3, two, three, split);
TEST_CASE_TEMPLATE_INVOKE(dense_optimizer_4, three);

}  // namespace
}  // namespace scape::testing
