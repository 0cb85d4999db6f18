"use strict";
// Draws the charts from the JSON in the page. Text reaches the page as text only, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { axis: "round", smooth: 0, log: false, group: data.group, hidden: new Set(data.hidden) };
const byId = (id) => document.getElementById(id);
const tip = byId("tip");
let charts = [];

// Elements -------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

function drawn(name, attributes = {}, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}

const lineClass = (series) => `c${data.series[series].colour} d${data.series[series].dash}`;

function swatch(series) {
  const piece = drawn("path", { class: lineClass(series), d: "M1 5H25" });
  return drawn("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, piece);
}

// Numbers --------------------------------------------------------------------------------------------------------

const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function number(value, share) {
  if (share) return `${(100 * value).toFixed(2)} %`;
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e9)) return value.toExponential(2);
  return Math.abs(value) >= 1000 ? whole.format(value) : plain.format(value);
}

function tickLabel(value, step, share) {
  if (share) return `${(100 * value).toFixed(step < 0.001 ? 2 : step < 0.01 ? 1 : 0)} %`;
  if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(0);
  return Math.abs(value) >= 100000 ? compact.format(value) : (Math.abs(value) >= 1000 ? whole : plain).format(value);
}

// Round places for ticks between two values, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => power * each >= rough * 0.8);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step || 0); // not -0
  return { step, found };
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const each of [1, 2, 5]) found.push(each * 10 ** power);
  }
  const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return inside.length > 7 ? inside.filter((value) => Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6)) : inside;
}

// Lines ----------------------------------------------------------------------------------------------------------

const shownSeries = () =>
  data.series.map((_, index) => index).filter((index) => state.group === null || data.series[index].group === state.group);

// Where the line's rounds lie on the axis; null where the series has no such axis.
function places(line, series) {
  if (state.axis === "round") return line.round;
  const { round: knots, [state.axis]: values } = data.series[series].axes;
  if (!values) return null;
  let at = 1;
  return line.round.map((round) => {
    while (at < knots.length - 1 && knots[at] < round) at++;
    const part = (round - knots[at - 1]) / (knots[at] - knots[at - 1] || 1);
    return values[at - 1] + part * (values[at] - values[at - 1]);
  });
}

// The mean over the points within half a window of rounds on either side.
function smoothed(values, rounds) {
  if (!values || !state.smooth) return values;
  const half = state.smooth / 2;
  let first = 0, next = 0, sum = 0;
  return values.map((_, at) => {
    while (next < values.length && rounds[next] <= rounds[at] + half) sum += values[next++];
    while (rounds[first] < rounds[at] - half) sum -= values[first++];
    return sum / (next - first);
  });
}

function linesOf(metric) {
  const found = [];
  for (const series of shownSeries()) {
    const line = data.metrics[metric].lines[series];
    const x = line && !state.hidden.has(series) ? places(line, series) : null;
    if (!x) continue;
    const [mean, low, high] = ["mean", "low", "high"].map((name) => smoothed(line[name], line.round));
    found.push({ series, x, round: line.round, mean, low: low || mean, high: high || mean, band: Boolean(low) });
  }
  return found;
}

function extent(lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// Charts ---------------------------------------------------------------------------------------------------------

function makeChart(metric, small) {
  const { title } = data.metrics[metric];
  const figure = element("figure", { "data-metric": metric }, element("figcaption", {}, title));
  const svg = drawn("svg", { class: "chart", tabindex: "0", role: "img", "aria-label": title });
  const note = element("p", { class: "note" });
  figure.append(svg, note);
  const chart = { metric, figure, svg, note, small, width: 0, view: null, at: null };
  svg.addEventListener("pointermove", (event) => point(chart, event));
  svg.addEventListener("pointerdown", (event) => point(chart, event));
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hideTip());
  svg.addEventListener("keydown", (event) => step(chart, event));
  svg.addEventListener("blur", hideTip);
  return chart;
}

// The y axis: from where to where, and its ticks. A share stays between 0 and 1.
function vertical(lines, share, height) {
  let [low, high] = extent(lines.flatMap((line) => [line.low, line.high]));
  const log = state.log && !share && low > 0;
  if (log) {
    const room = (high / low) ** 0.04 || 1.1;
    [low, high] = low === high ? [low / 2, high * 2] : [low / room, high * room];
    return { low: Math.log(low), high: Math.log(high), of: Math.log, ticks: logTicks(low, high), step: 0 };
  }
  const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  [low, high] = [low >= 0 ? Math.max(0, low - room) : low - room, share ? Math.min(1, high + room) : high + room];
  const { step, found } = ticks(low, high, (height - 50) / 36);
  return { low, high, of: (value) => value, ticks: found, step };
}

function draw(chart) {
  const { svg, metric } = chart;
  const { share, title } = data.metrics[metric];
  const lines = linesOf(metric);
  const width = Math.max(240, Math.round(chart.figure.clientWidth));
  const height = chart.small ? 170 : Math.round(Math.min(400, Math.max(230, width * 0.5)));
  chart.width = chart.figure.clientWidth;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `${title}, ${lines.length} series by ${data.axes[state.axis]}`);
  chart.view = null;
  chart.note.textContent = lines.length ? "" : "No series that is shown has this on this axis.";
  if (!lines.length) return svg.setAttribute("viewBox", `0 0 ${width} 1`);

  const y = vertical(lines, share, height);
  const labels = y.ticks.map((value) => tickLabel(value, y.step, share));
  const left = 12 + 6.6 * Math.max(2, ...labels.map((label) => label.length));
  const right = width - 14, top = 10, bottom = height - 40;
  const [first, last] = extent(lines.map((line) => line.x));
  const begin = Math.min(first, state.axis === "round" && last > 1 ? (first > 1 ? first : 1) : 0);
  const span = last - begin || 1;
  const toX = (value) => left + ((value - begin) / span) * (right - left);
  const toY = (value) => bottom - ((y.of(value) - y.low) / (y.high - y.low)) * (bottom - top);

  y.ticks.forEach((value, index) => {
    const at = toY(value).toFixed(1);
    svg.append(drawn("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    svg.append(drawn("text", { x: left - 6, y: at, dy: "0.35em", "text-anchor": "end" }, labels[index]));
  });
  const across = ticks(begin, last, width / 80);
  for (const value of across.found.filter((each) => state.axis !== "round" || Number.isInteger(each))) {
    const at = toX(value).toFixed(1);
    svg.append(drawn("line", { class: "edge", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
    svg.append(drawn("text", { x: at, y: bottom + 17, "text-anchor": "middle" }, tickLabel(value, across.step, false)));
  }
  svg.append(drawn("line", { class: "edge", x1: left, x2: right, y1: bottom, y2: bottom }));
  svg.append(drawn("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, data.axes[state.axis]));

  const path = (xs, ys) => xs.map((value, at) => `${toX(value).toFixed(1)} ${toY(ys[at]).toFixed(1)}`);
  for (const line of lines.filter((each) => each.band)) {
    const outline = [...path(line.x, line.high), ...path(line.x, line.low).reverse()];
    svg.append(drawn("path", { class: `band b${data.series[line.series].colour}`, d: `M${outline.join("L")}Z` }));
  }
  for (const line of lines) {
    const thin = line.x.length > 600 ? " thin" : "";
    svg.append(drawn("path", { class: `line ${lineClass(line.series)}${thin}`, d: `M${path(line.x, line.mean).join("L")}` }));
    if (line.x.length === 1) svg.append(dot(toX(line.x[0]), toY(line.mean[0]), line.series));
  }
  const cursor = drawn("g");
  svg.append(cursor);
  chart.view = { lines, toX, toY, left, right, top, bottom, width, share, cursor };
}

const dot = (x, y, series) =>
  drawn("circle", { class: `dot c${data.series[series].colour}`, cx: x.toFixed(1), cy: y.toFixed(1), r: 3.5 });

// Reading a chart ------------------------------------------------------------------------------------------------

// The index of the value nearest to `wanted` in an ascending list.
function nearest(list, wanted) {
  let low = 0, high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(list[low] - wanted) <= Math.abs(list[high] - wanted) ? low : high;
}

function point(chart, event) {
  if (!chart.view) return;
  const box = chart.svg.getBoundingClientRect();
  const wanted = ((event.clientX - box.left) / box.width) * chart.view.width;
  read(chart, wanted);
}

// The arrow keys move from point to point of the longest line.
function step(chart, event) {
  if (!chart.view) return;
  if (event.key === "Escape") return hideTip();
  const jump = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity }[event.key];
  if (!jump) return;
  event.preventDefault();
  const longest = chart.view.lines.reduce((a, b) => (b.x.length > a.x.length ? b : a));
  const now = chart.at === null ? (jump > 0 ? -1 : longest.x.length) : nearest(longest.x, chart.at);
  const next = Math.min(longest.x.length - 1, Math.max(0, now + jump));
  read(chart, chart.view.toX(longest.x[next]));
}

// Show the values of all lines near a place across the chart.
function read(chart, wanted) {
  const { lines, toX, toY, top, bottom, share, cursor } = chart.view;
  let best = null;
  for (const line of lines) {
    const at = nearest(line.x.map(toX), wanted);
    const far = Math.abs(toX(line.x[at]) - wanted);
    if (!best || far < best.far) best = { far, x: line.x[at], round: line.round[at] };
  }
  chart.at = best.x;
  const rows = [];
  const across = toX(best.x);
  cursor.replaceChildren(drawn("line", { class: "cursor", x1: across, x2: across, y1: top, y2: bottom }));
  for (const line of lines) {
    if (best.x > line.x[line.x.length - 1] * 1.0001) continue; // it had ended by then
    const at = nearest(line.x, best.x);
    cursor.append(dot(toX(line.x[at]), toY(line.mean[at]), line.series));
    const name = element("span", { class: "name" }, data.series[line.series].label);
    const row = element("div", {}, swatch(line.series), name, element("span", { class: "value" }, number(line.mean[at], share)));
    if (line.band) {
      const range = `${number(line.low[at], share)} to ${number(line.high[at], share)}`;
      row.append(element("span", { class: "range" }, range));
    }
    rows.push([line.mean[at], row]);
  }
  rows.sort((a, b) => b[0] - a[0]);
  const unit = data.axes[state.axis];
  const heading = state.axis === "round" ? `round ${whole.format(best.x)}` : `${number(best.x, false)} ${unit}, round ${best.round}`;
  const shown = rows.slice(0, 16).map((pair) => pair[1]);
  if (rows.length > 16) shown.push(element("div", {}, `and ${rows.length - 16} more`));
  const box = chart.svg.getBoundingClientRect();
  const narrow = box.width < 560; // there it goes below, not to hide what is read
  const x = box.left + (across / chart.view.width) * box.width;
  showTip([element("b", {}, heading), ...shown], x, narrow ? box.bottom - 4 : box.top + 12);
  for (const other of charts) if (other !== chart && other.view) other.view.cursor.replaceChildren();
}

function showTip(inside, x, y) {
  tip.replaceChildren(...inside);
  tip.hidden = false;
  const wide = document.documentElement.clientWidth;
  const { width } = tip.getBoundingClientRect();
  const beside = x + 14 + width < wide - 6 ? x + 14 : x - 14 - width;
  tip.style.left = `${Math.max(6, Math.min(beside, wide - width - 6)) + window.scrollX}px`;
  tip.style.top = `${y + window.scrollY}px`;
}

function hideTip() {
  tip.hidden = true;
  for (const chart of charts) {
    chart.at = null;
    if (chart.view) chart.view.cursor.replaceChildren();
  }
}
