// The sections of the page; each function fills one from the data of a request.

const MOST_SETS = 50;  // the server gives no more rows
const LATENCIES = [["ttft", "TTFT"], ["itl", "ITL"], ["itl_without_gc", "ITL without GC"], ["tpot", "TPOT"], ["e2e", "E2E"]];
const DISTRIBUTIONS = [["ttft", "TTFT"], ["itl", "ITL"], ["tpot", "TPOT"], ["e2e", "E2E"]];

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
  document.body.toggleAttribute("data-filtered", isFiltered(data));
  for (const part of [sets, tiles, latency, slow, distribution, load, sources, processes]) part(data);
  fill("headline", isFiltered(data) ? "All models and routes: " : "", ...data.headline.split("`").map((words, i) => (i % 2 ? el("code", {}, words) : words)), ".");
  const dropped = Object.entries(data.dropped);
  $("dropped").hidden = !dropped.length;
  $("dropped").textContent = "Dropped events and internal errors of tailwatch since the start: " + dropped.map(([name, n]) => `${name} ${n}`).join(", ");
}

const isFiltered = (d) => d.filter.model !== null || d.filter.route !== null;
const chosen = (d) => [d.filter.model, d.filter.route].filter((name) => name !== null).join(" ");

function tiles(d) {
  const filtered = isFiltered(d), since = filtered && d.label_window === null ? ", since the start" : "", ofAll = filtered ? ", all models and routes" : "";
  const bounds = ["ttft", "tpot", "itl", "e2e"].filter((name) => d.slo[name]).map((name) => `${name.toUpperCase()}\u00a0≤\u00a0${timeText(d.slo[name])}`);
  fill("t-good", quantity(d.goodput, count(d.goodput), "req/s"));
  fill("t-good-sub", "of ", quantity(d.throughput, count(d.throughput)), " finished per second" + since);
  fill("t-share", quantity(d.attainment, percent(d.attainment), d.attainment === null ? "" : "%"));
  $("t-share").className = d.attainment !== null && d.attainment < d.slo.attainment ? "bad" : "";
  fill("t-share-sub", `target: ${percent(d.slo.attainment)}\u00a0% with ${bounds.join(", ")}`);
  fill("t-flight", quantity(d.in_flight, count(d.in_flight), d.in_flight === 1 ? "request" : "requests"));
  const ended = d.outcomes.good + d.outcomes.miss + d.outcomes.excluded;
  const healthy = d.healthy.streams;
  fill("t-flight-sub", ...(filtered ? ["all models and routes"] : [quantity(ended, count(ended)), " ended in this window"]), ...(d.waiting ? [", ", quantity(d.waiting, count(d.waiting)), " wait for a first token"] : []),
    ...(healthy === null ? [] : ["; healthy up to ", quantity(healthy, count(healthy))]));
  $("t-flight").className = healthy !== null && d.in_flight > healthy ? "bad" : "";
  fill("t-tokens", quantity(d.tokens, count(d.tokens), "per s"));
  fill("t-tokens-sub", filtered ? chosen(d).slice(0, 60) + since : d.models.length > 2 ? d.models.length + " models" : d.models.join(", ").slice(0, 60));
  const delay = d.sources.reduce((sum, row) => sum + row[2], 0), upto = d.sources.reduce((sum, row) => sum + row[3], 0);
  fill("t-delay", seconds(delay));
  fill("t-delay-sub", "summed over streams; up to ", seconds(upto), ofAll);
  $("covers").textContent = (filtered ? `${chosen(d)}, ` : "") + (since || d.window === "all" ? "since the start, " : "the last ") + span(d.counted);
}

/** A row for each model and route; one that is pressed is the filter. */
function sets(d) {
  options("model", "all models", d.models, d.filter.model);
  options("route", "all routes", d.routes, d.filter.route);
  $("sets").hidden = !d.label_sets.length;
  $("filter").hidden = !d.label_sets.length && !isFiltered(d);
  const held = document.activeElement?.dataset?.set;
  $("sets-note").textContent = `${d.label_window === null ? "Since the start" : `The last ${span(d.label_window)}`}${d.label_sets.length < MOST_SETS ? "" : ", those with the most requests"}. Select one to see its numbers only.`;
  fillRows("sets-table", d.label_sets.map((row) => {
    const on = row.model === d.filter.model && row.route === d.filter.route;
    const button = el("button", { type: "button", "aria-pressed": String(on), "data-set": row.model + "\n" + row.route }, row.model, el("span", {}, row.route));
    button.addEventListener("click", () => choose(on ? { model: null, route: null } : { model: row.model, route: row.route }));
    const cells = [quantity(row.requests, count(row.requests), "per s"), quantity(row.attainment, percent(row.attainment), row.attainment === null ? "" : "%"),
      ...[...row.ttft, ...row.itl].map(seconds), quantity(row.tokens, count(row.tokens), "per s")];
    const missed = row.attainment !== null && row.attainment < d.slo.attainment;
    return el("tr", {}, el("th", { scope: "row" }, button), ...cells.map((cell, i) => el("td", { class: i === 1 && missed ? "bad" : null }, cell)));
  }));
  if (held !== undefined) [...document.querySelectorAll("#sets-table button")].find((button) => button.dataset.set === held)?.focus();
}

/** The names to choose from, made anew only where they changed: a list that is open stays. */
function options(id, any, names, picked) {
  const all = picked === null || names.includes(picked) ? names : [...names, picked], list = $(id);
  if (list.dataset.names !== JSON.stringify(all)) {
    list.dataset.names = JSON.stringify(all);
    list.replaceChildren(el("option", { value: "" }, any), ...all.map((name) => el("option", { value: "=" + name }, name)));
  }
  const value = picked === null ? "" : "=" + picked;
  if (list.value !== value) list.value = value;
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
const isRest = (cause) => ["rest", "upstream", "unexplained"].includes(cause);
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
  $("slow-note").textContent = d.slow_since ? `${d.slow.length} kept; before ${clock(d.slow_since)} ${longestOnly(d)}` : d.slow.length ? `${d.slow.length} in this window` : "";
  const visible = d.slow.filter((gap) => !state.off.has(gap.cause));
  charts.slow.draw(d, visible);
  const longest = [...visible].sort((a, b) => b.gap - a.gap).slice(0, 10);
  fillRows("slow-table", longest.map((gap) => el("tr", {}, el("td", {}, seconds(gap.gap)), el("td", {}, mark(gap.cause), " " + waited(gap)),
    el("td", {}, clock(gap.t)), el("td", { class: "mono" }, gap.request || gap.trace || NEW), el("td", {}, gap.model))));
  pickShown();
}

const longestOnly = (d) => `only the longest of each minute${d.seconds > 3700 ? " or hour" : ""}${isFiltered(d) ? ", of all models" : ""}`;
const waited = (gap) => causeName(gap.cause) + (gap.source ? `, in the ${gap.source} process` : "");

function pickShown() {
  const gap = state.data && state.data.slow.find((one) => keyOf(one) === state.picked);
  fill("slow-why", ...(gap ? waterfall(gap) : []));
  if (!gap) return fill("slow-pick", state.data && state.data.slow.length ? "Point at a gap, or focus the chart and press the arrow keys." : "");
  const what = gap.phase === "ttft" ? "to the first token" : `before token ${gap.token}`;
  const parts = [el("strong", {}, `${timeText(gap.gap)} ${what}`), `: ${waited(gap)}`];
  if (gap.delay && !gap.causes.length) parts.push(`; delay about ${timeText(gap.delay)}`);
  if (gap.overlap) parts.push(`, up to ${timeText(gap.overlap)} in pauses`);
  if (gap.typical) parts.push(`; typical gap ${timeText(gap.typical)}`);
  parts.push(` · ${clock(gap.t)} · ${gap.model} ${gap.route}`);
  if (gap.request) parts.push(` · request ${gap.request}`);
  if (gap.trace) parts.push(` · trace ${gap.trace}`);
  fill("slow-pick", ...parts);
}

/** The causes of a gap, each beginning where the one before it ends; the whole width is its lateness. */
function waterfall(gap) {
  const sums = gap.causes.reduce((ends, [time]) => [...ends, ends[ends.length - 1] + time], [0]);
  const whole = Math.max(gap.gap - (gap.typical || 0), sums[sums.length - 1]);
  return gap.causes.map((cause, i) => causeShown(cause, sums[i], whole));
}

/** One cause of a gap: its time, beside those before it, what it was, and how certain that is. */
function causeShown([time, cause, certainty, role, what], before, whole) {
  const place = { marginLeft: (100 * before) / whole + "%", width: (100 * time) / whole + "%" };
  const bar = el("i", { style: { ...place, background: `var(--${(CAUSES[cause] || CAUSES.rest)[1]})` } });
  const notes = isRest(cause) ? [what] : [what, role, certainty];
  return el("li", { "data-cause": cause }, el("span", { class: "value" }, seconds(time)), el("span", { class: "track", "aria-hidden": "true" }, bar),
    el("span", { class: "what" }, mark(cause), " ", causeName(cause), " ", el("small", {}, notes.filter(Boolean).join(" · "))));
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
    const causes = Object.entries(row.paused).map(([cause, s]) => `${causeName(cause)} ${timeText(s)}`).join(", ");
    const now = row.standing ? el("span", { class: "still" }, `paused for ${timeText(row.standing)}: ${causeName(row.standing_cause)}`)
      : el("span", {}, row.lives ? `pid ${row.pid}` : "exited");
    return el("tr", { "data-process": row.name }, el("th", { scope: "row" }, row.name, now),
      el("td", {}, quantity(share(row), percent(share(row)), "%")), el("td", {}, el("span", { class: "stack", role: "img", "aria-label": causes || "nothing", title: causes }, ...stack)),
      el("td", {}, quantity(row.full, count(row.full))), el("td", {}, row.longest_cause ? seconds(row.longest) : NEW));
  }));
}
