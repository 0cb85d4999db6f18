"use strict";
// Draws the page's charts from the JSON beside it. Text reaches the page as text only, never as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 7;
const state = { axis: "round", smooth: 0, log: false, group: data.group, hidden: new Set() };
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

const lineClass = (series) => `c${series % COLOURS} d${Math.floor(series / COLOURS) % 4}`;

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
    svg.append(drawn("path", { class: `band b${line.series % COLOURS}`, d: `M${outline.join("L")}Z` }));
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
  drawn("circle", { class: `dot c${series % COLOURS}`, cx: x.toFixed(1), cy: y.toFixed(1), r: 3.5 });

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
    const row = element("div", {}, swatch(line.series), name, number(line.mean[at], share));
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

// Who holds what -------------------------------------------------------------------------------------------------

function makeMap(partition) {
  const figure = element("figure", { class: "map" }, element("figcaption", {}, partition.title));
  if (partition.labels.length) figure.append(element("p", { class: "note" }, `In ${partition.labels.join(", ")}.`));
  if (partition.why) {
    figure.append(element("p", { class: "note" }, `Not drawn: ${partition.why}.`));
    return { figure };
  }
  const { clients, counts, population } = partition;
  const few = clients.length < population ? `${clients.length} of the ` : "";
  const about = `A column for each of ${few}${whole.format(population)} clients, a row for each of ${counts.length} classes`;
  const canvas = element("canvas", { role: "img", "aria-label": about });
  const most = Math.max(...counts.flat());
  const scale = element("div", { class: "scale" }, "0", element("span", { class: "ramp" }), `${whole.format(most)} examples`);
  const ends = [`client ${clients[0]}`, `client ${clients[clients.length - 1]}`].map((end) => element("span", {}, end));
  figure.append(element("p", { class: "note" }, `${about}; above them, how many examples they have.`));
  figure.append(canvas, element("div", { class: "axis" }, ...ends), scale);
  const sizes = clients.map((_, client) => counts.reduce((sum, row) => sum + row[client], 0));
  const map = { figure, canvas, clients, counts, most, sizes };
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => readMap(map, event));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hideTip());
  return map;
}

const BARS = 46; // the height of the sizes above the classes

const channels = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);

function drawMap(map) {
  const { canvas, counts, clients, most, sizes } = map;
  if (!canvas) return;
  const width = canvas.clientWidth, tall = Math.max(3, Math.min(18, 420 / counts.length));
  const ratio = window.devicePixelRatio || 1, height = BARS + 6 + Math.round(tall * counts.length);
  Object.assign(map, { width, tall });
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(canvas), pen = canvas.getContext("2d");
  const [from, to] = [channels(style.backgroundColor), channels(style.color)];
  pen.scale(ratio, ratio);
  const wide = width / clients.length, gap = wide > 5 ? 1 : 0, largest = Math.max(...sizes);
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, width, BARS + 6);
  pen.fillStyle = style.borderTopColor;
  sizes.forEach((size, client) => {
    const high = Math.max(1, (size / largest) * BARS);
    pen.fillRect(client * wide, BARS - high, wide - gap, high);
  });
  counts.forEach((row, label) => row.forEach((count, client) => {
    if (!count) return;
    const part = 0.12 + 0.88 * Math.sqrt(count / most);
    pen.fillStyle = `rgb(${from.map((start, at) => Math.round(start + part * (to[at] - start))).join(",")})`;
    pen.fillRect(client * wide, BARS + 6 + label * tall, wide - gap, tall - (tall > 5 ? 1 : 0));
  }));
}

function readMap(map, event) {
  const box = map.canvas.getBoundingClientRect();
  const client = Math.floor(((event.clientX - box.left) / box.width) * map.clients.length);
  const label = Math.floor((event.clientY - box.top - BARS - 6) / map.tall);
  if (!(client in map.clients)) return hideTip();
  const said = [element("b", {}, `client ${map.clients[client]}: ${whole.format(map.sizes[client])} examples`)];
  if (label in map.counts) said.push(element("div", {}, `${whole.format(map.counts[label][client])} of class ${label}`));
  showTip(said, event.clientX, event.clientY + 14);
}

// Controls -------------------------------------------------------------------------------------------------------

function drawLegend() {
  const legend = byId("legend");
  if (!legend) return;
  const buttons = shownSeries().map((series) => {
    const pressed = String(!state.hidden.has(series));
    const button = element("button", { type: "button", "aria-pressed": pressed }, swatch(series), data.series[series].label);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(series)) state.hidden.add(series);
      button.setAttribute("aria-pressed", String(!state.hidden.has(series)));
      drawAll();
    });
    return button;
  });
  legend.replaceChildren(...buttons);
}

const drawAll = () => { hideTip(); charts.forEach(draw); };

function choice(id, options, chosen, changed) {
  const select = byId(id);
  if (!select) return;
  if (options) select.replaceChildren(...options.map(([value, title]) => element("option", { value }, title)));
  select.value = chosen;
  select.addEventListener("change", () => { changed(select.value); drawAll(); });
}

const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.find((each) => each.figure === entry.target);
    if (chart && Math.abs(chart.figure.clientWidth - chart.width) > 1) draw(chart);
  }
});

function fill(id, metrics, small = false) {
  const holder = byId(id);
  if (!holder) return;
  for (const chart of charts.filter((each) => holder.contains(each.figure))) sizes.unobserve(chart.figure);
  charts = charts.filter((chart) => !holder.contains(chart.figure));
  holder.classList.toggle("small", small);
  const made = metrics.map((metric) => makeChart(metric, small));
  holder.replaceChildren(...made.map((chart) => chart.figure));
  charts.push(...made);
  made.forEach((chart) => { draw(chart); sizes.observe(chart.figure); });
}

// A name before a slash that several metrics share is offered whole, as small charts.
function anyChoices() {
  const names = Object.keys(data.metrics).filter((name) => !name.endsWith("/percentiles"));
  const families = {};
  for (const name of names.filter((each) => each.includes("/"))) (families[name.split("/")[0]] ||= []).push(name);
  const several = Object.entries(families).filter(([, members]) => members.length > 1);
  const whole = several.map(([family, members]) => [`${family}/*`, `${family}/… (${members.length} small charts)`]);
  const others = names.filter((name) => !data.learning.includes(name));
  const title = (name) => (data.metrics[name].title === name ? name : `${data.metrics[name].title} (${name})`);
  return { families, options: [...whole, ...(others.length ? others : names).map((name) => [name, title(name)])] };
}

function setUpAny() {
  const select = byId("metric");
  if (!select) return;
  const { families, options } = anyChoices();
  const show = (name) => {
    const family = name.endsWith("/*") ? families[name.slice(0, -2)] : null;
    fill("any-charts", family || [name], Boolean(family));
  };
  const first = options.length ? options[0][0] : null;
  choice("metric", options, first, show);
  if (first) show(first);
}

function setUpTheme(maps) {
  const button = byId("theme"), root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = { get: () => { try { return localStorage.getItem("fedloom-theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("fedloom-theme", value); } catch { /* not from a file everywhere */ } } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; maps.forEach(drawMap); };
  if (["dark", "light"].includes(kept.get())) root.dataset.theme = kept.get();
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    kept.set(root.dataset.theme);
    show();
  });
  dark.addEventListener("change", show);
  show();
}

// Tables ---------------------------------------------------------------------------------------------------------

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const falling = head.getAttribute("aria-sort") === "descending" ? false
      : head.getAttribute("aria-sort") === "ascending" ? true
      : [...table.tBodies[0].rows].some((row) => row.cells[column].dataset.sort);
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(a.cells[column], b.cells[column], falling ? -1 : 1));
    table.tBodies[0].append(...rows);
  }));
}

// Numbers by size, text by alphabet; a cell without a number comes last either way.
function compare(a, b, sign) {
  const [x, y] = [a, b].map((cell) => (cell.dataset.sort === undefined ? null : Number(cell.dataset.sort)));
  if (x !== null && y !== null) return sign * (x - y);
  if (x !== null || y !== null) return x === null ? 1 : -1;
  return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

// Begin ----------------------------------------------------------------------------------------------------------

function begin() {
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll(".controls, #any").forEach((part) => { part.hidden = false; });
  choice("axis", Object.entries(data.axes), state.axis, (value) => { state.axis = value; });
  choice("smooth", null, "0", (value) => { state.smooth = Number(value); });
  const groups = data.groups.map((group) => [`=${group}`, group]);
  choice("group", [["all", "all"], ...groups], state.group === null ? "all" : `=${state.group}`, (value) => {
    state.group = value === "all" ? null : value.slice(1);
    drawLegend();
  });
  const groupChoice = document.querySelector(".groups");
  if (groupChoice) groupChoice.hidden = data.groups.length < 2;
  const log = byId("log");
  if (log) log.addEventListener("change", () => { state.log = log.checked; drawAll(); });
  drawLegend();
  fill("learning-charts", data.learning);
  fill("inside-charts", data.inside);
  setUpAny();
  const maps = data.partitions.map(makeMap);
  byId("partition-maps")?.append(...maps.map((map) => map.figure));
  setUpTheme(maps);
  addEventListener("resize", () => { hideTip(); maps.forEach(drawMap); });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg.chart, canvas")) hideTip(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
}

begin();
