// The charts, drawn with uPlot.

const axisTime = (s) => { const [n, unit] = time(s); return n + "\u2009" + unit; };

class Chart {
  constructor(id, height, make) {
    this.box = $(id);
    this.height = height;
    this.make = make;
    this.plot = null;
    this.kind = "";
    this.pointed = false;
    new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.box.clientWidth, height: this.height })).observe(this.box);
  }
  /** Draws data; kind: charts of another kind are made anew. none: what to say where there is nothing to draw. */
  set(kind, data, none) {
    const old = this.box.querySelector(".none");
    if (old) old.remove();
    if (none) this.box.append(el("p", { class: "none" }, none));
    if (this.plot && (kind !== this.kind || none)) this.forget();
    if (none) return;
    this.kind = kind;
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot({ width: Math.max(this.box.clientWidth, 120), height: this.height, ...this.make(this) }, data, this.box);
  }
  forget() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
  }
}

const font = () => `12px ${family()}`;
const axis = (more) => ({ stroke: ink("soft"), font: font(), grid: { stroke: ink("grid"), width: 1 }, ticks: { show: false }, gap: 6, ...more });
const clocks = () => axis({
  space: 64, size: 30, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400],
  values: (u, splits, a, space, step) => splits.map((t) => new Date(t * 1000).toLocaleTimeString([], step < 60 ? { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false } : { hour: "2-digit", minute: "2-digit", hour12: false })),
});
const hidden = { show: true, paths: () => null, points: { show: false } };
const noSelect = { drag: { x: false, y: false, setScale: false } };

// -- slow gaps --

function chart_slow() {
  const chart = new Chart("slow-chart", 260, (self) => ({
    scales: { x: { time: true, range: () => self.span }, y: { distr: 3, range: () => self.range } },
    axes: [clocks(), axis({ size: 58, splits: () => decades(...self.range, 6), filter: (u, s) => s, values: (u, s) => s.map(axisTime) })],
    series: [{}, hidden], legend: { show: false },
    cursor: { ...noSelect, x: false, y: false, points: { show: false } },
    hooks: { drawClear: [(u) => paintThinned(u, self.since, self.before)], draw: [(u) => paintGaps(u, self.gaps)], setCursor: [(u) => pointAtGap(u, self)] },
  }));
  chart.draw = function (d, gaps) {
    this.gaps = [...gaps].sort((a, b) => a.t - b.t);
    this.span = [d.taken - Math.max(d.window === "all" && gaps.length ? d.taken - this.gaps[0].t : d.seconds, 10) * 1.02, d.taken];
    [this.since, this.before] = [d.slow_since, longestOnly(d)];
    const sizes = this.gaps.map((gap) => gap.gap);
    this.range = [Math.min(...sizes, 0.05) / 1.4, Math.max(...sizes, 0.05) * 1.4];
    this.set("slow", [this.gaps.map((gap) => gap.t), sizes], gaps.length ? "" : d.slow.length ? "All causes are hidden." : "No slow gap in this window.");
    const worst = this.gaps.length ? this.gaps.reduce((a, b) => (a.gap > b.gap ? a : b)) : null;
    this.box.setAttribute("aria-label", worst ? `${gaps.length} slow gaps; the longest ${timeText(worst.gap)}, ${waited(worst)}` : "No slow gaps");
  };
  return chart;
}

/** Before this moment there were others than those that are kept: an empty place would say that there were none. */
function paintThinned(u, since, words) {
  if (!since) return;
  const c = u.ctx, scale = devicePixelRatio || 1, { left, top, height: tall } = u.bbox, wide = Math.min(u.valToPos(since, "x", true) - left - 8 * scale, u.bbox.width);
  if (wide <= 0) return;
  c.save();
  c.fillStyle = ink("track");
  c.fillRect(left, top, wide, tall);
  c.fillStyle = ink("soft");
  c.font = `${11 * scale}px ${family()}`;
  c.textAlign = "left";
  c.textBaseline = "alphabetic";
  if (c.measureText(words).width + 16 * scale < wide) c.fillText(words, left + 8 * scale, top + 18 * scale);
  c.restore();
}

function paintGaps(u, gaps) {
  const c = u.ctx, scale = devicePixelRatio || 1;
  c.save();
  const order = [...gaps].sort((a, b) => isRest(b.cause) - isRest(a.cause));  // what has a cause lies above
  for (const gap of order) {
    const [, colour, shape] = CAUSES[gap.cause] || CAUSES.rest;
    const picked = keyOf(gap) === state.picked, size = (picked ? 1.35 : 0.75) * scale;
    c.setTransform(size, 0, 0, size, u.valToPos(gap.t, "x", true) - 6 * size, u.valToPos(gap.gap, "y", true) - 6 * size);
    const path = new Path2D(SHAPES[shape]);
    if (isLine(shape)) { c.strokeStyle = ink(colour); c.lineWidth = 2; c.stroke(path); }
    else { c.fillStyle = ink(colour); c.globalAlpha = 0.85; c.fill(path); c.globalAlpha = 1; }
    if (picked) { c.strokeStyle = ink("ink"); c.lineWidth = 1.5; c.stroke(path); }
  }
  c.restore();
}

function pointAtGap(u, chart) {
  const { left, top } = u.cursor;
  if (left === null || left === undefined || left < 0) return;
  let best = null, nearest = 28 ** 2;
  for (const gap of chart.gaps) {
    const away = (u.valToPos(gap.t, "x") - left) ** 2 + (u.valToPos(gap.gap, "y") - top) ** 2;
    if (away < nearest) [best, nearest] = [gap, away];
  }
  if (best) pick(best);
}

function pick(gap) {
  if (state.picked === keyOf(gap)) return;
  state.picked = keyOf(gap);
  pickShown();
  if (charts.slow.plot) charts.slow.plot.redraw(false);
}

function stepGap(event) {
  const gaps = charts.slow.gaps || [], step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const ends = { Home: 0, End: gaps.length - 1 }[event.key];
  if (!gaps.length || (step === undefined && ends === undefined)) return;
  event.preventDefault();
  const at = gaps.findIndex((gap) => keyOf(gap) === state.picked);
  const next = ends !== undefined ? ends : at < 0 ? (step > 0 ? 0 : gaps.length - 1) : Math.min(Math.max(at + step, 0), gaps.length - 1);
  pick(gaps[next]);
}

// -- distribution: x is the bin's number, 8 an octave; y the logarithm of the count, so that one sample is seen --

const LIFT = 0.4;
const height = (n) => (n > 0 ? Math.log10(n) + LIFT : 0);
const place = (s) => 8 * Math.log2(s);

function chart_dist() {
  const chart = new Chart("dist-chart", 250, (self) => ({
    scales: { x: { time: false, range: () => self.span }, y: { range: () => [0, self.top] } },
    axes: [
      axis({ size: 30, splits: () => decades(2 ** (self.span[0] / 8), 2 ** (self.span[1] / 8), Math.max(3, self.box.clientWidth / 62)).map(place), filter: (u, s) => s, values: (u, s) => s.map((x) => axisTime(2 ** (x / 8))) }),
      axis({ size: 46, splits: () => [...Array(Math.ceil(self.top)).keys()].map((power) => power + LIFT).filter((y) => y <= self.top), filter: (u, s) => s, values: (u, s) => s.map((y) => count(Math.round(10 ** (y - LIFT)))) }),
    ],
    series: [{}, hidden], legend: { show: false }, padding: [30, 18, 0, 0],
    cursor: { ...noSelect, y: false, points: { show: false } },
    hooks: { draw: [(u) => paintBins(u, self)], setCursor: [(u) => pointAtBin(u, self)] },
  }));
  chart.draw = function (d) {
    const h = (this.h = d.latency[state.dist]);
    this.other = state.dist === "itl" ? d.latency.itl_without_gc : null;
    this.bound = d.slo[state.dist];
    const last = h.bins.first + h.bins.counts.length, low = this.other && this.other.count ? Math.min(h.bins.first, this.other.bins.first) : h.bins.first;
    const middle = (low + last) / 2, half = Math.max((last - low) / 2 + 2, 10);
    this.span = [middle - half, middle + half];
    this.top = Math.max(height(Math.max(...h.bins.counts, ...(this.other ? this.other.bins.counts : []))), 1) * 1.06;
    this.set("dist", [[this.span[0], this.span[1]], [0, 0]], h.count ? "" : "No sample in this window.");
  };
  return chart;
}

function outline(u, bins, close) {
  const path = new Path2D(), y = (n) => u.valToPos(height(n), "y", true), x = (at) => u.valToPos(at, "x", true);
  path.moveTo(x(bins.first), y(0));
  bins.counts.forEach((n, i) => { path.lineTo(x(bins.first + i), y(n)); path.lineTo(x(bins.first + i + 1), y(n)); });
  path.lineTo(x(bins.first + bins.counts.length), y(0));
  if (close) path.closePath();
  return path;
}

function paintBins(u, chart) {
  const c = u.ctx, scale = devicePixelRatio || 1;
  const paint = (bins, colour, alpha) => { c.globalAlpha = alpha; c.fillStyle = ink(colour); c.fill(outline(u, bins, true)); c.globalAlpha = 1; };
  c.save();
  if (chart.other && chart.other.count) {
    paint(chart.h.bins, "gc2", 1);
    paint(chart.other.bins, "card", 1);  // what is left to see of the first is what pauses added
    paint(chart.other.bins, "accent", 0.6);
  } else paint(chart.h.bins, "accent", 0.6);
  c.font = `${11 * scale}px ${family()}`;
  c.textAlign = "left";
  c.textBaseline = "bottom";
  let free = -1e9;
  for (const [name, value, dashed] of [["p50", chart.h.p50], ["p99", chart.h.p99], ["p99.9", chart.h.p999], ["SLO", chart.bound, true]]) {
    if (!value || place(value) < chart.span[0] || place(value) > chart.span[1]) continue;
    const x = u.valToPos(place(value), "x", true), { top, height: tall } = u.bbox;
    c.strokeStyle = c.fillStyle = ink(dashed ? "good" : "soft");
    c.lineWidth = scale;
    c.setLineDash(dashed ? [5 * scale, 4 * scale] : []);
    c.beginPath(); c.moveTo(x, top); c.lineTo(x, top + tall); c.stroke();
    const width = c.measureText(name).width, aside = { p50: 1, "p99.9": 0 }[name] ?? 0.5;  // of the line: left, right
    const left = Math.min(x - width * aside, u.bbox.left + u.bbox.width - width);
    if (dashed) { c.fillText(name, left, top - 15 * scale); continue; }
    if (left > free) { c.fillText(name, left, top - 2 * scale); free = left + width + 8 * scale; }
  }
  c.restore();
}

function pointAtBin(u, chart) {
  const { left } = u.cursor;
  chart.pointed = left !== null && left !== undefined && left >= 0;
  if (!state.data) return;
  if (!chart.pointed) return distributionNote(state.data);
  const at = Math.floor(u.posToVal(left, "x")), bins = chart.h.bins, n = bins.counts[at - bins.first] || 0;
  $("dist-note").textContent = `${timeText(2 ** (at / 8))} to ${timeText(2 ** ((at + 1) / 8))}: ${n} of ${chart.h.count} (${percent(n / chart.h.count)} %)`;
}

// -- load --

function chart_load() {
  const chart = new Chart("load-chart", 250, (self) => (state.load === "time" ? overTime(self) : byLoad(self)));
  chart.draw = function (d) {
    this.rows = d.load;
    const some = d.load.some((row) => row[1] + row[2] + row[3] > 0), none = "No request finished in this window.";
    if (state.load === "time") {
      this.span = [d.load.length ? d.load[0][0] - d.bin : 0, d.taken];
      this.top = Math.max(...d.load.map((row) => Math.max(row[3], row[1])), 0) * 1.1 || 1;
      return this.set("time", [0, 1, 3].map((i) => d.load.map((row) => row[i])), some ? "" : none);
    }
    const x = state.load === "rate" ? (row) => row[1] + row[2] : (row) => row[4];
    this.points = d.load.filter((row) => x(row) !== null && (row[1] + row[2] > 0)).map((row) => [x(row), row[1], row[1] + row[2]]);
    this.healthy = state.load === "flight" ? d.healthy.streams : null;
    this.far = Math.max(...this.points.map((point) => point[0]), Math.min(this.healthy || 0, 1e6), 1) * 1.08;
    this.top = Math.max(...this.points.map((point) => point[2]), 1) * 1.08;
    this.set(state.load, [[0, this.far], [0, 0]], this.points.length ? "" : state.load === "flight" && some ? "Recorded from now on: keep this page open." : none);
  };
  return chart;
}

const perSecond = () => axis({ size: 46, values: (u, s) => s.map((v) => count(v)) });

function overTime(self) {
  return {
    scales: { x: { time: true, range: () => self.span }, y: { range: () => [0, self.top] } },
    axes: [clocks(), perSecond()],
    series: [{}, { stroke: ink("good"), width: 1.5, fill: ink("good") + "55", points: { show: false } }, { stroke: ink("ink"), width: 1.5, points: { show: false } }],
    legend: { show: false }, cursor: { ...noSelect, y: false, points: { size: 6 } },
    hooks: { setCursor: [(u) => pointAtTime(u, self)] },
  };
}

function pointAtTime(u, chart) {
  const row = u.cursor.idx === null || u.cursor.idx === undefined || u.cursor.left < 0 ? null : chart.rows[u.cursor.idx];
  chart.pointed = Boolean(row);
  if (!state.data) return;
  if (!row) return loadNote(state.data);
  $("load-note").textContent = `${clock(row[0])}: ${count(row[1])} good, ${count(row[2])} missed, ${count(row[3])} finished per second${row[4] === null ? "" : `, ${count(row[4])} in flight`}`;
}

function byLoad(self) {
  const rate = state.load === "rate";
  return {
    scales: { x: { time: false, range: () => [0, self.far] }, y: { range: () => [0, self.top] } },
    axes: [axis({ size: 26, label: rate ? "requests judged per second" : "requests in flight", labelSize: 20, labelFont: font(), values: (u, s) => s.map((v) => count(v)) }),
      { ...perSecond(), label: "good per second", labelSize: 20, labelFont: font() }],
    series: [{}, hidden], legend: { show: false }, cursor: { show: false },
    hooks: { draw: [(u) => paintPoints(u, self, rate)] },
  };
}

function paintPoints(u, chart, rate) {
  const c = u.ctx, scale = devicePixelRatio || 1, x = (v) => u.valToPos(v, "x", true), y = (v) => u.valToPos(v, "y", true);
  c.save();
  if (rate) {
    const end = Math.min(chart.far, chart.top);
    c.strokeStyle = ink("soft"); c.setLineDash([5 * scale, 4 * scale]); c.lineWidth = scale;
    c.beginPath(); c.moveTo(x(0), y(0)); c.lineTo(x(end), y(end)); c.stroke();
  }
  if (chart.healthy) {
    c.strokeStyle = c.fillStyle = ink("soft"); c.setLineDash([5 * scale, 4 * scale]); c.lineWidth = scale;
    c.beginPath(); c.moveTo(x(chart.healthy), y(0)); c.lineTo(x(chart.healthy), y(chart.top)); c.stroke();
    c.font = `${11 * scale}px ${family()}`;
    c.textAlign = "right"; c.textBaseline = "top";
    c.fillText("healthy", x(chart.healthy) - 5 * scale, y(chart.top) + 2 * scale);
  }
  c.setLineDash([]);
  c.fillStyle = ink("good");
  c.strokeStyle = ink("gc2");
  c.lineWidth = 2 * scale;
  chart.points.forEach(([at, good, judged], i) => {
    c.globalAlpha = 0.25 + (0.75 * (i + 1)) / chart.points.length;
    c.beginPath(); c.moveTo(x(at), y(good)); c.lineTo(x(at), y(judged)); c.stroke();
    c.beginPath(); c.arc(x(at), y(good), 4 * scale, 0, 7); c.fill();
  });
  c.restore();
}
