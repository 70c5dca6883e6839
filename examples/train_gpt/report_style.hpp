// SPDX-License-Identifier: Apache-2.0
#pragma once

//! @file
//! Style sheet and hover script of the report.

#include <string_view>

namespace train_gpt {

inline constexpr std::string_view report_css = R"css(
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1b1f24; --soft: #5b6470;
  --rule: #d9dde2; --grid: #e9ecef; --panel: #ffffff;
  --series-0: #5b6470; --series-1: #0b62c4; --series-2: #c2410c; --series-3: #0f7b4f;
  --series-4: #9333a8; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e6e9ed; --soft: #9aa4b0;
  --rule: #353c45; --grid: #2c333b; --panel: #1a1e23;
  --series-0: #a6b0bc; --series-1: #6cb0ff; --series-2: #ff9f5a; --series-3: #5fd39c;
  --series-4: #d98bea; } }
body { margin: 2rem auto; padding: 0 1.25rem; max-width: 62rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .7rem 1rem;
  background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums;
  width: 100%; }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
thead tr:last-child th, thead th[rowspan] { border-bottom: 1px solid var(--rule); }
tbody tr + tr > * { border-top: 1px solid var(--grid); }
tbody th, thead tr:first-child th:first-child { text-align: left; padding-left: 0; }
th[colspan] { text-align: center; }
figure { margin: 2.2rem 0 0; padding: 1rem 1.1rem .8rem; background: var(--panel);
  border: 1px solid var(--rule); border-radius: 8px; }
figcaption { font-weight: 600; margin-bottom: .4rem; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--grid); }
.axis { stroke: var(--soft); fill: none; }
.tick, .label { fill: var(--soft); font: 12px system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
.label { font-size: 13px; }
.curve { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.dot { fill: var(--c); stroke: var(--panel); stroke-width: 1.2; }
.cursor { stroke: var(--soft); stroke-dasharray: 3 3; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; list-style: none; padding: 0;
  margin: .5rem 0 0; font-size: .88rem; }
.legend li::before { content: ""; display: inline-block; width: 1.3rem; height: 3px;
  margin-right: .45rem; vertical-align: middle; border-radius: 2px; background: var(--c); }
.legend output { color: var(--soft); font-variant-numeric: tabular-nums; }
.note { color: var(--soft); font-size: .85rem; margin: .4rem 0 0; }
)css";

// Shows the values of all curves next to their names, at the point nearest to the pointer.
inline constexpr std::string_view report_script = R"js(
for (const figure of document.querySelectorAll('figure')) {
  const svg = figure.querySelector('svg'), cursor = figure.querySelector('.cursor');
  const rows = [...figure.querySelectorAll('.legend li')].map(li =>
    ({ points: JSON.parse(li.dataset.points), output: li.querySelector('output') }));
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    cursor.setAttribute('visibility', 'visible');
    cursor.setAttribute('x1', x);
    cursor.setAttribute('x2', x);
    for (const { points, output } of rows) {
      let best = null;
      for (const p of points) if (!best || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
      output.textContent = best ? best[3] + ' at ' + best[2] : '';
    }
  });
  svg.addEventListener('pointerleave', () => {
    cursor.setAttribute('visibility', 'hidden');
    for (const { output } of rows) output.textContent = '';
  });
}
)js";

}  // namespace train_gpt
