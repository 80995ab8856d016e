// Requests for the data, the controls, and the start.

const POLL_MS = 2000, SLOWEST_POLL_MS = 30000;
const LOADS = [["time", "over time"], ["rate", "by rate"], ["flight", "by in flight"]];

const state = { window: "5m", filter: { model: null, route: null }, paused: false, token: "", data: null, off: new Set(), dist: "itl", load: "time", picked: null, failed: 0 };
let timer = 0, waiting = null;

// ---- requests ----

async function ask(anyway = false) {
  clearTimeout(timer);
  if ((state.paused && !anyway) || document.hidden) return;
  if (waiting) waiting.abort();
  const asked = (waiting = new AbortController());
  const guard = setTimeout(() => asked.abort(), 15000);
  try {
    const filter = Object.entries(state.filter).filter(([, name]) => name !== null);
    const place = location.pathname.replace(/\/+$/, "") + "/data?" + new URLSearchParams([["window", state.window], ...filter]);
    const headers = state.token ? { Authorization: "Bearer " + state.token } : {};
    const answer = await fetch(place, { headers, cache: "no-store", redirect: "error", signal: asked.signal });
    if (answer.status === 401) return signIn(state.token ? "The server rejected this token." : "");
    if (!answer.ok) throw new Error(answer.status === 403 ? await answer.text() : "HTTP status " + answer.status);
    const data = await answer.json();
    if (asked !== waiting) return;
    state.failed = 0;
    show(data);
    if (!state.paused) say("live", "live");
  } catch (problem) {
    if (asked !== waiting) return;
    state.failed += 1;
    say("away", "no answer: " + (problem.name === "TypeError" ? "the server is not reachable" : problem.name === "AbortError" ? "timeout" : problem.message.trim()));
  } finally {
    clearTimeout(guard);
    if (asked === waiting) {
      waiting = null;
      if (!$("sign-in").hidden || state.paused) clearTimeout(timer);
      else timer = setTimeout(ask, Math.min(POLL_MS * 2 ** state.failed, SLOWEST_POLL_MS));
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

/** From the fragment, which no request carries and no log has; then it leaves the address. */
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    history.replaceState(null, "", location.pathname + location.search);
    store("tailwatch-token", found);
  }
  return found || stored("tailwatch-token");
}

// ---- controls ----

function choose(filter) {
  Object.assign(state.filter, filter);
  ask(true);
}

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
  for (const name of ["model", "route"])
    $(name).addEventListener("change", (event) => choose({ [name]: event.target.value ? event.target.value.slice(1) : null }));
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
