"use strict";
// Draws the charts of a page when they come into view, and sorts its tables.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LOOK = {
  font: { family: "system-ui, sans-serif", size: 12 },
  margin: { l: 70, r: 20, t: 20, b: 45 },
  legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
  hoverlabel: { namelength: -1 },
};
const OPTIONS = {
  displaylogo: false, responsive: true, scrollZoom: true, modeBarButtonsToRemove: ["lasso2d", "select2d"],
};
// Boxes of a Gantt chart that a browser still redraws without a pause, and the least pixels of one box.
const MOST_BOXES = 4000;
const LEAST_PIXELS = 2;
// Pixels of a row, of a letter in a box, and of the narrowest box with an edge.
const ROW = 24;
const LETTER = 7;
const EDGED = 8;
// Ops of one paint are joined up to so many times the length of others; a box of several paints is at most so long.
const ALIKE = 8;
const MIXED = 4;

function bytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

// The data of a chart: JSON, compressed by gzip.
function read(key) {
  const stream = new Blob([bytes(DATA[key])]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function decoded(lane) {
  const times = (name) => new Float64Array(bytes(lane[name]).buffer);
  const places = (name) => new Uint32Array(bytes(lane[name]).buffer);
  const row = { name: lane.name, ready: times("ready"), begin: times("begin"), end: times("end"), busy: times("busy") };
  Object.assign(row, { paint: places("paint"), text: places("text"), count: places("count") });
  // the latest end so far rises, so that the first span in view is found by bisection
  row.latest = Float64Array.from(row.end);
  for (let i = 1; i < row.latest.length; i++) row.latest[i] = Math.max(row.latest[i], row.latest[i - 1]);
  return row;
}

function firstAfter(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

// Boxes of which neighbours shorter than `short` seconds and nearer than `gap` are one, at most `most` seconds long.
// `alike`: only those of one paint. A box knows the seconds of each paint in it (parts).
function joined(boxes, short, gap, most, alike) {
  const made = [];
  let open = null;
  for (const box of boxes) {
    const joins = open && box.end - box.begin < short && box.begin - open.end < gap && box.end - open.begin < most;
    if (joins && (!alike || box.paint === open.paint)) {
      open.end = Math.max(open.end, box.end);
      open.count += box.count;
      for (const [paint, time] of box.parts) open.parts.set(paint, (open.parts.get(paint) || 0) + time);
    } else {
      made.push(box);
      open = box.end - box.begin < short ? box : null;
    }
  }
  return made;
}

// Boxes of a row between two times: waits that can be seen, and ops. Short ops of one paint are joined first.
function boxesOf(row, from, to, least) {
  const waits = [], ops = [];
  for (let i = firstAfter(row.latest, from); i < row.begin.length && row.begin[i] < to; i++) {
    const begin = row.begin[i], end = row.end[i], ready = row.ready[i];
    if (end <= from) continue;
    if (begin - ready >= least) {
      waits.push({ begin: ready, end: begin, paint: 0, text: row.text[i], count: 1, waits: true });
    }
    const [paint, text, count] = [row.paint[i], row.text[i], row.count[i]];
    ops.push({ begin, end, paint, text, count, parts: new Map([[paint, row.busy[i]]]) });
  }
  const actions = joined(ops, ALIKE * least, least, Infinity, true);
  return waits.concat(joined(actions, least, least, MIXED * least, false));
}

function visible(rows, from, to, pixels) {
  let least = (LEAST_PIXELS * (to - from)) / pixels;
  for (;;) {
    const every = rows.map((row) => boxesOf(row, from, to, least));
    if (every.reduce((sum, boxes) => sum + boxes.length, 0) <= MOST_BOXES || least > to - from) return every;
    least *= 2;
  }
}

function seconds(value) {
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [0, "ns"]];
  const [scale, name] = units.find(([least]) => Math.abs(value) >= least) || units[3];
  return `${Number((value / (scale || 1e-9)).toPrecision(4))} ${name}`;
}

function hover(box, gantt) {
  const lasts = `${seconds(box.end - box.begin)} from ${seconds(box.begin)}`;
  if (box.waits) return `waits for partners of ${gantt.texts[box.text]}<br>${lasts}`;
  if (box.count === 1) return `${gantt.texts[box.text]}<br>${lasts}`;
  const parts = Array.from(box.parts, ([paint, time]) => `${gantt.paints[paint].label} ${seconds(time)}`);
  return `${box.count} ops, the first ${gantt.texts[box.text]}<br>${parts.join(", ")}<br>${lasts}`;
}

// The paints of a box mixed by their times; what is idle is white, but at most three quarters, so that work is seen.
function mixed(box, gantt) {
  const busy = Array.from(box.parts.values()).reduce((sum, time) => sum + time, 0);
  const whole = Math.max(busy, Math.min(box.end - box.begin, 4 * busy));
  const channels = [1, 3, 5].map((place) => {
    let sum = 255 * (whole - busy);
    for (const [paint, time] of box.parts) sum += time * parseInt(gantt.paints[paint].fill.slice(place, place + 2), 16);
    return Math.round(sum / whole);
  });
  return `rgb(${channels.join(",")})`;
}

// The text of a box that has room for it; of several ops none.
function label(box, gantt, pixel) {
  const text = gantt.texts[box.text];
  return box.count === 1 && !box.waits && (box.end - box.begin) / pixel > LETTER * (text.length + 1) ? text : "";
}

function ganttTraces(gantt, every, pixel) {
  const kinds = [...gantt.paints, { label: "several kinds in one box: their colours, mixed by their times", fill: "#888888" }];
  // a legend has the colour of the first bar: one without length, above the rows, that is all of its kind
  const traces = kinds.map((kind, number) => ({
    type: "bar", orientation: "h", name: kind.label, base: [gantt.window[0]], x: [0], y: [-2],
    hovertext: [""], text: [""],
    marker: { color: [kind.fill], line: { width: [0], color: "#fff" } }, width: 0.86, legendrank: number || 1000,
    hovertemplate: "%{hovertext}<extra>%{fullData.name}</extra>", textposition: "inside", insidetextanchor: "middle",
    constraintext: "none", textangle: 0, cliponaxis: true,
  }));
  const seen = new Set();
  every.forEach((boxes, place) => boxes.forEach((box) => {
    for (const paint of box.waits ? [0] : box.parts.keys()) seen.add(paint);
    const several = !box.waits && box.parts.size > 1;
    const trace = traces[several ? kinds.length - 1 : box.paint];
    trace.base.push(box.begin);
    trace.x.push(box.end - box.begin);
    trace.y.push(place);
    trace.hovertext.push(hover(box, gantt));
    trace.text.push(label(box, gantt, pixel));
    trace.marker.color.push(box.waits ? gantt.paints[0].fill : mixed(box, gantt));
    // an edge would hide a narrow box
    trace.marker.line.width.push((box.end - box.begin) / pixel > EDGED ? 0.5 : 0);
  }));
  // the legend also has the kinds that occur in mixed boxes only
  return traces.filter((trace, number) => trace.x.length > 1 || seen.has(number));
}

function drawGantt(element, gantt) {
  const rows = gantt.lanes.map(decoded);
  const names = rows.map((row) => row.name);
  element.style.height = `${130 + ROW * Math.max(rows.length, 4)}px`;
  const layout = {
    ...LOOK, barmode: "overlay", dragmode: "zoom", showlegend: true, uirevision: "kept",
    margin: { ...LOOK.margin, l: 40 },
    xaxis: { range: gantt.window, title: { text: "time" }, ticksuffix: "s", tickformat: "~s", autorange: false },
    yaxis: {
      tickvals: names.map((_, i) => i), ticktext: names, range: [rows.length - 0.5, -0.5],
      automargin: true, fixedrange: true,
    },
  };
  const draw = (from, to) => {
    const pixels = Math.max(200, element.clientWidth - 250);
    const every = visible(rows, from, to, pixels);
    layout.xaxis = { ...layout.xaxis, range: [from, to] };
    return Plotly.react(element, ganttTraces(gantt, every, (to - from) / pixels), layout, OPTIONS).then(() => {
      Object.assign(element.dataset, { boxes: every.reduce((sum, boxes) => sum + boxes.length, 0), from, to });
    });
  };
  let waiting = 0;
  const follow = (change) => {
    if (!Object.keys(change).some((key) => key.startsWith("xaxis"))) return;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const [from, to] = change["xaxis.autorange"] ? gantt.window : element.layout.xaxis.range;
      if (Number(element.dataset.from) !== from || Number(element.dataset.to) !== to) draw(from, to);
    }, 120);
  };
  return draw(...gantt.window).then(() => {
    element.on("plotly_relayout", follow);
    element.on("plotly_doubleclick", () => draw(...gantt.window));
  });
}

function drawChart(element, chart) {
  return Plotly.newPlot(element, chart.traces, { ...LOOK, ...chart.layout }, { ...OPTIONS, scrollZoom: false });
}

async function draw(element) {
  const data = await read(element.dataset.key);
  await (element.dataset.kind === "gantt" ? drawGantt(element, data) : drawChart(element, data));
  element.dataset.drawn = "yes";
}

function sort(header) {
  const table = header.closest("table"), body = table.tBodies[0];
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const order = (cell) => (cell.dataset.order === undefined ? null : Number(cell.dataset.order));
  const compare = (a, b) => {
    const [one, other] = [order(a), order(b)];
    if (one === null && other === null) return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
    return one === null ? 1 : other === null ? -1 : one - other;
  };
  const rows = Array.from(body.rows);
  rows.sort((a, b) => (down ? -1 : 1) * compare(a.cells[header.cellIndex], b.cells[header.cellIndex]));
  body.append(...rows);
}

const inView = new IntersectionObserver((entries) => entries.filter((one) => one.isIntersecting).forEach((one) => {
  inView.unobserve(one.target);
  draw(one.target);
}), { rootMargin: "300px" });

// Charts below `root` are drawn when they come into view, and its tables are sorted by a click.
function attach(root) {
  root.querySelectorAll("th button").forEach((one) => one.addEventListener("click", () => sort(one.closest("th"))));
  root.querySelectorAll(".chart").forEach((one) => inView.observe(one));
}

attach(document);
