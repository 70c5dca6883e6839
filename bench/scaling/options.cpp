// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>

#include "command_line.hpp"

namespace scaling {
namespace {

using train_gpt::usage_error;

// The machine in the units of data sheets.
struct machine {
  double link_gbits = 400, link_us = 14;
  double inside_gbits = 3600, inside_us = 3.4;
  double memory_gb = 3400;
  double offload_gb = 0;
  std::string algorithm = "ring";
};

std::map<std::string, scape::exchange_algorithm> const algorithms{
    {"ring", scape::exchange_algorithm::ring},
    {"direct", scape::exchange_algorithm::direct},
    {"tree", scape::exchange_algorithm::tree}};

void require(bool ok, char const* flag, double value, char const* expected) {
  if (!ok) throw usage_error(fmt::format("{} is {:g}, expected {}", flag, value, expected));
}

// No less, so that no time becomes infinite.
constexpr double least_rate = 1e-9;

void require_rate(char const* flag, double value) {
  require(value >= least_rate && std::isfinite(value), flag, value, "a number from 1e-9");
}

void check(options const& o, machine const& m) {
  require(o.elements >= 1 && o.elements <= 1'000'000'000'000'000, "--parameters",
          static_cast<double>(o.elements), "1 to 1e15");
  require(o.tokens >= 1, "--tokens", static_cast<double>(o.tokens), "1 or more");
  require_rate("--flops", o.flops);
  require_rate("--link", m.link_gbits);
  require_rate("--inside-link", m.inside_gbits);
  require_rate("--memory", m.memory_gb);
  require(m.link_us >= 0 && m.link_us <= 1e9, "--latency", m.link_us, "0 to 1e9");
  require(m.inside_us >= 0 && m.inside_us <= 1e9, "--inside-latency", m.inside_us, "0 to 1e9");
  require(m.offload_gb == 0 || (m.offload_gb >= least_rate && std::isfinite(m.offload_gb)),
          "--offload", m.offload_gb,
          "a number from 1e-9, or 0 for a residual in the device's memory");
  require(o.cost.lag >= 0, "--lag", o.cost.lag, "0 or more");
  require(o.from >= 1, "--from", o.from, "at least 1");
  require(o.to >= o.from && o.to <= 1 << 24, "--to", o.to, "--from to 2^24");
  require(o.cost.network.ranks_per_node >= 1, "--ranks-per-node", o.cost.network.ranks_per_node,
          "at least 1");
  for (double const d : o.densities) require(d > 0 && d <= 1, "--density", d, "a value in (0, 1]");
}

double per_byte(double gbits) { return 8 / (1e9 * gbits); }

}  // namespace

options parse_options(int argc, char const* const* argv) {
  options o;
  machine m;
  o.cost.gradient_bytes = 2;
  o.command = train_gpt::command_of(argc, argv);

  CLI::App app(
      "Predicts the strong scaling of dense and sparse optimizer sync with scape::cost_model, and "
      "leaves scaling.csv and scaling.html in the output folder. It is a model: nothing is timed.\n"
      "--paper solves for the parameters that give two of the SCAPE paper's figures for Llama-1.8B "
      "on 64 GPUs, and predicts the third.");
  app.option_defaults()->always_capture_default();
  app.get_formatter()->column_width(30);

  // Every number is listed in the output with where it comes from.
  std::vector<std::pair<CLI::Option*, parameter>> listed;
  auto const add = [&](std::string const& flag, auto& value, std::string const& what,
                       std::string const& basis) {
    auto* option = app.add_option(flag, value, what);
    listed.push_back({option, {what, "", basis}});
    return option;
  };
  auto* paper = app.add_flag("--paper", o.paper, "the SCAPE paper's Llama-1.8B on 64 GPUs");
  add("--parameters", o.elements, "parameters", "the paper's Llama-1.8B")->excludes(paper);
  add("--tokens", o.tokens, "tokens of the global batch", "assumed")->excludes(paper);
  add("--flops", o.flops, "FLOP/s of a rank, achieved",
      "assumed: 40 % of an H100's 989 TFLOP/s in bf16");
  add("--link", m.link_gbits, "Gbit/s of a rank between nodes, each way",
      "data sheet of NDR InfiniBand");
  add("--latency", m.link_us, "us per message between nodes",
      "NCCL's own model of a ring, protocol Simple");
  add("--algorithm", m.algorithm, "algorithm of the exchanges: ring, direct or tree",
      "assumed; NCCL's default for large messages")
      ->check(CLI::IsMember(algorithms));
  add("--ranks-per-node", o.cost.network.ranks_per_node, "ranks per node",
      "GH200 nodes of TACC Vista");
  auto* inside_link = add("--inside-link", m.inside_gbits,
                          "Gbit/s of a rank within a node, each way", "data sheet of NVLink 4");
  auto* inside_latency = add("--inside-latency", m.inside_us, "us per message within a node",
                             "NCCL's own model of a ring, protocol Simple");
  add("--memory", m.memory_gb, "GB/s of device memory", "published STREAM of a GH200");
  auto* offload = add("--offload", m.offload_gb,
                      "GB/s to and from the host, together, of an offloaded residual; 0: none",
                      "none is offloaded")
                      ->excludes(paper);
  add("--gradient-bytes", o.cost.gradient_bytes, "bytes of a gradient element",
      "assumed: bf16 gradients");
  add("--value-bytes", o.cost.value_bytes, "bytes of a value of the reduce-scatter",
      "assumed: fp32");
  add("--parameter-bytes", o.cost.parameter_bytes, "bytes of a parameter of the all-gather",
      "assumed: fp32");
  add("--lag", o.cost.lag, "steps between choosing a mask and using it", "the paper");
  app.add_option("--density", o.densities, "densities of the sparse runs")
      ->expected(1, 4)
      ->excludes(paper);
  app.add_option("--from", o.from, "ranks of the smallest run, the reference")->excludes(paper);
  app.add_option("--to", o.to, "ranks of the largest run")->excludes(paper);
  app.add_option("--out", o.out, "output folder");

  train_gpt::parse(app, argc, argv);
  check(o, m);
  o.cost.compute = batch_compute(o, static_cast<double>(o.tokens));
  o.cost.memory_bandwidth = 1e9 * m.memory_gb;
  if (m.offload_gb > 0) o.cost.offload_bandwidth = 1e9 * m.offload_gb;
  o.cost.network.link = {1e-6 * m.link_us, per_byte(m.link_gbits)};
  o.cost.network.inside = {1e-6 * m.inside_us, per_byte(m.inside_gbits)};
  o.cost.network.algorithm = algorithms.at(m.algorithm);
  for (auto& [option, p] : listed) {
    bool const nodes = option == inside_link || option == inside_latency;
    if (nodes && o.cost.network.ranks_per_node == 1) continue;
    if (o.paper && (option == offload || option->get_name() == "--tokens")) continue;
    p.value = option->as<std::string>();
    if (option->count() > 0) p.basis = "command line";
    o.parameters.push_back(p);
  }
  return o;
}

}  // namespace scaling
