// SPDX-License-Identifier: Apache-2.0
#include "chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "report_style.hpp"

namespace train_gpt {
namespace {

constexpr double width = 760, height = 360;
constexpr double left = 64, right = 16, top = 14, bottom = 48;

// One axis: values between `low` and `high` mapped to pixels between `from` and `to`.
struct axis {
  double low, high, from, to;
  bool log;

  [[nodiscard]] double pixel(double value) const {
    double const at =
        log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return from + at * (to - from);
  }

  [[nodiscard]] std::vector<double> ticks() const { return log ? log_ticks() : linear_ticks(); }

 private:
  [[nodiscard]] std::vector<double> linear_ticks() const {
    double const rough = (high - low) / 9;
    double const magnitude = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * magnitude;
    for (double const factor : {5.0, 2.0, 1.0}) {
      if (factor * magnitude >= rough) step = factor * magnitude;
    }
    std::vector<double> at;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) {
      at.push_back(k * step);
    }
    return at;
  }

  [[nodiscard]] std::vector<double> log_ticks() const {
    std::vector<double> at;
    double const decades = std::log10(high / low);
    for (double e = std::floor(std::log10(low)); e <= std::ceil(std::log10(high)); ++e) {
      for (double const factor : {1.0, 2.0, 5.0}) {
        double const value = factor * std::pow(10, e);
        bool const wanted = factor == 1.0 || decades < 2.5;
        if (wanted && value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) at.push_back(value);
      }
    }
    return at;
  }
};

// 1500 -> "1.5 k", 2e6 -> "2 M"
std::string short_number(double value) {
  static constexpr std::pair<double, char const*> units[] = {
      {1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}};
  for (auto const& [size, unit] : units) {
    if (std::abs(value) >= size) return fmt::format("{:.4g}{}", value / size, unit);
  }
  return fmt::format("{:.4g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

struct extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::pair<axis, axis> make_axes(chart const& c) {
  extent x, y;
  for (auto const& s : c.curves) {
    for (auto const* points : {&s.line, &s.dots}) {
      for (auto const& p : *points) {
        bool const visible = p.y <= c.y_limit.value_or(p.y);
        if (visible) y.include(p.y);
        // A logarithmic axis would give most of its length to what is out of the picture.
        if (visible || !c.log_x) x.include(p.x);
      }
    }
  }
  if (x.low > x.high) x = {1, 2};
  if (x.low == x.high) {
    x = c.log_x ? extent{x.low / 2, x.low * 2} : extent{x.low - 0.5, x.low + 0.5};
  }
  if (!(y.low <= y.high)) y = {0, 1};
  // What differs in its last digits only is flat: doubles would be too coarse for its ticks.
  bool const flat = y.high - y.low <= 1e-9 * std::max(std::abs(y.low), std::abs(y.high));
  double const margin = flat ? 0.5 : 0.05 * (y.high - y.low);
  double const low = y.low >= 0 ? std::max(0.0, y.low - margin) : y.low - margin;
  return {axis{x.low, x.high, left, width - right, c.log_x},
          axis{low, y.high + margin, height - bottom, top, false}};
}

template <class Out>
void draw_grid(Out to, chart const& c, axis const& x, axis const& y) {
  for (double const value : x.ticks()) {
    fmt::format_to(to, R"(<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>)",
                   x.pixel(value), top, height - bottom);
    fmt::format_to(to, R"(<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>)",
                   x.pixel(value), height - bottom + 17, short_number(value));
  }
  for (double const value : y.ticks()) {
    fmt::format_to(to, R"(<line class="grid" x1="{1}" x2="{2}" y1="{0:.1f}" y2="{0:.1f}"/>)",
                   y.pixel(value), left, width - right);
    fmt::format_to(to, R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>)",
                   left - 8, y.pixel(value) + 4, short_number(value));
  }
  fmt::format_to(to, R"(<path class="axis" d="M{0} {1}V{2}H{3}"/>)", left, top, height - bottom,
                 width - right);
  fmt::format_to(to, R"(<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>)",
                 (left + width - right) / 2, height - 8, escape_html(c.x_label));
  fmt::format_to(to,
                 R"svg(<text class="label" transform="translate(15 {}) rotate(-90)" )svg"
                 R"svg(text-anchor="middle">{}</text>)svg",
                 (top + height - bottom) / 2, escape_html(c.y_label));
}

template <class Out>
void draw_curve(Out to, series const& s, axis const& x, axis const& y) {
  fmt::format_to(to, R"svg(<g style="--c:var(--series-{})"><path class="curve" d=")svg", s.colour);
  char command = 'M';
  for (auto const& p : s.line) {
    if (!std::isfinite(p.y)) {
      command = 'M';
      continue;
    }
    fmt::format_to(to, "{}{:.1f} {:.1f}", command, x.pixel(p.x), y.pixel(p.y));
    command = 'L';
  }
  fmt::format_to(to, R"("/>)");
  for (auto const& p : s.dots) {
    if (!std::isfinite(p.y)) continue;
    fmt::format_to(to, R"(<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>)", x.pixel(p.x),
                   y.pixel(p.y));
  }
  fmt::format_to(to, "</g>\n");
}

// [[x pixel, y pixel, "x", "y"], ...] for the hover script.
std::string hover_data(series const& s, axis const& x, axis const& y) {
  std::string out = "[";
  for (auto const& p : s.line) {
    if (!std::isfinite(p.y) || p.y > y.high) continue;
    fmt::format_to(std::back_inserter(out), R"({}[{:.1f},{:.1f},"{}","{:.4g}"])",
                   out.size() == 1 ? "" : ",", x.pixel(p.x), y.pixel(p.y), short_number(p.x), p.y);
  }
  return out + "]";
}

}  // namespace

std::vector<point> thin(std::vector<point> const& points, std::size_t count) {
  if (points.size() <= count) return points;
  std::vector<point> kept;
  for (std::size_t i = 0; i < count; ++i) {
    kept.push_back(points[i * (points.size() - 1) / (count - 1)]);
  }
  return kept;
}

std::vector<double> smooth(std::vector<double> const& values) {
  double const decay = std::exp(-50.0 / std::max<double>(50, static_cast<double>(values.size())));
  double mean = 0, weight = 0;
  std::vector<double> out;
  for (double const value : values) {
    if (std::isfinite(value)) {
      mean = decay * mean + (1 - decay) * value;
      weight = decay * weight + (1 - decay);
    }
    out.push_back(mean / weight);
  }
  return out;
}

std::string figure_html(chart const& c) {
  auto const [x, y] = make_axes(c);
  static constexpr double plot_width = width - left - right, plot_height = height - top - bottom;
  std::string out;
  auto const to = std::back_inserter(out);
  fmt::format_to(to, "<figure><figcaption>{}</figcaption>\n", escape_html(c.title));
  fmt::format_to(to, R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", width, height,
                 escape_html(c.title));
  draw_grid(to, c, x, y);
  // A nested <svg> clips what leaves the plot area, but for half a dot at the right end.
  fmt::format_to(to, R"(<svg x="{0}" y="{1}" width="{2}" height="{3}" viewBox="{0} {1} {2} {3}">)",
                 left, top, plot_width + right / 2, plot_height);
  for (auto const& s : c.curves) draw_curve(to, s, x, y);
  fmt::format_to(to, R"(</svg><line class="cursor" y1="{}" y2="{}" visibility="hidden"/></svg>)",
                 top, height - bottom);
  fmt::format_to(to, "\n<ul class=\"legend\">");
  for (auto const& s : c.curves) {
    fmt::format_to(
        to,
        R"html(<li style="--c:var(--series-{})" data-points='{}'>{} <output></output></li>)html",
        s.colour, hover_data(s, x, y), escape_html(s.label));
  }
  fmt::format_to(to, "</ul>\n<p class=\"note\">{}</p></figure>\n", escape_html(c.note));
  return out;
}

std::string html(page const& p) {
  auto const machine = p.machine.empty() ? "" : fmt::format("<p>{}</p>\n", escape_html(p.machine));
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\"><title>scape: {}</title>"
      "<style>{}{}</style></head><body>\n<h1>{}</h1>\n{}"
      "<h2>How it was made</h2>\n<pre>{}</pre>\n{}<script>{}</script>\n</body></html>\n",
      escape_html(p.program), report_css, p.css, escape_html(p.heading), p.body,
      escape_html(p.command), machine, report_script);
}

std::string escape_html(std::string const& text) {
  std::string out;
  for (char const c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace train_gpt
