"use strict";
(() => {
  const POLL_MS = 2000, SLOWEST_POLL_MS = 30000;
  const KEPT = 256;  // slow gaps
  const CAUSES = {
    gc0: ["generation 0", "gc0", "circle"], gc1: ["generation 1", "gc1", "square"], gc2: ["generation 2", "gc2", "diamond"],
    gc_full: ["full collection", "gc2", "diamond"], gc_increment: ["incremental collection", "gc0", "circle"],
    policy: ["tailwatch's own pause", "policy", "cross"], client: ["a slow client", "client", "down"],
    accept: ["being accepted", "accept", "up"], rest: ["model, queue, unexplained", "rest", "ring"],
    unknown: ["unknown: overwritten", "rest", "plus"],
  };
  const LATENCIES = [["ttft", "TTFT"], ["itl", "ITL"], ["itl_without_gc", "ITL without GC"], ["tpot", "TPOT"], ["e2e", "E2E"]];
  const DISTRIBUTIONS = [["ttft", "TTFT"], ["itl", "ITL"], ["tpot", "TPOT"], ["e2e", "E2E"]];
  const LOADS = [["time", "over time"], ["rate", "by rate"], ["flight", "by in flight"]];
  const NEW = "\u2013";
  const $ = (id) => document.getElementById(id);

  const state = { window: "5m", paused: false, token: "", data: null, off: new Set(), dist: "itl", load: "time", picked: null, late: 0 };
  let timer = 0, waiting = null;

  // ---- numbers as text ----

  const three = (x) => (x >= 99.95 ? x.toFixed(0) : String(Number(x.toPrecision(3))));

  /** Seconds with three digits: [number, unit]. */
  function time(s) {
    if (s === null || s === undefined) return [NEW, ""];
    if (s === 0) return ["0", "ms"];
    if (s >= 99.95 * 60) return [three(s / 3600), "h"];
    if (s >= 99.95) return [three(s / 60), "min"];
    if (s >= 0.9995) return [three(s), "s"];
    if (s >= 0.9995e-3) return [three(s * 1e3), "ms"];
    return [three(s * 1e6), "µs"];
  }
  const timeText = (s) => time(s).join("\u00a0").trim();

  function count(n) {
    if (n >= 999500) return three(n / 1e6) + "M";
    if (n >= 9999.5) return three(n / 1e3) + "k";
    return n >= 100 ? n.toFixed(0) : String(Number(n.toPrecision(3)));
  }
  const percent = (share) => (share === null ? NEW : (share > 0.9999 && share < 1 ? "99.99" : String(Number((share * 100).toFixed(2)))));
  /** As long as a window: whole seconds will do. */
  function span(s) {
    const whole = Math.round(s), minutes = Math.floor(whole / 60);
    if (minutes < 2) return `${whole}\u00a0s`;
    if (minutes < 60) return whole % 60 ? `${minutes}\u00a0min ${whole % 60}\u00a0s` : `${minutes}\u00a0min`;
    return `${Math.floor(minutes / 60)}\u00a0h ${minutes % 60}\u00a0min`;
  }
  const clock = (t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false });

  // ---- the document; text is always text ----

  function el(tag, attributes = {}, ...children) {
    const node = tag === "svg" || tag === "path" ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") Object.assign(node.style, value);
      else if (value !== null && value !== false) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  /** A number with its unit; the exact value stands in its attribute. */
  const quantity = (value, text, unit = "") => {
    const shown = el("data", { value: value === null || value === undefined ? "" : String(value) }, text);
    if (unit) shown.append(el("small", {}, "\u00a0" + unit));
    return shown;
  };
  const seconds = (s) => quantity(s, ...time(s));
  const fill = (id, ...children) => $(id).replaceChildren(...children);

  const SHAPES = {
    circle: "M6 1a5 5 0 1 0 .01 0Z", square: "M1.5 1.5h9v9h-9Z", diamond: "M6 0 12 6 6 12 0 6Z",
    up: "M6 .5 11.8 11H.2Z", down: "M6 11.5 .2 1h11.6Z", ring: "M6 1.5a4.5 4.5 0 1 0 .01 0Z",
    cross: "M1.5 1.5l9 9m0-9l-9 9", plus: "M6 .5v11M.5 6h11",
  };
  const isLine = (shape) => shape === "cross" || shape === "plus" || shape === "ring";
  function mark(cause) {
    const [, colour, shape] = CAUSES[cause] || CAUSES.rest;
    const paint = `var(--${colour})`;
    const style = isLine(shape) ? { fill: "none", stroke: paint, strokeWidth: "2.2" } : { fill: paint };
    return el("svg", { class: "mark", viewBox: "0 0 12 12", "aria-hidden": "true" }, el("path", { d: SHAPES[shape], style }));
  }

  // ---- asking ----

  async function ask(anyway = false) {
    clearTimeout(timer);
    if ((state.paused && !anyway) || document.hidden) return;
    if (waiting) waiting.abort();
    const asked = (waiting = new AbortController());
    const guard = setTimeout(() => asked.abort(), 15000);
    try {
      const place = location.pathname.replace(/\/+$/, "") + "/data?window=" + state.window;
      const headers = state.token ? { Authorization: "Bearer " + state.token } : {};
      const answer = await fetch(place, { headers, cache: "no-store", redirect: "error", signal: asked.signal });
      if (answer.status === 401) return signIn(state.token ? "The server rejected this token." : "");
      if (!answer.ok) throw new Error(answer.status === 403 ? await answer.text() : "HTTP status " + answer.status);
      const data = await answer.json();
      if (asked !== waiting) return;
      state.late = 0;
      show(data);
      if (!state.paused) say("live", "live");
    } catch (problem) {
      if (asked !== waiting) return;
      state.late += 1;
      say("away", "no answer: " + (problem.name === "TypeError" ? "the server is not reachable" : problem.name === "AbortError" ? "timeout" : problem.message.trim()));
    } finally {
      clearTimeout(guard);
      if (asked === waiting) {
        waiting = null;
        if (!$("sign-in").hidden || state.paused) clearTimeout(timer);
        else timer = setTimeout(ask, Math.min(POLL_MS * 2 ** state.late, SLOWEST_POLL_MS));
      }
    }
  }

  function say(name, text) {
    document.body.dataset.state = name;
    if ($("status-text").textContent !== text) $("status-text").textContent = text;
  }

  function signIn(problem) {
    state.token = "";
    store("tailwatch-token", "");
    $("numbers").hidden = $("empty").hidden = true;
    $("sign-in").hidden = false;
    $("sign-in-problem").textContent = problem;
    say("locked", "locked");
    $("token").focus();
  }

  function store(name, value, where = "sessionStorage") {
    try {
      if (value) window[where].setItem(name, value);
      else window[where].removeItem(name);
    } catch { /* a browser that keeps nothing */ }
  }
  function stored(name, where = "sessionStorage") {
    try { return window[where].getItem(name) || ""; } catch { return ""; }
  }

  /** From the fragment, which is sent to nobody and stands in no log; then it leaves the address. */
  function takeToken() {
    const found = new URLSearchParams(location.hash.slice(1)).get("token");
    if (found) {
      history.replaceState(null, "", location.pathname + location.search);
      store("tailwatch-token", found);
    }
    return found || stored("tailwatch-token");
  }

  // ---- showing ----

  function show(data) {
    state.data = data;
    const none = !data.opened && !data.latency.itl.count;
    $("sign-in").hidden = true;
    $("empty").hidden = !none;
    $("numbers").hidden = none;
    if (none) {
      $("try").textContent = `curl -N ${location.origin}/v1/completions \\\n  -H 'content-type: application/json' \\\n  -d '{"prompt": "hello", "max_tokens": 32, "stream": true}'`;
      return;
    }
    for (const part of [tiles, latency, slow, distribution, load, sources, processes]) part(data);
    fill("headline", ...data.headline.split("`").map((words, i) => (i % 2 ? el("code", {}, words) : words)), ".");
    const dropped = Object.entries(data.dropped);
    $("dropped").hidden = !dropped.length;
    $("dropped").textContent = "Dropped events and internal errors of tailwatch since the start: " + dropped.map(([name, n]) => `${name} ${n}`).join(", ");
  }

  function tiles(d) {
    const bounds = ["ttft", "tpot", "itl", "e2e"].filter((name) => d.slo[name]).map((name) => `${name.toUpperCase()}\u00a0≤\u00a0${timeText(d.slo[name])}`);
    fill("t-good", quantity(d.goodput, count(d.goodput), "req/s"));
    fill("t-good-sub", "of ", quantity(d.throughput, count(d.throughput)), " finished per second");
    fill("t-share", quantity(d.attainment, percent(d.attainment), d.attainment === null ? "" : "%"));
    $("t-share").className = d.attainment !== null && d.attainment < d.slo.attainment ? "bad" : "";
    fill("t-share-sub", `target: ${percent(d.slo.attainment)}\u00a0% with ${bounds.join(", ")}`);
    fill("t-flight", quantity(d.in_flight, count(d.in_flight), d.in_flight === 1 ? "request" : "requests"));
    const ended = d.outcomes.good + d.outcomes.miss + d.outcomes.excluded;
    const healthy = d.healthy.streams;
    fill("t-flight-sub", quantity(ended, count(ended)), " ended in this window", ...(d.waiting ? [", ", quantity(d.waiting, count(d.waiting)), " wait for a first token"] : []),
      ...(healthy === null ? [] : ["; healthy up to ", quantity(healthy, count(healthy))]));
    $("t-flight").className = healthy !== null && d.in_flight > healthy ? "bad" : "";
    fill("t-tokens", quantity(d.tokens, count(d.tokens), "per s"));
    fill("t-tokens-sub", d.models.length > 2 ? d.models.length + " models" : d.models.join(", ").slice(0, 60));
    const delay = d.sources.reduce((sum, row) => sum + row[2], 0), upto = d.sources.reduce((sum, row) => sum + row[3], 0);
    fill("t-delay", seconds(delay));
    fill("t-delay-sub", "summed over streams; up to ", seconds(upto));
    $("covers").textContent = d.window === "all" ? `since the start, ${span(d.seconds)}` : `the last ${span(d.seconds)}`;
  }

  function latency(d) {
    const itl = d.latency.itl, without = d.latency.itl_without_gc;
    fillRows("latency", LATENCIES.map(([key, name]) => {
      const h = d.latency[key], bound = d.slo[key];
      const head = el("th", { scope: "row" }, name);
      if (bound) head.append(el("span", {}, `SLO\u00a0≤\u00a0${timeText(bound)}${key === "itl" ? ", the longest" : ""}`));
      if (key === "itl_without_gc" && itl.p99 && without.p99 < itl.p99 * 0.995)
        head.append(el("span", {}, `p99 ${Math.round((1 - without.p99 / itl.p99) * 100)} % lower`));
      const cells = [h.p50, h.p90, h.p99, h.p999, h.max].map((s, i) => el("td", { class: i === 1 ? "wide" : null }, seconds(s)));
      return el("tr", { "data-key": key, class: key === "itl_without_gc" ? "minor" : null }, head, ...cells, el("td", { class: "wide" }, quantity(h.count, count(h.count))));
    }));
  }

  function fillRows(id, rows) { document.querySelector(`#${id} tbody`).replaceChildren(...rows); }

  const causeName = (cause) => (CAUSES[cause] || [cause])[0];
  const keyOf = (gap) => gap.t + "/" + gap.request + "/" + gap.token;

  function slow(d) {
    const counts = {};
    for (const gap of d.slow) counts[gap.cause] = (counts[gap.cause] || 0) + 1;
    const shown = Object.keys(CAUSES).filter((cause) => counts[cause]);
    const held = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.cause : null;
    fill("causes", ...shown.map((cause) => {
      const key = el("button", { type: "button", "aria-pressed": String(!state.off.has(cause)), "data-cause": cause }, mark(cause), causeName(cause), el("b", {}, String(counts[cause])));
      key.addEventListener("click", () => { state.off.has(cause) ? state.off.delete(cause) : state.off.add(cause); slow(state.data); });
      return key;
    }));
    if (held) $("causes").querySelector(`[data-cause="${CSS.escape(held)}"]`)?.focus();
    $("slow-note").textContent = d.slow.length ? `${d.slow.length} in this window${d.slow.length >= KEPT ? ", only the last are kept" : ""}` : "";
    const visible = d.slow.filter((gap) => !state.off.has(gap.cause));
    charts.slow.draw(d, visible);
    const longest = [...visible].sort((a, b) => b.gap - a.gap).slice(0, 10);
    fillRows("slow-table", longest.map((gap) => el("tr", {}, el("td", {}, seconds(gap.gap)), el("td", {}, mark(gap.cause), " " + waited(gap)),
      el("td", {}, clock(gap.t)), el("td", { class: "mono" }, gap.request || gap.trace || NEW), el("td", {}, gap.model))));
    pickShown();
  }

  const waited = (gap) => causeName(gap.cause) + (gap.source ? `, in the ${gap.source} process` : "");

  function pickShown() {
    const gap = state.data && state.data.slow.find((one) => keyOf(one) === state.picked);
    if (!gap) return fill("slow-pick", state.data && state.data.slow.length ? "Point at a gap, or focus the chart and press the arrow keys." : "");
    const what = gap.phase === "ttft" ? "to the first token" : `before token ${gap.token}`;
    const parts = [el("strong", {}, `${timeText(gap.gap)} ${what}`), `: ${waited(gap)}`];
    if (gap.delay) parts.push(`; delay about ${timeText(gap.delay)}`);
    if (gap.overlap) parts.push(`, up to ${timeText(gap.overlap)} in pauses`);
    if (gap.typical) parts.push(`; typical gap ${timeText(gap.typical)}`);
    parts.push(` · ${clock(gap.t)} · ${gap.model} ${gap.route}`);
    if (gap.request) parts.push(` · request ${gap.request}`);
    if (gap.trace) parts.push(` · trace ${gap.trace}`);
    fill("slow-pick", ...parts);
  }

  function distribution(d) {
    const name = DISTRIBUTIONS.find(([key]) => key === state.dist)[1], h = d.latency[state.dist];
    charts.dist.draw(d);
    $("dist-chart").setAttribute("aria-label", h.count
      ? `${name}, ${h.count} samples: half up to ${timeText(h.p50)}, 99 % up to ${timeText(h.p99)}, 99.9 % up to ${timeText(h.p999)}, the longest ${timeText(h.max)}` : `${name}: no sample`);
    if (!charts.dist.pointed) distributionNote(d);
  }

  function distributionNote(d) {
    const both = state.dist === "itl" && d.latency.itl.count;
    fill("dist-note", "Samples per bin of 9 %, both scales logarithmic.", both ? " Orange: delay by pauses. Blue: without GC." : "");
  }

  function load(d) {
    charts.load.draw(d);
    const now = d.load.length ? d.load[d.load.length - 1] : null;
    $("load-chart").setAttribute("aria-label", now
      ? `Requests per second, in steps of ${d.bin} s; last ${count(now[1])} good of ${count(now[3])} finished` : "No request finished yet");
    if (!charts.load.pointed) loadNote(d);
  }

  function loadNote(d) {
    const notes = {
      time: `Per second, in steps of ${d.bin} s. Filled: good. Line: finished.`,
      rate: `One point per ${d.bin} s; newer points are stronger. Orange: requests that missed the SLO. Dashed line: all requests good.`,
      flight: `One point per ${d.bin} s while this page was open. Orange: requests that missed the SLO.${d.healthy.streams ? ` Above ${count(d.healthy.streams)} in flight, TTFT grows faster.` : ""}`,
    };
    $("load-note").textContent = notes[state.load];
  }

  function sources(d) {
    const rows = d.sources.slice(0, 8), most = Math.max(...rows.map((row) => row[3]), 1e-12);
    if (!rows.length) return fill("sources", el("li", { class: "note" }, "No stream coincided with a pause of 50 µs or more."));
    fill("sources", ...rows.map(([role, cause, delay, upto]) => {
      const colour = `var(--${(CAUSES[cause] || CAUSES.rest)[1]})`;
      const bar = (value, name) => el("i", { class: name, style: { width: Math.min(100, (100 * value) / most) + "%", background: colour } });
      return el("li", { "data-source": role, "data-cause": cause }, el("span", { class: "what" }, mark(cause), `${role}: ${causeName(cause)}`),
        el("span", { class: "track", "aria-hidden": "true" }, bar(upto, "upto"), bar(delay, "")), el("span", { class: "value" }, "delay ", seconds(delay), " · up to ", seconds(upto)));
    }));
  }

  function processes(d) {
    const share = (row) => Object.values(row.paused).reduce((sum, s) => sum + s, 0) / Math.max(row.age, 1e-9);
    const most = Math.max(...d.processes.map(share), 1e-12);
    const rows = [...d.processes].sort((a, b) => b.lives - a.lives || share(b) - share(a)).slice(0, 64);
    fillRows("processes", rows.map((row) => {
      const stack = Object.keys(CAUSES).filter((cause) => row.paused[cause]).map((cause) =>
        el("i", { style: { width: (100 * row.paused[cause]) / Math.max(row.age, 1e-9) / most + "%", background: `var(--${CAUSES[cause][1]})` } }));
      const told = Object.entries(row.paused).map(([cause, s]) => `${causeName(cause)} ${timeText(s)}`).join(", ");
      const now = row.standing ? el("span", { class: "still" }, `paused for ${timeText(row.standing)}: ${causeName(row.standing_cause)}`)
        : el("span", {}, row.lives ? `pid ${row.pid}` : "exited");
      return el("tr", { "data-process": row.name }, el("th", { scope: "row" }, row.name, now),
        el("td", {}, quantity(share(row), percent(share(row)), "%")), el("td", {}, el("span", { class: "stack", role: "img", "aria-label": told || "nothing", title: told }, ...stack)),
        el("td", {}, quantity(row.full, count(row.full))), el("td", {}, row.longest_cause ? seconds(row.longest) : NEW));
    }));
  }

  // ---- charts ----

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const STEPS = [1, 2, 5];

  /** 1, 2 and 5 times powers of ten in [low, high], fewer where there is no room for all. */
  function decades(low, high, most) {
    for (const steps of [STEPS, [1, 3], [1]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const step of steps) {
          const value = step * 10 ** power;
          if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
        }
      if (found.length <= most || steps.length === 1) return found.filter((_, i) => i % Math.ceil(found.length / most) === 0);
    }
    return [];
  }
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

  const font = () => `12px ${getComputedStyle(document.body).fontFamily}`;
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
      hooks: { drawClear: [(u) => paintForgotten(u, self.since)], draw: [(u) => paintGaps(u, self.gaps)], setCursor: [(u) => pointAtGap(u, self)] },
    }));
    chart.draw = function (d, gaps) {
      this.gaps = [...gaps].sort((a, b) => a.t - b.t);
      this.span = [d.taken - Math.max(d.window === "all" && gaps.length ? d.taken - this.gaps[0].t : d.seconds, 10) * 1.02, d.taken];
      this.since = d.slow.length >= KEPT ? Math.min(...d.slow.map((gap) => gap.t)) : 0;
      const sizes = this.gaps.map((gap) => gap.gap);
      this.range = [Math.min(...sizes, 0.05) / 1.4, Math.max(...sizes, 0.05) * 1.4];
      this.set("slow", [this.gaps.map((gap) => gap.t), sizes], gaps.length ? "" : d.slow.length ? "All causes are hidden." : "No slow gap in this window.");
      const worst = this.gaps.length ? this.gaps.reduce((a, b) => (a.gap > b.gap ? a : b)) : null;
      this.box.setAttribute("aria-label", worst ? `${gaps.length} slow gaps; the longest ${timeText(worst.gap)}, ${waited(worst)}` : "No slow gaps");
    };
    return chart;
  }

  /** Before the oldest that is kept there were others: an empty place would say that there were none. */
  function paintForgotten(u, since) {
    if (!since) return;
    const c = u.ctx, scale = devicePixelRatio || 1, { left, top, height: tall } = u.bbox, wide = Math.min(u.valToPos(since, "x", true) - left - 8 * scale, u.bbox.width);
    if (wide <= 0) return;
    c.save();
    c.fillStyle = ink("track");
    c.fillRect(left, top, wide, tall);
    c.fillStyle = ink("soft");
    c.font = `${11 * scale}px ${getComputedStyle(document.body).fontFamily}`;
    c.textAlign = "left";
    c.textBaseline = "alphabetic";
    const words = "older gaps are not kept";
    if (c.measureText(words).width + 16 * scale < wide) c.fillText(words, left + 8 * scale, top + 18 * scale);
    c.restore();
  }

  function paintGaps(u, gaps) {
    const c = u.ctx, scale = devicePixelRatio || 1;
    c.save();
    const order = [...gaps].sort((a, b) => (a.cause !== "rest") - (b.cause !== "rest"));  // what has a cause lies above
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
    c.font = `${11 * scale}px ${getComputedStyle(document.body).fontFamily}`;
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
      c.font = `${11 * scale}px ${getComputedStyle(document.body).fontFamily}`;
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

  // ---- what a person does ----

  function tabs(id, names, chosen, panel, choose) {
    const list = $(id);
    const select = (key, focus) => {
      for (const tab of list.children) {
        const on = tab.id === "tab-" + key;
        tab.setAttribute("aria-selected", String(on));
        tab.tabIndex = on ? 0 : -1;
        if (on && focus) tab.focus();
      }
      $(panel).setAttribute("aria-labelledby", "tab-" + key);
      choose(key);
    };
    list.append(...names.map(([key, name]) => {
      const tab = el("button", { type: "button", role: "tab", id: "tab-" + key, "aria-controls": panel }, name);
      tab.addEventListener("click", () => select(key));
      return tab;
    }));
    list.addEventListener("keydown", (event) => {
      const at = names.findIndex(([key]) => "tab-" + key === document.activeElement.id);
      const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: names.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      select(names[(next + names.length) % names.length][0], true);
    });
    select(chosen);
  }

  const THEMES = { "": "Auto", light: "Light", dark: "Dark" };
  function theme(name) {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    $("theme").textContent = THEMES[name];
    $("theme").setAttribute("aria-label", "Colours: " + (name || "as the system"));
    redraw();
  }

  function redraw() {
    for (const chart of Object.values(charts)) chart.forget();
    if (state.data && !$("numbers").hidden) { slow(state.data); distribution(state.data); load(state.data); }
  }

  const charts = { slow: chart_slow(), dist: chart_dist(), load: chart_load() };

  function start() {
    tabs("dist-tabs", DISTRIBUTIONS, state.dist, "dist-panel", (key) => { state.dist = key; if (state.data) { charts.dist.forget(); distribution(state.data); } });
    tabs("load-tabs", LOADS, state.load, "load-panel", (key) => { state.load = key; if (state.data) { charts.load.forget(); load(state.data); } });
    const kept = stored("tailwatch-theme", "localStorage");
    theme(kept in THEMES ? kept : "");
    $("theme").addEventListener("click", () => {
      const names = Object.keys(THEMES), next = names[(names.indexOf(document.documentElement.dataset.theme || "") + 1) % names.length];
      store("tailwatch-theme", next, "localStorage");
      theme(next);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    $("pause").addEventListener("click", () => {
      state.paused = !state.paused;
      $("pause").setAttribute("aria-pressed", String(state.paused));
      $("pause").textContent = state.paused ? "Resume" : "Pause";
      if (state.paused) { clearTimeout(timer); waiting?.abort(); waiting = null; say("paused", "paused"); } else ask();
    });
    $("window").addEventListener("change", (event) => { state.window = event.target.value; ask(true); });
    $("slow-chart").addEventListener("keydown", stepGap);
    $("sign-in").addEventListener("submit", (event) => {
      event.preventDefault();
      state.token = $("token").value.trim();
      $("token").value = "";
      store("tailwatch-token", state.token);
      ask();
    });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
    addEventListener("hashchange", () => { const found = takeToken(); if (found) { state.token = found; ask(); } });
    document.title = "tailwatch · " + location.host;
    state.window = document.querySelector("#window input:checked").value;
    state.token = takeToken();
    if (document.body.dataset.access === "locked" && !state.token) signIn("");
    else ask();
  }

  start();
})();
