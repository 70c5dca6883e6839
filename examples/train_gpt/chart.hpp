// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Line charts as inline SVG, and the page around them.

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace train_gpt {

struct point {
  double x = 0, y = 0;
};

struct series {
  std::string label;
  std::size_t colour = 0;  //!< the CSS variable --series-<colour>
  std::vector<point> line;
  std::vector<point> dots;  //!< drawn as markers on top of the line
};

struct chart {
  std::string title, x_label, y_label, note;
  bool log_x = false;
  std::vector<series> curves;
  //! Points above are left out of the picture; none: all are shown.
  std::optional<double> y_limit;
};

//! At most `count` points that keep the first, the last and the shape in between.
[[nodiscard]] std::vector<point> thin(std::vector<point> const& points, std::size_t count);

//! An exponential mean over about a fiftieth of the values, without the bias of its start.
[[nodiscard]] std::vector<double> smooth(std::vector<double> const& values);

//! A <figure> with the SVG, its legend, and the data in data-* attributes for the hover script.
[[nodiscard]] std::string figure_html(chart const& c);

//! A page that needs no other file.
struct page {
  std::string program, heading;
  std::string body;          //!< HTML
  std::string command;       //!< as typed
  std::string machine = {};  //!< where it ran
  std::string css = {};      //!< beside that of the charts
};
[[nodiscard]] std::string html(page const& p);

//! `text` with the characters that mean something in HTML escaped.
[[nodiscard]] std::string escape_html(std::string const& text);

}  // namespace train_gpt
