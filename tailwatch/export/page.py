"""The page at /tailwatch: one document that needs nothing else, and the numbers it asks for every other second.

The numbers, JSON; times are seconds, moments Unix times, what is not known null (version: of this package):

    window, seconds     what was asked for, and what it really covers; taken: when
    slo                 text, ttft, tpot, itl, e2e, attainment: the bounds in force
    headline            the doctor's first sentence
    in_flight, opened   requests open now, and ever opened; reasons, outcomes: of those that ended in the window
    waiting             of those in flight, how many have no first token yet
    healthy             streams: the healthy concurrency, null where it is not known; confidence, verdict: LoadSignal
    goodput, throughput, tokens     per second, over the window; attainment, fluidity: shares
    filter              model, route: what reasons, outcomes, rates, latency and slow are of; null: of any
    counted             seconds that those (but slow) cover
    label_window        seconds that label_sets cover, and under a filter what it chooses (but slow); null: all since
                        the start, as the past of each label set is not kept
    latency             ttft, itl, itl_without_gc, tpot, e2e: count, sum, min, max, p50, p90, p99, p999, and bins: the
                        number of the first, and counts (Histogram.bins)
    models, routes      those that were seen
    label_sets          of those with the most requests: model, route, requests, tokens (per second), attainment, and
                        ttft, itl: [p50, p99]; whatever the filter
    sources             [role, cause, delay, overlap]: what pauses cost all streams together, in the window
    processes           name, role, pid, lives, age, paused by cause (since its start), full: generation 2 collections,
                        longest, longest_cause, standing, standing_cause
    slow_since          when the oldest of the last 256 slow gaps was, of any model: of earlier ones only the longest of
                        each minute, and beyond an hour of each hour, are kept; null: all of the window are here
    slow                slow gaps of the window, newest first: t, phase, gap, typical, cause, delay, overlap, source,
                        request, trace, model, route, token, complete, causes: the largest six, each [seconds, cause,
                        certainty, source, what]
    load                every `bin` seconds: [t, good, missed, finished (per second), in flight (null: not read)]
    dropped             what could not be counted, and where something of ours went wrong

`cause` of a slow gap is its largest (docs/causes), "unknown" where its pauses were overwritten, "rest" where nothing
exceeds the typical gap.

All of it is made on the thread that asks, which must be a worker; what is asked for again within KEEP_SECONDS is given
again, so that many viewers cost as much as one. With no request nothing happens.
"""

from __future__ import annotations

import json
import math
import threading
import time
from base64 import b64encode
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from tailwatch.diagnose.text import is_rest, what_of
from tailwatch.export.prometheus.negotiation import wants_gzip
from tailwatch.serve.page_access import Access
from tailwatch.snapshots import Histogram, Process, SlowGap, Snapshot
from tailwatch.snapshots.label_sets import most_requested

KEEP_SECONDS = 1.9
"""The page asks each 2 s: it never shows the same numbers twice, and ten pages cost as much as one."""

WINDOWS = {"1m": 60.0, "5m": 300.0, "1h": 3600.0, "all": None}
"""What may be asked for; "all": everything since the start."""

_BIN_SECONDS = (2, 5, 10, 30, 60)
_MOST_BINS = 60
_LOAD_SECONDS = 3600
_LATENCIES = ("ttft", "itl", "itl_without_gc", "tpot", "e2e")
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
_FULL = ("gc2", "gc_full")
_MOST_CAUSES = 6  # of a slow gap
_BREATH_SECONDS = 1e-6
_GAPS_A_BREATH = 16
_MOST_ROWS = 50  # of label sets
_LAST_GAPS = 256  # of Snapshot.recent
_MOST_QUERIES = 32  # whose answers are kept
_LONGEST_QUERY = 2048
_PART_BYTES = 64 * 1024
_SENTENCES = {
    Access.TOKEN: "the token is missing or wrong: Authorization: Bearer ...\n",
    Access.ELSEWHERE: "this page answers its own machine only, as localhost; page_token=... opens it to others\n",
    Access.FOREIGN: "this page does not answer other sites\n",
}
_NOTHING = "default-src 'none'; frame-ancestors 'none'"
_STATUS = {Access.GRANTED: 200, Access.TOKEN: 401, Access.ELSEWHERE: 403, Access.FOREIGN: 403}
_GUARDS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
    ("Vary", "Accept-Encoding, Authorization"),
)


class Query(NamedTuple):
    """What is asked for: a window of WINDOWS; the numbers of one model, of one route, None: of any."""

    window: str = "5m"
    model: str | None = None
    route: str | None = None

    @property
    def filtered(self) -> bool:
        """Whether it is not of all label sets."""
        return (self.model, self.route) != (None, None)

    @classmethod
    def parse(cls, text: str) -> Query | None:
        """Of a URL's query; None: it is none."""
        try:
            pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=3) if text else []
            query = cls(**dict(pairs))
        except (ValueError, TypeError):  # no pairs, too many, another name
            return None
        good = len(text) <= _LONGEST_QUERY and len(dict(pairs)) == len(pairs) and query.window in WINDOWS
        return query if good and "\0" not in text + (query.model or "") + (query.route or "") else None


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer: a status, all headers, the body in parts that a loop may send at once."""

    status: int
    headers: list[tuple[str, str]]
    parts: tuple[bytes, ...]


class Load(Protocol):
    """What the page shows of a load_signal.LoadSignal."""

    @property
    def waiting(self) -> int: ...
    @property
    def healthy(self) -> float | None: ...
    @property
    def confidence(self) -> float: ...
    @property
    def verdict(self) -> str: ...


def _encode(numbers: dict[str, Any]) -> bytes:
    """As JSON; numbers that JSON has not are null. Where `tailwatch run` adds this package to a server's environment,
    orjson may be missing."""
    try:
        import orjson
    except ImportError:
        return json.dumps(_finite(numbers), separators=(",", ":")).encode()
    return orjson.dumps(numbers)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Page:
    """Answers what the page asks. Its methods block, but for `token`.

    Args:
        take: gives the numbers.
        window: gives those of the last seconds, of numbers just taken.
        window_of_labels: the same by label set; None: not known.
        headline: a sentence about them.
        slo: the text of the bounds in force.
        version: of this package.
        token: that the page asks for; "": none. None: the page is off.
        load: gives the load of the moment, and what load is healthy.
    """

    def __init__(
        self,
        take: Callable[[], Snapshot],
        window: Callable[[Snapshot, float], Snapshot],
        window_of_labels: Callable[[Snapshot, float], Snapshot | None],
        headline: Callable[[Snapshot], str],
        slo: Callable[[], str],
        version: str,
        token: Callable[[], str | None],
        load: Callable[[], Load],
    ) -> None:
        self._take = take
        self._window = window
        self._window_of_labels = window_of_labels
        self._headline = headline
        self._slo = slo
        self._version = version
        self.token = token
        self._healthy = load
        self.after_fork()

    def after_fork(self) -> None:
        """In a fork child: forget what the parent's threads had begun, and what it measured."""
        self._kept: OrderedDict[Query, _Kept] = OrderedDict()
        self._kept_lock = threading.Lock()
        self._in_flight: deque[tuple[int, int]] = deque(maxlen=_LOAD_SECONDS)  # monotonic second, requests

    def reply(self, data: bool, access: Access, query: str, accept_encoding: str) -> Reply:
        """The document, or with data the numbers, for a client with this access. Raises what `take` raises."""
        gzip = wants_gzip(accept_encoding)
        if access in (Access.ELSEWHERE, Access.FOREIGN) or (data and access is not Access.GRANTED):
            return _refusal(_STATUS[access], _SENTENCES[access])
        if not data:
            return _document(self._version, access is Access.TOKEN, gzip)
        asked = Query.parse(query)
        if asked is None:
            return _refusal(400, f"expected ?model=, ?route= and ?window= one of {', '.join(WINDOWS)}\n")
        replies: tuple[Reply, Reply] = self._kept_of(asked).get(lambda: self._json(asked))
        return replies[gzip]

    def _kept_of(self, query: Query) -> _Kept:
        with self._kept_lock:
            kept = self._kept.setdefault(query, _Kept())
            self._kept.move_to_end(query)
            if len(self._kept) > _MOST_QUERIES:
                self._kept.popitem(last=False)
            return kept

    def numbers(self, name: str, model: str | None = None, route: str | None = None) -> dict[str, Any]:
        """What the page shows of a window, one of WINDOWS, as in the module's docstring."""
        query = Query(name, model, route)
        now = self._take()
        seconds = WINDOWS[name]
        window = now if seconds is None else self._window(now, seconds)
        by_label = None if seconds is None else self._window_of_labels(now, seconds)
        self._remember(now)
        out: dict[str, Any] = {"version": self._version, "window": name, "seconds": window.seconds}
        out |= _counted(now, window, seconds, by_label or now, query)
        out["label_window"] = by_label.seconds if by_label else None
        _breathe()
        out |= _sources(window) | _processes(now)
        _breathe()
        out |= _label_sets(now, by_label or now) | _slow(now, window.seconds, query)
        out |= {"slo": {"text": self._slo(), **now.slo._asdict()}, "headline": self._headline(window)}
        span = int(seconds or _LOAD_SECONDS)
        width = next(width for width in _BIN_SECONDS if min(span, now.seconds) <= _MOST_BINS * width)
        load = self._healthy()
        out["healthy"] = {"streams": load.healthy, "confidence": load.confidence, "verdict": load.verdict}
        return {**out, "waiting": load.waiting, "bin": width, "load": self._load(now, span, width)}

    def _json(self, query: Query) -> tuple[Reply, Reply]:
        body = _encode(self.numbers(*query))
        headers = _headers("application/json", _NOTHING)
        return _reply(200, headers, body, False), _reply(200, headers, body, True)

    def _remember(self, now: Snapshot) -> None:
        self._in_flight.append((int(now.monotonic), now.in_flight))

    def _load(self, now: Snapshot, span: int, width: int) -> list[list[float | None]]:
        """Whole bins only, on a grid that does not move with the request."""
        second = int(now.monotonic)
        last = second // width
        first = max((second - span) // width + 1, int(now.monotonic - now.seconds) // width)  # all of one, or its begin
        sums: dict[int, list[int]] = {at: [0, 0, 0] for at in range(first, last)}
        for row in now.by_second(span + width):
            if (into := sums.get(row.at // width)) is not None:
                into[:] = into[0] + row.good, into[1] + row.miss, into[2] + row.finished
        open_then: dict[int, list[int]] = {}
        for at, requests in list(self._in_flight):
            open_then.setdefault(at // width, []).append(requests)
        offset = now.taken - now.monotonic
        return [
            [
                round((at + 1) * width + offset, 1),
                *(value / width for value in values),
                sum(seen) / len(seen) if (seen := open_then.get(at)) else None,
            ]
            for at, values in sums.items()
        ]


class _Kept:
    """What was made last, while it is fresh; one thread makes it, others that come meanwhile wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = float("-inf")
        self._value: Any = None

    def get(self, make: Callable[[], Any]) -> Any:
        with self._lock:
            if time.monotonic() - self._made >= KEEP_SECONDS:
                began = time.monotonic()
                self._value = make()
                self._made = began
            return self._value


def _breathe() -> None:
    """Lets go of the GIL, and of this core: a loop that has woken up meanwhile runs now."""
    time.sleep(_BREATH_SECONDS)


# ---- the numbers ----


def _counted(
    now: Snapshot, window: Snapshot, seconds: float | None, by_label: Snapshot, query: Query
) -> dict[str, Any]:
    """What the filter chooses."""
    out: dict[str, Any] = {"filter": {"model": query.model, "route": query.route}}
    if query.filtered:
        window, seconds = by_label.where(model_name=query.model, route=query.route), None
    out |= _totals(now, window) | _rates(now, window, seconds) | _latency(window)
    return out | {"fluidity": None} if query.filtered else out


def _totals(now: Snapshot, window: Snapshot) -> dict[str, Any]:
    return {
        "taken": now.taken,
        "counted": window.seconds,
        "in_flight": now.in_flight,
        "opened": now.opened,
        "reasons": window.requests,
        "outcomes": window.outcomes,
        "dropped": {name: count for name, count in {**now.drops, **now.errors}.items() if count},
        "models": sorted({model for model, _ in now.labels}),
        "routes": sorted({route for _, route in now.labels}),
    }


def _label_sets(now: Snapshot, by_label: Snapshot) -> dict[str, Any]:
    """Those with the most requests; nothing where there is one only: that is the whole."""
    if len(now.labels) < 2:
        return {"label_sets": []}
    return {"label_sets": [_label_set(by_label, *labels) for labels in most_requested(now, _MOST_ROWS)]}


def _label_set(by_label: Snapshot, model: str, route: str) -> dict[str, Any]:
    own, span = by_label.where(model_name=model, route=route), max(by_label.seconds, 1e-9)
    _breathe()
    return {
        "model": model,
        "route": route,
        "requests": sum(own.requests.values()) / span,
        "tokens": own.tokens / span,
        "attainment": own.attainment,
        **{name: [getattr(own, name).p(percent) for percent in (50.0, 99.0)] for name in ("ttft", "itl")},
    }


def _rates(now: Snapshot, window: Snapshot, seconds: float | None) -> dict[str, Any]:
    """As Snapshot.goodput() and its like have them: from requests by the second, where there is a window."""
    span = max(window.seconds, 1e-9)
    tokens = window.tokens / span
    if seconds is None:
        good, finished = window.outcomes["good"] / span, sum(window.outcomes.values()) / span
        return {
            "goodput": good, "throughput": finished, "tokens": tokens,
            "attainment": window.attainment, "fluidity": window.fluidity,
        }  # fmt: skip
    sums = now.window(seconds)
    return {
        "goodput": sums.good / sums.seconds,
        "throughput": sums.finished / sums.seconds,
        "tokens": tokens,
        "attainment": sums.attainment,
        "fluidity": sums.fluidity,
    }


def _latency(window: Snapshot) -> dict[str, Any]:
    return {"latency": {name: _distribution(getattr(window, name)) for name in _LATENCIES}}


def _distribution(samples: Histogram) -> dict[str, Any]:
    first, counts = samples.bins()
    _breathe()
    return {
        **{name: getattr(samples, name) for name in ("count", "sum", "min", "max")},
        **{name: samples.p(percent) for name, percent in _PERCENTILES.items()},
        "bins": {"first": first, "counts": counts},
    }


def _sources(window: Snapshot) -> dict[str, Any]:
    """Both phases together; the largest estimate first."""
    found: dict[tuple[str, str], list[float]] = {}
    for at, sums in enumerate((window.delay_by_source, window.overlap_by_source)):
        for source, phases in sums.items():
            for causes in phases.values():
                for cause, value in causes.items():
                    if value:
                        found.setdefault((source, cause), [0.0, 0.0])[at] += value
    rows = [[source, cause, *values] for (source, cause), values in found.items()]
    return {"sources": sorted(rows, key=lambda row: (-row[2], -row[3]))}


def _processes(now: Snapshot) -> dict[str, Any]:
    return {"processes": [_process(process) for process in now.processes]}


def _process(process: Process) -> dict[str, Any]:
    cause = max(process.longest, key=lambda cause: process.longest[cause])
    return {
        **{name: getattr(process, name) for name in ("name", "role", "pid", "lives", "age", "standing")},
        "standing_cause": process.standing_cause,
        "paused": {cause: seconds for cause, seconds in process.paused.items() if seconds},
        "full": sum(process.collections[cause] for cause in _FULL),
        "longest": process.longest[cause],
        "longest_cause": cause if process.longest[cause] else "",
    }


def _slow(now: Snapshot, seconds: float, query: Query) -> dict[str, Any]:
    begin = now.taken - seconds
    gaps = [gap for gap in _gently(now.slow_gaps()) if gap.when.timestamp() >= begin]  # newest first
    complete = len(gaps) < _LAST_GAPS
    chosen = [gap for gap in gaps if query.model in (None, gap.model_name) and query.route in (None, gap.route)]
    since = None if complete else gaps[_LAST_GAPS - 1].when.timestamp()
    return {"slow_since": since, "slow": [_gap(gap) for gap in _gently(chosen)]}


def _gently(gaps: Iterable[SlowGap]) -> Iterator[SlowGap]:
    """Lets go of the GIL now and then."""
    for number, gap in enumerate(gaps, 1):
        yield gap
        if number % _GAPS_A_BREATH == 0:
            _breathe()


def _gap(slow: SlowGap) -> dict[str, Any]:
    cause = _cause(slow)
    largest = slow.causes[0] if slow.causes and slow.causes[0].cause == cause else None
    return {
        "t": slow.when.timestamp(),
        "phase": slow.phase,
        "gap": slow.gap,
        "typical": slow.typical,
        "cause": cause,
        "delay": sum(slow.delay.values()) if slow.complete else None,
        "overlap": sum(slow.overlap.values()),
        "source": largest.source if largest and not is_rest(largest) else "",
        "request": slow.request_id,
        "trace": slow.trace_id,
        "model": slow.model_name,
        "route": slow.route,
        "token": slow.token,
        "complete": slow.complete,
        "causes": [[c.seconds, c.cause, c.certainty, c.source, what_of(c)] for c in slow.causes[:_MOST_CAUSES]],
    }


def _cause(slow: SlowGap) -> str:
    if not slow.causes:
        return "rest" if slow.complete else "unknown"
    largest = slow.causes[0]
    return largest.cause if slow.complete or not is_rest(largest) else "unknown"


# ---- the document ----


@cache
def _document(version: str, locked: bool, gzip: bool) -> Reply:
    """The same bytes for all: nothing of a request is in them, and no number. locked: it asks for the token."""
    from html import escape
    from importlib.resources import files

    place = files("tailwatch") / "page"

    def read(*names: str) -> str:
        return place.joinpath(*names).read_text(encoding="utf-8").strip()

    ours = "\n".join(read(f"{name}.js") for name in ("common", "elements", "sections", "charts", "page"))
    scripts = [read("uplot", "uPlot.iife.min.js"), ours]
    style = read("uplot", "uPlot.min.css") + "\n" + read("page.css")
    text = read("page.html")
    for name, value in {
        "licence": read("uplot", "LICENSE"),
        "version": escape(version),
        "locked": "locked" if locked else "open",
        "style": style,
        "uplot": scripts[0],
        "script": scripts[1],
    }.items():
        text = text.replace(f"@@{name}@@", value)
    status = _STATUS[Access.TOKEN if locked else Access.GRANTED]
    return _reply(status, _headers("text/html; charset=utf-8", _csp(scripts, style), status), text.encode(), gzip)


def _csp(scripts: list[str], style: str) -> str:
    """Nothing from anywhere but what stands in the document itself; numbers from this server; no frame around it."""

    from hashlib import sha256

    def hashed(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(hashed, scripts))}",
            f"style-src {hashed(style)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _headers(content_type: str, csp: str, status: int = 200) -> list[tuple[str, str]]:
    challenge = [("WWW-Authenticate", 'Bearer realm="tailwatch"')] if status == 401 else []
    return [("Content-Type", content_type), *_GUARDS, ("Content-Security-Policy", csp), *challenge]


def _refusal(status: int, sentence: str) -> Reply:
    return _reply(status, _headers("text/plain; charset=utf-8", _NOTHING, status), sentence.encode(), False)


def _reply(status: int, headers: list[tuple[str, str]], body: bytes, gzip: bool) -> Reply:
    if gzip:
        from gzip import compress

        body = compress(body, 6, mtime=0)
        headers = [*headers, ("Content-Encoding", "gzip")]
    parts = tuple(body[i : i + _PART_BYTES] for i in range(0, len(body), _PART_BYTES))
    return Reply(status, [*headers, ("Content-Length", str(len(body)))], parts)
