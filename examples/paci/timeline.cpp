// SPDX-License-Identifier: Apache-2.0
#include "paci/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "train_gpt/chart.hpp"

namespace paci {
namespace {

constexpr double width = 1180, left = 56, right = 8, row = 24, bar = 20, top = 4, bottom = 22;
constexpr double least_label = 17, step_width = 2;  // pixels

char const* name_of(scape::stage_action action) {
  return action == scape::stage_action::forward ? "forward" : "backward";
}

struct scale {
  double begin, end;
  [[nodiscard]] double pixel(double seconds) const {
    return left + (width - left - right) * (seconds - begin) / (end - begin);
  }
};

template <class Out>
void draw_pass(Out to, event const& e, scale const& x, double y) {
  double const from = x.pixel(std::max(x.begin, 1e-9 * static_cast<double>(e.begin)));
  double const until = x.pixel(std::min(x.end, 1e-9 * static_cast<double>(e.end)));
  auto const* const name = name_of(e.action);
  fmt::format_to(
      to,
      R"(<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}"><title>{} of )"
      R"(micro-batch {}, weights of version {}{}</title></rect>)",
      name, from, y, std::max(0.3, until - from - 0.5), bar, name, e.micro_batch, e.version,
      e.action == scape::stage_action::backward ? fmt::format(", drift {}", e.drift)
                                                : std::string());
  if (until - from < least_label) return;
  fmt::format_to(to, R"(<text class="pass" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                 (from + until) / 2, y + bar / 2 + 3, e.micro_batch);
}

template <class Out>
void draw_step(Out to, event const& e, scale const& x, double y) {
  fmt::format_to(
      to,
      R"(<rect class="step" x="{:.1f}" y="{:.1f}" width="{}" height="{}"><title>step to )"
      R"(version {}{}</title></rect>)",
      x.pixel(1e-9 * static_cast<double>(e.begin)) - step_width / 2, y - 1, step_width, bar + 2,
      e.version, e.applied ? "" : ", skipped");
}

}  // namespace

std::string timeline_html(std::string const& title, std::span<stage_result const> stages,
                          double begin, double end) {
  scale const x{begin, end};
  double const height = top + row * static_cast<double>(stages.size()) + bottom;
  std::string out;
  auto const to = std::back_inserter(out);
  fmt::format_to(to, "<figure><figcaption>{}</figcaption>\n<svg viewBox=\"0 0 {} {}\">",
                 train_gpt::escape_html(title), width, height);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    double const y = top + row * static_cast<double>(i);
    fmt::format_to(to, R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">stage {}</text>)",
                   left - 6, y + bar / 2 + 4, i + 1);
    fmt::format_to(to, R"(<rect class="bubble" x="{}" y="{:.1f}" width="{}" height="{}"/>)", left,
                   y, width - left - right, bar);
    for (auto const& e : stages[i].log) {
      if (1e-9 * static_cast<double>(e.end) < begin || 1e-9 * static_cast<double>(e.begin) > end)
        continue;
      if (e.action == scape::stage_action::step) {
        draw_step(to, e, x, y);
      } else {
        draw_pass(to, e, x, y);
      }
    }
    out += '\n';
  }
  for (int i = 0; i <= 4; ++i) {
    double const seconds = begin + i * (end - begin) / 4;
    fmt::format_to(to,
                   R"(<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{:.3g} s</text>)",
                   x.pixel(seconds), height - 6,
                   i == 0   ? "start"
                   : i == 4 ? "end"
                            : "middle",
                   seconds);
  }
  fmt::format_to(to, R"(<line class="cursor" y1="{}" y2="{}" visibility="hidden"/></svg>)", top,
                 height - bottom);
  fmt::format_to(to, "\n<ul class=\"legend\">");
  for (auto const& [colour, label] :
       {std::pair(1, "forward"), std::pair(3, "backward"), std::pair(2, "optimizer step")}) {
    fmt::format_to(
        to, R"html(<li style="--c:var(--series-{})" data-points='[]'>{}<output></output></li>)html",
        colour, label);
  }
  return out + "</ul></figure>\n";
}

}  // namespace paci
