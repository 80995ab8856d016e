const NEAR = 32;  // CSS pixels from which a point is pointed at
const LIFT = 1.15;  // room above the largest value

// ---- numbers as text ----

const three = (x) => (Math.abs(x) >= 99.95 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3))));
function time(s) {
  if (s === null || s === undefined) return "\u2013";
  if (s === 0) return "0";
  if (s >= 99.95 * 60) return three(s / 3600) + "\u2009h";
  if (s >= 99.95) return three(s / 60) + "\u2009min";
  if (s >= 0.9995) return three(s) + "\u2009s";
  if (s >= 0.9995e-3) return three(s * 1e3) + "\u2009ms";
  return three(s * 1e6) + "\u2009µs";
}
const count = (n) => (n >= 999500 ? three(n / 1e6) + "M" : n >= 9999.5 ? three(n / 1e3) + "k" : three(n));
const signed = (log) => {
  const ratio = Math.exp(log);
  if (Math.abs(log) < 1e-9) return "0";
  return ratio >= 2 ? three(ratio) + "×" : (ratio > 1 ? "+" : "\u2212") + three(Math.abs(ratio - 1) * 100) + "\u2009%";
};
const ofNines = (x) => (x >= 9 ? "max" : "p" + Number((100 * (1 - 10 ** -x)).toFixed(Math.max(1, Math.ceil(x)))));
const TEXT = { clock: (x) => three(x) + "\u2009s", latency: time, number: count, near: count, share: (x) => three(x * 100) + "\u2009%", percentile: ofNines, change: signed };
const text = (axis, value) => (axis.kind === "category" ? axis.names[value] || "" : TEXT[axis.kind](value));

// ---- axes ----

function even(low, high, most) {
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = power * ([1, 2, 5, 10].find((s) => s * power >= rough) || 10), found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}
const STOPS = [0, 0.30103, 1, 1.30103, 2, 3, 4, 5, 6, 7, 8];
const CHANGES = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95];

function changes(low, high, most) {
  const values = [0, ...CHANGES.flatMap((c) => [Math.log(1 - c), Math.log(1 + c)]), ...[2, 3, 5, 10, 20].map(Math.log)];
  const inside = values.filter((v) => v >= low && v <= high).sort((a, b) => a - b), room = (high - low) / Math.max(most, 2), kept = [0];
  for (const value of inside.sort((a, b) => Math.abs(b) - Math.abs(a))) if (kept.every((k) => Math.abs(k - value) >= room)) kept.push(value);
  return kept.filter((v) => v >= low && v <= high).sort((a, b) => a - b);
}

function stops(axis, low, high, most) {
  if (axis.kind === "latency") return decades(low, high, most);
  if (axis.kind === "percentile") return STOPS.filter((x) => x >= low && x <= high && (most > 7 || Number.isInteger(x) || x < 1));
  if (axis.kind === "category") return axis.names.map((_, i) => i);
  if (axis.kind === "change") return changes(low, high, most);
  return even(low, high, most);
}

/** From the smallest to the largest of what is shown; each kind keeps what makes it readable. */
function range(axis, values) {
  const known = values.filter((v) => v !== null && v !== undefined && (axis.kind !== "latency" || v > 0));
  if (axis.low !== null) known.push(axis.low);
  if (axis.high !== null) known.push(axis.high);
  let low = Infinity, high = -Infinity;
  for (const value of known) { if (value < low) low = value; if (value > high) high = value; }
  if (!known.length) [low, high] = axis.kind === "latency" ? [1e-3, 1] : [0, 1];
  switch (axis.kind) {
    case "latency": return [low / 1.25, Math.max(high * 1.3, low * 2)];
    case "clock": return [Math.min(0, low), high * 1.01 || 1];
    case "percentile": return [Math.max(0, low), Math.max(high, 2)];
    case "category": return [-0.6, axis.names.length - 0.4];
    case "change": { const far = Math.max(Math.abs(low), Math.abs(high), 0.03) * 1.1; return [Math.min(low * 1.12, -far / 6), Math.max(high * 1.12, far / 6)]; }
    case "near": { const room = (high - low || high || 1) * 0.06; return [Math.max(0, low - room), high + room]; }
    case "share": { const room = Math.max(high - low, 0.01) * 0.1; return [Math.max(0, low - room), Math.min(1, high) + room]; }
    default: return [Math.min(0, low), high * LIFT || 1];
  }
}

const uplotAxis = (axis, self, side) => ({
  stroke: ink("soft"), font: `12px ${family()}`, grid: { stroke: ink("grid"), width: 1 }, ticks: { show: false }, gap: 6,
  size: side === "x" ? 28 : axis.kind === "category" ? Math.min(190, 14 + Math.max(...axis.names.map((n) => n.length)) * 7) : 58,
  label: axis.label || undefined, labelSize: axis.label ? 18 : 0, labelFont: `12px ${family()}`,
  splits: () => stops(axis, ...self[side], side === "x" ? Math.max(2, self.box.clientWidth / 74) : self.height / 34),
  filter: (u, s) => s, values: (u, s) => s.map((v) => text(axis, v)),
});

// ---- one figure ----

class Figure {
  constructor(section, chart) {
    this.section = section;
    this.chart = chart;
    this.height = chart.height;
    this.box = section.querySelector(".chart");
    this.box.style.height = chart.height + "px";
    this.view = chart.views[0];
    this.off = new Set();
    this.plot = null;
    this.tabs();
    new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.box.clientWidth, height: this.height })).observe(this.box);
  }

  tabs() {
    if (this.chart.views.length < 2) return;
    const list = this.section.querySelector(".tabs"), all = this.chart.views;
    const choose = (view, focus) => {
      this.view = view;
      [...list.children].forEach((tab, i) => {
        tab.setAttribute("aria-selected", String(all[i] === view));
        tab.tabIndex = all[i] === view ? 0 : -1;
        if (all[i] === view && focus) tab.focus();
      });
      this.draw();
    };
    for (const view of all) {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", String(view === this.view));
      tab.tabIndex = view === this.view ? 0 : -1;
      tab.textContent = view.name;
      tab.addEventListener("click", () => choose(view));
      list.append(tab);
    }
    list.addEventListener("keydown", (event) => {
      const at = all.indexOf(this.view), next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      choose(all[(next + all.length) % all.length], true);
    });
  }

  keys() {
    this.section.querySelector(".keys").replaceChildren(...this.view.curves.map((curve) => {
      const key = document.createElement("button"), sign = document.createElement("i");
      key.type = "button";
      key.setAttribute("aria-pressed", String(!this.off.has(curve.name)));
      sign.className = curve.style;
      sign.style.color = sign.style.borderColor = `var(--${curve.colour})`;
      key.append(sign, curve.name);
      key.addEventListener("click", () => { this.off.has(curve.name) ? this.off.delete(curve.name) : this.off.add(curve.name); this.draw(); });
      return key;
    }));
  }

  draw() {
    const { view } = this, held = document.activeElement, index = [...this.section.querySelectorAll(".keys button")].indexOf(held);
    if (this.plot) this.plot.destroy();
    this.keys();
    if (index >= 0) this.section.querySelectorAll(".keys button")[index]?.focus();
    this.shown = view.curves.filter((curve) => !this.off.has(curve.name));
    const marks = (side) => view.marks.filter((mark) => mark.axis === side).map((mark) => mark.at);
    const spread = view.y.kind === "category" ? this.shown.flatMap((curve) => [...curve.low, ...curve.high]) : [];
    this.x = range(view.x, [...this.shown.flatMap((curve) => curve.xs), ...spread, ...(view.x.kind === "number" ? marks("x") : [])]);
    this.y = range(view.y, [...this.shown.flatMap((curve) => (view.y.kind === "category" ? curve.ys : [...curve.ys, ...curve.low, ...curve.high])), ...marks("y")]);
    this.beside = crowded(view, this.shown);
    this.box.setAttribute("aria-label", view.alt);
    this.say("");
    const hidden = { show: true, paths: () => null, points: { show: false } };
    this.plot = new uPlot({
      width: Math.max(this.box.clientWidth, 120), height: this.height,
      scales: {
        x: { time: false, distr: view.x.kind === "latency" ? 3 : 1, range: () => this.x },
        y: { distr: view.y.kind === "latency" ? 3 : 1, dir: view.y.kind === "category" ? -1 : 1, range: () => this.y },
      },
      axes: [uplotAxis(view.x, { x: this.x, box: this.box, height: this.height }, "x"), uplotAxis(view.y, { y: this.y, box: this.box, height: this.height }, "y")],
      series: [{}, hidden], legend: { show: false }, padding: [view.marks.some((mark) => mark.axis === "x") ? 20 : 8, 16, 0, 0],
      cursor: { drag: { x: false, y: false, setScale: false }, x: false, y: false, points: { show: false } },
      hooks: { drawClear: [(u) => this.bands(u)], draw: [(u) => this.paint(u)], setCursor: [(u) => this.point(u)] },
    }, [this.x, [this.y[0], this.y[0]]], this.box);
  }

  /** Of a curve beside the others, around 0. */
  place(n) { return this.beside ? n - (this.shown.length - 1) / 2 : 0; }

  bands(u) {
    const c = u.ctx, { top, height } = u.bbox;
    c.save();
    c.fillStyle = ink("track");
    for (const band of this.view.bands) {
      const left = u.valToPos(band.start, "x", true), right = u.valToPos(band.stop, "x", true);
      c.fillRect(left, top, Math.max(right - left, 2 * devicePixelRatio), height);
    }
    c.restore();
  }

  paint(u) {
    const c = u.ctx, scale = devicePixelRatio || 1;
    c.save();
    c.beginPath();
    c.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    c.save();
    c.clip();
    this.shown.forEach((curve, i) => PAINT[curve.style](u, c, scale, curve, this.place(i), this.view));
    c.restore();
    for (const mark of this.view.marks) this.mark(u, c, scale, mark);
    c.restore();
  }

  mark(u, c, scale, mark) {
    const { left, top, width, height } = u.bbox, at = u.valToPos(mark.at, mark.axis, true);
    const inside = mark.axis === "x" ? at >= left && at <= left + width : at >= top && at <= top + height;
    if (!inside) return;
    c.strokeStyle = c.fillStyle = ink(mark.colour);
    c.lineWidth = scale;
    c.setLineDash([5 * scale, 4 * scale]);
    c.beginPath();
    if (mark.axis === "x") { c.moveTo(at, top); c.lineTo(at, top + height); }
    else { c.moveTo(left, at); c.lineTo(left + width, at); }
    c.stroke();
    c.setLineDash([]);
    c.font = `${11 * scale}px ${family()}`;
    c.textBaseline = "bottom";
    if (mark.axis === "x") { c.textAlign = at > left + width * 0.8 ? "right" : "left"; c.fillText(mark.name, at, top - 3 * scale); }
    else { c.textAlign = "left"; c.fillText(mark.name, left + 5 * scale, at - 3 * scale); }
  }

  point(u) {
    const { left, top } = u.cursor;
    if (left === null || left === undefined || left < 0) return this.say("");
    let best = null, nearest = NEAR ** 2;
    this.shown.forEach((curve, n) => {
      const [dx, dy] = curve.style === "interval" ? shift(this.view, this.place(n)) : [0, 0];
      for (let i = 0; i < curve.xs.length; i++) {
        if (curve.ys[i] === null) continue;
        const away = (u.valToPos(curve.xs[i], "x") + dx - left) ** 2 + (u.valToPos(curve.ys[i], "y") + dy - top) ** 2;
        if (away < nearest) [best, nearest] = [[curve, i], away];
      }
    });
    if (!best) return this.say("");
    const [curve, i] = best, { x, y } = this.view, value = x.kind === "category" || y.kind !== "category" ? y : x;
    const spread = curve.low.length && curve.low[i] !== null ? ` (${text(value, curve.low[i])} to ${text(value, curve.high[i])})` : "";
    this.say(`${curve.name}: ${text(x, curve.xs[i])}, ${text(y, curve.ys[i])}${spread}`);
  }

  say(words) {
    const note = this.section.querySelector(".pick");
    const shown = words || this.view.note || "";
    if (note.textContent !== shown) note.textContent = shown;
  }
}

// ---- how a curve is drawn; n: its place among those shown, around 0 ----

function each(u, curve, visit) {
  for (let i = 0; i < curve.xs.length; i++)
    visit(curve.ys[i] === null ? null : u.valToPos(curve.xs[i], "x", true), curve.ys[i] === null ? null : u.valToPos(curve.ys[i], "y", true), i);
}

function trace(u, curve, steps) {
  const path = new Path2D();
  let before = null;
  each(u, curve, (x, y) => {
    if (x === null || !Number.isFinite(y)) { before = null; return; }
    if (before === null) path.moveTo(x, y);
    else { if (steps) path.lineTo(x, before); path.lineTo(x, y); }
    before = y;
  });
  return path;
}

function stroke(u, c, scale, curve, dash, steps) {
  c.strokeStyle = ink(curve.colour);
  c.lineWidth = (dash.length ? 1.6 : 2) * scale;
  c.lineJoin = "round";
  c.setLineDash(dash.map((d) => d * scale));
  c.stroke(trace(u, curve, steps));
  c.setLineDash([]);
}

/** Whether a category has intervals of more than one curve. */
function crowded(view, curves) {
  const side = view.y.kind === "category" ? "ys" : "xs", seen = new Set();
  for (const curve of curves) {
    if (curve.style !== "interval") continue;
    for (const at of new Set(curve[side])) {
      if (seen.has(at)) return true;
      seen.add(at);
    }
  }
  return false;
}

/** Intervals of several curves at one category stand beside each other. */
const shift = (view, n) => (view.y.kind === "category" ? [0, n * 11] : [n * 11, 0]);

const PAINT = {
  line: (u, c, scale, curve) => {
    if (curve.low.length) ribbon(u, c, curve);
    stroke(u, c, scale, curve, [], false);
    if (curve.xs.length <= 40) dots(u, c, scale, curve, 3.2, 1);
  },
  dashed: (u, c, scale, curve) => stroke(u, c, scale, curve, [6, 4], false),
  step: (u, c, scale, curve) => stroke(u, c, scale, curve, [], true),
  area: (u, c, scale, curve) => {
    const path = trace(u, curve, true), last = curve.xs.length - 1;
    if (last < 0) return;
    path.lineTo(u.valToPos(curve.xs[last], "x", true), u.bbox.top + u.bbox.height);
    path.lineTo(u.valToPos(curve.xs[0], "x", true), u.bbox.top + u.bbox.height);
    path.closePath();
    c.globalAlpha = 0.4;
    c.fillStyle = ink(curve.colour);
    c.fill(path);
    c.globalAlpha = 1;
    stroke(u, c, scale * 0.75, curve, [], true);
  },
  points: (u, c, scale, curve) => dots(u, c, scale, curve, curve.xs.length > 2000 ? 1.7 : 2.6, curve.xs.length > 400 ? 0.55 : 0.85),
  interval: (u, c, scale, curve, n, view) => {
    const [dx, dy] = shift(view, n).map((d) => d * scale), flat = view.y.kind === "category", side = flat ? "x" : "y";
    c.strokeStyle = c.fillStyle = ink(curve.colour);
    c.lineWidth = 2 * scale;
    each(u, curve, (x, y, i) => {
      if (x === null) return;
      const low = curve.low[i], high = curve.high[i];
      if (low !== null && low !== undefined && high !== null && high !== undefined) {
        const from = u.valToPos(low, side, true), to = u.valToPos(high, side, true);
        c.beginPath();
        if (flat) { c.moveTo(from, y + dy); c.lineTo(to, y + dy); } else { c.moveTo(x + dx, from); c.lineTo(x + dx, to); }
        c.stroke();
      }
      c.beginPath();
      c.arc(x + dx, y + dy, 4.5 * scale, 0, 7);
      c.fill();
    });
  },
};

function dots(u, c, scale, curve, size, alpha) {
  c.fillStyle = ink(curve.colour);
  c.globalAlpha = alpha;
  each(u, curve, (x, y) => {
    if (x === null || !Number.isFinite(y)) return;
    c.beginPath();
    c.arc(x, y, size * scale, 0, 7);
    c.fill();
  });
  c.globalAlpha = 1;
}

function ribbon(u, c, curve) {
  const path = new Path2D(), last = curve.xs.length - 1;
  for (let i = 0; i <= last; i++) path[i ? "lineTo" : "moveTo"](u.valToPos(curve.xs[i], "x", true), u.valToPos(curve.high[i] ?? curve.ys[i], "y", true));
  for (let i = last; i >= 0; i--) path.lineTo(u.valToPos(curve.xs[i], "x", true), u.valToPos(curve.low[i] ?? curve.ys[i], "y", true));
  c.globalAlpha = 0.16;
  c.fillStyle = ink(curve.colour);
  c.fill(path);
  c.globalAlpha = 1;
}

// ---- the page ----

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };
const data = JSON.parse($("charts").textContent);
const figures = [...document.querySelectorAll("[data-chart]")].map((box) => new Figure(box.closest(".figure"), data[Number(box.dataset.chart)]));
const redraw = () => figures.forEach((figure) => figure.draw());
$("theme").hidden = false;
$("theme").addEventListener("click", () => {
  const root = document.documentElement, names = Object.keys(THEMES), next = names[(names.indexOf(root.dataset.theme || "") + 1) % names.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  $("theme").textContent = THEMES[next];
  $("theme").setAttribute("aria-label", "Colours: " + (next || "as the system"));
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
redraw();
