// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "chart.hpp"
#include "support/table.hpp"

namespace network {
namespace {

// The dense run on the same network with the same compute, the last one before.
measurement const* dense_of(std::vector<measurement> const& all, std::size_t i) {
  for (auto j = i + 1; j-- > 0;) {
    auto const& m = all[j];
    if (m.run == "dense" && m.link == all[i].link && m.hosts == all[i].hosts &&
        m.elements == all[i].elements && m.compute == all[i].compute) {
      return &m;
    }
  }
  return nullptr;
}

std::string ratio_to_dense(std::vector<measurement> const& all, std::size_t i) {
  auto const* dense = dense_of(all, i);
  return dense == nullptr ? "" : fmt::format("{:.2f}x", dense->step / all[i].step);
}

double off(measurement const& m) { return 100 * (m.predicted / m.step - 1); }

bench::table step_table(std::vector<measurement> const& all) {
  bench::table t{"Steps",
                 {"link", "hosts", "run", "compute, ms", "step, ms", "dense over it", "model, ms",
                  "model off by", "MB on the wire", "counted / predicted"},
                 {}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const& m = all[i];
    t.rows.push_back({m.link, std::to_string(m.hosts), m.run, fmt::format("{:.1f}", m.compute),
                      fmt::format("{:.1f}", m.step), ratio_to_dense(all, i),
                      fmt::format("{:.1f}", m.predicted), fmt::format("{:+.1f} %", off(m)),
                      fmt::format("{:.3f}", 1e-6 * m.counted),
                      fmt::format("{:.4f}", m.wire > 0 ? m.counted / m.wire : 0)});
  }
  return t;
}

bench::table phase_table(std::vector<measurement> const& all) {
  bench::table t{"Phases, ms, mean of steps and ranks", {"link", "hosts", "run"}, {}};
  for (auto const* name : phase_names) t.columns.emplace_back(name);
  for (auto const& m : all) {
    t.rows.push_back({m.link, std::to_string(m.hosts), m.run});
    for (auto const x : m.phases) t.rows.back().push_back(fmt::format("{:.2f}", x));
  }
  return t;
}

bench::table link_table(std::vector<measurement> const& all) {
  bench::table t{"Calibration", {"link", "hosts", "latency, us", "bandwidth, MB/s"}, {}};
  for (auto const& m : all) {
    if (m.run != "dense") continue;
    t.rows.push_back({m.link, std::to_string(m.hosts), fmt::format("{:.0f}", 1e6 * m.latency),
                      fmt::format("{:.1f}", 1e-6 * m.bandwidth)});
  }
  return t;
}

std::string median_error(std::vector<measurement> const& all) {
  std::vector<double> errors;
  for (auto const& m : all) errors.push_back(std::abs(off(m)));
  std::ranges::sort(errors);
  return fmt::format("The cost model is off by {:.1f} % in the median and {:.1f} % at worst.",
                     errors[errors.size() / 2], errors.back());
}

// Step times by the speed of the link, one figure per number of hosts.
std::string charts(std::vector<measurement> const& all) {
  std::map<int, train_gpt::chart> charts;
  for (auto const& m : all) {
    if (!std::isfinite(m.bandwidth)) continue;  // a lone host
    auto& c =
        charts
            .try_emplace(m.hosts, train_gpt::chart{fmt::format("Step on {} hosts", m.hosts),
                                                   "measured bandwidth of a link, MB/s, log scale",
                                                   "log10 of milliseconds",
                                                   "Dots are measured, lines are the model's.",
                                                   true,
                                                   {},
                                                   std::nullopt})
            .first->second;
    auto curve = std::ranges::find(c.curves, m.run, &train_gpt::series::label);
    if (curve == c.curves.end()) {
      c.curves.push_back({m.run, c.curves.size(), {}, {}});
      curve = std::prev(c.curves.end());
    }
    curve->dots.push_back({1e-6 * m.bandwidth, std::log10(m.step)});
    curve->line.push_back({1e-6 * m.bandwidth, std::log10(m.predicted)});
  }
  std::string out;
  for (auto& [hosts, c] : charts) {
    for (auto& curve : c.curves) {
      std::ranges::sort(curve.line, {}, &train_gpt::point::x);
      std::ranges::sort(curve.dots, {}, &train_gpt::point::x);
    }
    out += figure_html(c);
  }
  return out;
}

constexpr std::array<char const*, 6> colours = {"#94a3b8", "#a16207", "#0b62c4",
                                                "#0f7b4f", "#c2410c", "#9333a8"};

}  // namespace

std::string svg(std::vector<measurement> const& all) {
  constexpr double row = 22, left = 200, width = 960, bar = 600, top = 40;
  std::string out;
  auto const to = std::back_inserter(out);
  auto const rectangle = [&](double x, double y, double w, char const* colour) {
    fmt::format_to(to, R"(<rect x="{:.1f}" y="{:.1f}" width="{:.2f}" height="15" fill="{}"/>)", x,
                   y, w, colour);
  };
  auto const label = [&](double x, double y, std::string const& text) {
    fmt::format_to(to, "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, y + 12,
                   train_gpt::escape_html(text));
  };
  auto const height = top + row * static_cast<double>(all.size()) + 10;
  fmt::format_to(to,
                 R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" )"
                 R"(font-family="Helvetica, Arial, sans-serif" font-size="12">)"
                 "<title>Phases of a step, in parts of the dense one</title>\n"
                 R"(<rect width="100%" height="100%" fill="#ffffff"/>)",
                 width, height);
  for (std::size_t i = 0; i < phase_names.size(); ++i) {
    auto const x = left + 115 * static_cast<double>(i);
    rectangle(x, 10, 12, colours[i]);
    label(x + 17, 10, phase_names[i]);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const& m = all[i];
    auto const y = top + row * static_cast<double>(i);
    auto const* dense = dense_of(all, i);
    auto const scale = bar / (dense == nullptr ? m.step : std::max(dense->step, m.step));
    label(10, y, fmt::format("{}, {} hosts: {}", m.link, m.hosts, m.run));
    auto x = left;
    for (std::size_t k = 0; k < m.phases.size(); ++k) {
      rectangle(x, y, m.phases[k] * scale, colours[k]);
      x += m.phases[k] * scale;
    }
    label(std::max(x, left + m.step * scale) + 8, y,
          fmt::format("{:.1f} ms  {}", m.step, m.run == "dense" ? "" : ratio_to_dense(all, i)));
  }
  return out + "</svg>\n";
}

std::string line(measurement const& m) {
  return fmt::format("{:10} {:2} hosts  {:32} step {:9.1f} ms  model {:9.1f} ms  {:10.3f} MB\n",
                     m.link, m.hosts, m.run, m.step, m.predicted, 1e-6 * m.counted);
}

std::string text(std::vector<measurement> const& all) {
  return text(step_table(all)) + '\n' + text(phase_table(all)) + '\n' + text(link_table(all)) +
         '\n' + median_error(all) + '\n';
}

std::string html(std::vector<measurement> const& all, std::string const& command) {
  auto out = fmt::format(
      "<p>Wall time of whole steps, the slowest rank's, median. Bytes are those that the hosts' "
      "network interfaces have received, headers and launcher included. {}</p>\n",
      median_error(all));
  out += "<figure><figcaption>Phases of a step, in parts of the dense one</figcaption>\n" +
         svg(all) + "</figure>\n" + charts(all);
  for (auto const& t : {step_table(all), phase_table(all), link_table(all)}) out += html(t);
  return html(train_gpt::page{.program = "network",
                              .heading = "Measured steps over MPI",
                              .body = std::move(out),
                              .command = command});
}

}  // namespace network
