// SPDX-License-Identifier: Apache-2.0
#include "results.hpp"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "files.hpp"

namespace network {
namespace {

// f(name, member) for every number.
template <class M, class F>
void for_each_number(M& m, F const& f) {
  f("density", m.density);
  f("compute_ms", m.compute);
  f("step_ms", m.step);
  f("predicted_ms", m.predicted);
  for (std::size_t i = 0; i < phase_names.size(); ++i) {
    f(std::string(phase_names[i]) + "_ms", m.phases[i]);
  }
  f("wire_bytes", m.wire);
  f("counted_bytes", m.counted);
  f("latency_s", m.latency);
  f("bandwidth_B_s", m.bandwidth);
}

std::string header() {
  std::string line = "link,hosts,elements,run";
  measurement m;
  for_each_number(m, [&](std::string const& name, double) { line += "," + name; });
  return line;
}

}  // namespace

void append(std::filesystem::path const& path, std::vector<measurement> const& lines) {
  auto text = std::filesystem::exists(path) ? train_gpt::read_file(path) : header() + "\n";
  for (auto const& m : lines) {
    text += fmt::format("{},{},{},{}", m.link, m.hosts, m.elements, m.run);
    for_each_number(m, [&](std::string const&, double x) { text += fmt::format(",{:.9g}", x); });
    text += '\n';
  }
  train_gpt::write_atomically(path, text);
}

std::vector<measurement> read(std::filesystem::path const& path) {
  std::istringstream lines(train_gpt::read_file(path));
  std::string line;
  if (!std::getline(lines, line) || line != header()) {
    throw std::runtime_error("'" + path.string() + "' has no measurements of this program");
  }
  std::vector<measurement> result;
  while (std::getline(lines, line)) {
    std::istringstream cells(line);
    auto const cell = [&] {
      std::string text;
      std::getline(cells, text, ',');
      return text;
    };
    measurement m;
    try {
      m.link = cell();
      m.hosts = std::stoi(cell());
      m.elements = std::stoll(cell());
      m.run = cell();
      for_each_number(m, [&](std::string const&, double& x) { x = std::stod(cell()); });
    } catch (std::logic_error const&) {  // stoi and its kin
      throw std::runtime_error(fmt::format("line {} of '{}' is no measurement of this program",
                                           result.size() + 2, path.string()));
    }
    result.push_back(m);
  }
  return result;
}

}  // namespace network
