// Numbers as text, and elements of the document.

const NEW = "\u2013";
const CAUSES = {
  gc0: ["generation 0", "gc0", "circle"], gc1: ["generation 1", "gc1", "square"], gc2: ["generation 2", "gc2", "diamond"],
  gc_full: ["full collection", "gc2", "diamond"], gc_increment: ["incremental collection", "gc0", "circle"],
  gc_own: ["tailwatch's own pause", "policy", "cross"], client: ["a slow client", "client", "down"],
  accept: ["being accepted", "accept", "up"], memory: ["page faults", "accept", "square"], stopped: ["a stopped process", "accept", "diamond"],
  callback: ["other code on the loop", "host", "circle"], own_code: ["the request's own code", "host", "square"],
  gil: ["the interpreter lock", "host", "diamond"], cpu: ["too few CPUs", "host", "up"], throttled: ["the CPU quota", "host", "down"],
  io: ["blocking I/O", "host", "ring"], lock: ["a lock", "host", "cross"], sleep: ["a blocking sleep", "host", "plus"],
  transport: ["from the engine to the API process", "client", "circle"], output: ["output processing", "client", "square"],
  own_prefill: ["the request's own prefill", "engine", "circle"], queued: ["a queue", "engine", "square"],
  preempted: ["preemption", "engine", "diamond"], kv_wait: ["a remote KV cache", "engine", "up"], prefill: ["another request's prefill", "engine", "down"],
  engine_host: ["the engine's own code", "engine", "ring"], jit: ["compilation", "engine", "cross"], graph_miss: ["no graph for the batch", "engine", "plus"],
  rank: ["the last rank", "client", "diamond"], device: ["a slower device", "client", "up"],
  upstream: ["upstream: not watched", "rest", "square"], unexplained: ["unexplained", "rest", "circle"],
  rest: ["model, queue, unexplained", "rest", "ring"],
  unknown: ["unknown: overwritten", "rest", "plus"],
};

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
