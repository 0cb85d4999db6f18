"use strict";
// The rest of the page: who holds what, controls, tables. What draws the charts stands before this, in charts.js.

// Who holds what -------------------------------------------------------------------------------------------------

function makeMap(partition) {
  const figure = element("figure", { class: "map" }, element("figcaption", {}, partition.title));
  if (partition.labels.length) figure.append(element("p", { class: "note" }, `In ${partition.labels.join("; ")}.`));
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
  const sizes = clients.map((_, client) => counts.reduce((sum, row) => sum + row[client], 0));
  const rows = element("div", { class: "rows", "aria-hidden": "true" });
  const plot = element("div", { class: "plot" }, rows, canvas, element("div", { class: "axis" }, ...ends));
  figure.append(plot, scale);
  const map = { figure, canvas, rows, clients, counts, most, sizes, largest: Math.max(...sizes) };
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => readMap(map, event));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hideTip());
  return map;
}

const BARS = 46; // the height of the sizes above the classes
const LINE = 14; // of a label

// What the rows are, left of the map: how far the bars go, and the classes, as many as there is room for.
function labelRows({ rows, counts, largest, tall }) {
  const every = Math.ceil(LINE / tall);
  const found = [[whole.format(largest), LINE / 2], ["examples", BARS / 2], ["0", BARS - LINE / 2]];
  for (let label = 0; label < counts.length; label += every) {
    found.push([`class ${label}`, BARS + 6 + (label + 0.5) * tall]);
  }
  rows.replaceChildren(...found.map(([words, middle]) => {
    const made = element("span", {}, words);
    made.style.top = `${middle - LINE / 2}px`;
    return made;
  }));
}

const channels = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);

function drawMap(map) {
  const { canvas, counts, clients, most, sizes, largest } = map;
  if (!canvas) return;
  const width = canvas.clientWidth, tall = Math.max(3, Math.min(18, 420 / counts.length));
  const ratio = window.devicePixelRatio || 1, height = BARS + 6 + Math.round(tall * counts.length);
  Object.assign(map, { width, tall });
  labelRows(map);
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(canvas), pen = canvas.getContext("2d");
  const [from, to] = [channels(style.backgroundColor), channels(style.color)];
  pen.scale(ratio, ratio);
  const wide = width / clients.length, gap = wide > 5 ? 1 : 0;
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

const ROWS = 4;

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
  if (buttons.length > 2) buttons.unshift(wholesale(`show all ${buttons.length}`, "delete"), wholesale("hide all", "add"));
  legend.replaceChildren(...buttons);
  fitLegend();
}

// It stays in view over the charts: of many rows the first are seen, and of no row a part.
function fitLegend() {
  const legend = byId("legend");
  if (!legend) return;
  const tops = [...new Set([...legend.children].map((button) => button.offsetTop))];
  const cut = tops.length > ROWS && !matchMedia("(max-width: 600px)").matches;
  legend.style.maxHeight = cut ? `${tops[ROWS] - tops[0] - 2}px` : "";  // the gap is 6 pixels, the padding twice 2
}

function wholesale(words, change) {
  const button = element("button", { type: "button", class: "wholesale" }, words);
  button.addEventListener("click", () => {
    for (const series of shownSeries()) state.hidden[change](series);
    drawLegend();
    drawAll();
  });
  return button;
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

const TOGETHER = 12; // as many small charts are drawn unasked: a client or a tensor each, there may be hundreds

// A name before a slash that several metrics share is offered whole, as small charts.
function anyChoices() {
  const names = Object.keys(data.metrics).filter((name) => !name.endsWith("/percentiles"));
  const families = {};
  for (const name of names.filter((each) => each.includes("/"))) (families[name.split("/")[0]] ||= []).push(name);
  for (const members of Object.values(families)) {
    if (members.every((name) => /\/\d+$/.test(name))) members.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  }
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
  const more = byId("any-more");
  const familyOf = (name) => (name.endsWith("/*") ? families[name.slice(0, -2)] : null);
  const show = (name, count = TOGETHER) => {
    const family = familyOf(name);
    fill("any-charts", (family || [name]).slice(0, count), Boolean(family));
    const left = family ? family.length - count : 0;
    more.hidden = left <= 0;
    if (left <= 0) return;
    const button = element("button", { type: "button" }, `show ${Math.min(TOGETHER, left)} more`);
    button.addEventListener("click", () => show(name, count + TOGETHER));
    more.replaceChildren(`${whole.format(count)} of ${whole.format(family.length)} charts; ${whole.format(left)} are left out. `, button);
  };
  const isLarge = (name) => (familyOf(name.replace(/\/.*/, "/*")) || []).length > TOGETHER;
  const first = (options.find(([name]) => !isLarge(name)) || options[0] || [null])[0];
  choice("metric", options, first, (name) => show(name));
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
  addEventListener("resize", () => { hideTip(); fitLegend(); maps.forEach(drawMap); });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg.chart, canvas")) hideTip(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
}

begin();
