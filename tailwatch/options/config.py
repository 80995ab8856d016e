"""The options of install(): argument, else TAILWATCH_<NAME> from the environment, else the default.

A bad value raises an OptionError with the option, its source, the expected and the given value.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tailwatch.errors import OptionError, nearest
from tailwatch.gc.capabilities import refusal_here
from tailwatch.gc.memory_limit import MemoryLimit
from tailwatch.options.slo import SLO, parse_duration, real
from tailwatch.options.trace_triggers import LEAST_EVENTS, MOST_EVENTS, Keep, Triggers

PREFIX = "TAILWATCH_"
DEFAULT_SLO = "ttft<=2s,tpot<=200ms,itl<=1s@99%"
GC_POLICIES = ("auto", "freeze", "idle", "observe", "off")
ORCA_FORMS = ("off", "request", "text", "json")
EXPOSITIONS = ("both", "native", "classic")
NVTX_MODES = ("auto", "on", "off")
STALL_MODES = ("auto", "clock", "off")

_NOT_OPTIONS = frozenset({"TAILWATCH"})
_EMPTY_MEANS_NONE = frozenset({"metrics_path", "dir"})
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}")
_ENGINE_NUMBERS = 2**32
_PATH = re.compile(r"/[!-~]*")
_TOKEN = re.compile(r"[!-~]{1,256}")
_HOUR_MS = 3_600_000.0
APPENDED_SERIES = 200
_LEAST_APPENDED, _MOST_APPENDED = 50, 100_000


@dataclass(frozen=True, slots=True)
class Config:
    """The options of install(). Config.load() makes and checks them.

    docs/options.md is made of this: python docs/reference.py.

    Attributes:
        slo: bounds on a good request.
        gc: the policy: "auto" (freeze, and "idle" while that costs tokens less, by measurement), "freeze", "idle"
            (freeze, then collect later allocations while no stream waits), "observe" (measure only) or "off" (no hook
            in the collector).
        gc_memory_limit: with gc="idle", "rss=+256MB" (relative to the size after the freeze), "rss=8GiB",
            "objects=2000000" (tracked objects that are not frozen), or both with a comma: above the limit collections
            are forced, also while streams wait, counted and logged; "": no limit.
        gc_warn_ms: log each pause of at least this many milliseconds of wall time, with its CPU time where that is much
            less, and the number of streams it delayed; 0: off.
        gc_log_all: log every pause of at least 50 µs. With this, gc_warn_ms, slow_gap_ms or trace_events, the logger
            ``tailwatch`` gets the level INFO, and a handler that writes to standard error the lines that no handler of
            the server's shows.
        slow_gap_ms: log each gap between tokens and each TTFT of at least this many milliseconds, with its causes, and
            keep it as slow ones are kept; that changes no sum of delays. 0: nothing is logged.
        metrics_path: path on which the app serves metrics; an app's own route there stays, and ours moves to
            ``/tailwatch/metrics``; "": not served.
        metrics_append: where the app serves metrics on that path itself, this many of tailwatch's series follow its
            own, in its format: 50 to 100000; True: 200; False or 0: none. They are then as open as the app's.
        metrics_port: loopback TCP port of the metrics in processes without an app; 0: not served.
        histograms: format for a Prometheus that requests native histograms (protobuf): "both" native histograms and
            classic buckets, "native" without classic buckets, "classic" without protobuf. OpenMetrics and text always
            have the classic buckets.
        exemplars: attach trace ids to histogram buckets, in OpenMetrics and protobuf. The trace id comes from a sampled
            traceparent header, from the OpenTelemetry span around the request, or from ``trace_id=``.
        role: name of this process in metrics ("api", "engine", ...); at most 31 characters. No flag of
            ``tailwatch run``: each process has its own.
        engine: in a server with several engines, the number (data-parallel rank) or name of the engine that this
            process works for, or, in a process with an app, that serves all its streams; "": detected from the process
            titles of vLLM and SGLang.
        routes: further routes that generate tokens, as templates, separated by commas.
        max_label_sets: pairs of model and route with their own series, 1 to 4096; further pairs become "other".
        page: serve a live page at /tailwatch, in the app and on metrics_port. Without page_token the page answers
            loopback clients only.
        page_token: token that the page requires, as "Authorization: Bearer ..." or typed into the page; "": no token.
        trust_request_start: trust a proxy's X-Request-Start or X-Queue-Start header: the wait since then counts as the
            queue stage "proxy". Arrival, and so TTFT and E2E, stay as they are.
        fast_sse: serialise the streams of known servers with templates; the bytes are the same.
        orca: add the load in the header ``endpoint-load-metrics`` of generated responses: "off", "request" (in the
            format of the request's ``endpoint-load-metrics-format``), "text" or "json" (always). True: "request".
        server_timing: add a ``Server-Timing`` header with the waits before the response: proxy, accept, app,
            milliseconds.
        sse_timing: add a comment after the last event of a stream, with its TTFT, ITL and delay by pauses.
        dir: shared-memory directory of the process group, with one file per process; "": no group. The directory is
            created if it does not exist. It must be on a memory file system (/dev/shm), because each token writes to
            it. Not given: the workers of one uvicorn, hypercorn, granian or gunicorn server share a directory there;
            other processes have no group, except that with trace_events a directory is created.
        nvtx: "auto": send ranges to an attached NVTX tool (Nsight Systems, Nsight Compute); "on": also report that no
            tool is attached; "off": never.
        nvtx_tokens: with a tool attached, mark each token-bearing message, not only the first of each request.
        trace_events: capacity of this process's event ring, 256 to 2**28 events of 32 bytes: half for the first thread
            that stamps, a sixteenth for each of seven more, and for the rest; 0: no events are recorded. Where they
            take more than half of the free shared memory: half as many, a quarter, ... or none; the log and the doctor
            show how many.
        trace_on: "gap>100ms", "ttft>1s", "slo" (a request that misses it), or several with commas: keep the seconds
            around such an event as a file in the group's directory; "": never.
        trace_keep: number and total bytes of the trace files to keep, of trace_on and of exited processes.
        stalls: "auto": time the event loops, and sample those that are busy for long: stacks, system calls, which
            thread holds the interpreter lock; "clock": time them only; "off": neither.
        quiet: no line at INFO when the server starts; warnings, and lines that other options ask for, stay.
        otel: export metrics and spans by OTLP: True, False, or exporters of your own (a MetricExporter, a
            MeterProvider, or several); None: according to the ``OTEL_*`` variables.
        explicit: names of the options set by argument or environment.
        unknown_environment: TAILWATCH_* variables that are not an option.
    """

    slo: SLO
    gc: str
    gc_memory_limit: MemoryLimit
    gc_warn_ms: float
    gc_log_all: bool
    slow_gap_ms: float
    metrics_path: str
    metrics_append: int
    metrics_port: int
    histograms: str
    exemplars: bool
    page: bool
    page_token: str = field(repr=False)
    role: str
    engine: str
    routes: tuple[str, ...]
    max_label_sets: int
    trust_request_start: bool
    fast_sse: bool
    orca: str
    server_timing: bool
    sse_timing: bool
    dir: str
    nvtx: str
    nvtx_tokens: bool
    trace_events: int
    trace_on: Triggers
    trace_keep: Keep
    stalls: str
    quiet: bool
    otel: object
    explicit: frozenset[str]
    unknown_environment: tuple[str, ...]

    @classmethod
    def load(cls, *, app: bool = True, **arguments: object) -> Config:
        """Reads and checks all options; an argument that is None counts as not given.

        Args:
            app: whether the process serves an app, which decides the default role ("api", else "worker").
            arguments: options by name; those not given come from os.environ, else they have their defaults.

        Raises:
            OptionError: for an unknown option, an option of a later version, and every bad value.
        """
        return cls.read(arguments, os.environ, app=app)

    @classmethod
    def read(cls, arguments: Mapping[str, object], environment: Mapping[str, str], *, app: bool = True) -> Config:
        """load() with the environment as an argument."""
        given = {**_from_environment(environment), **_from_arguments(arguments)}
        values: dict[str, Any] = {name: _PARSERS[name](value) for name, value in given.items()}
        config = cls(
            **{**_defaults(app), **values},
            explicit=frozenset(given),
            unknown_environment=_unknown_variables(environment),
        )
        if arguments.get("page_token") and not config.page:
            raise OptionError("page_token: the page is off; add page=True")
        return config

    def replace(self, changed: Mapping[str, Any]) -> Config:
        """The same with other values, taken as checked, which count as given."""
        return replace(self, **changed, explicit=self.explicit | frozenset(changed))

    def differing(self, other: Config) -> tuple[str, ...]:
        """Names of the options whose values differ."""
        return tuple(name for name in OPTIONS if getattr(self, name) != getattr(other, name))

    def shown(self, option: str) -> str:
        """The value of an option, fit for a message."""
        return SECRET if option in SECRET_OPTIONS else str(getattr(self, option))


OPTIONS = tuple(each.name for each in fields(Config) if each.name not in {"explicit", "unknown_environment"})
SECRET_OPTIONS = frozenset({"page_token"})
SECRET = "(not shown)"


def variable_of(option: str) -> str:
    """The environment variable that sets an option."""
    return PREFIX + option.upper()


def nearest_variable(name: str) -> str | None:
    """The variable that a mistyped one most likely means, None where none is near."""
    option = nearest(name.removeprefix(PREFIX), OPTIONS)
    return variable_of(option) if option else None


# What was given, and how it is read -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """One value of one option, and the environment variable it came from (None: an argument)."""

    option: str
    value: object
    source: str | None = None

    def refused(self, expected: str, choices: tuple[str, ...] = ()) -> OptionError:
        return OptionError.of(self.option, self.value, expected, source=self.source, choices=choices)


def _defaults(app: bool) -> dict[str, Any]:
    return {
        "slo": SLO.parse(DEFAULT_SLO),
        "gc": "auto",
        "gc_memory_limit": MemoryLimit(),
        "gc_warn_ms": 0.0,
        "gc_log_all": False,
        "slow_gap_ms": 0.0,
        "metrics_path": "/metrics",
        "metrics_append": 0,
        "metrics_port": 0,
        "histograms": "both",
        "exemplars": True,
        "page": False,
        "page_token": "",
        "role": "api" if app else "worker",
        "engine": "",
        "routes": (),
        "max_label_sets": 32,
        "trust_request_start": False,
        "fast_sse": False,
        "orca": "off",
        "server_timing": False,
        "sse_timing": False,
        "dir": "",
        "nvtx": "auto",
        "nvtx_tokens": False,
        "trace_events": 0,
        "trace_on": Triggers(),
        "trace_keep": Keep(),
        "stalls": "auto",
        "quiet": False,
        "otel": None,
    }


def _from_arguments(arguments: Mapping[str, object]) -> dict[str, _Given]:
    given = {name: _Given(name, value) for name, value in arguments.items()}
    for name, value in given.items():
        if name not in OPTIONS:
            raise _no_such_option(name, value)
    return {name: value for name, value in given.items() if value.value is not None}


def _no_such_option(name: str, given: _Given) -> OptionError:
    hint = nearest(name, OPTIONS)
    meant = f"did you mean {hint!r}?" if hint else f"the options are {', '.join(OPTIONS)}"
    return given.refused(f"unknown option; {meant}")


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    """An empty variable counts as not set, except where it means none: TAILWATCH_METRICS_PATH and TAILWATCH_DIR."""
    given = {}
    for name in OPTIONS:
        variable = variable_of(name)
        text = environment.get(variable)
        if text is None or (not text.strip() and name not in _EMPTY_MEANS_NONE):
            continue
        given[name] = _Given(name, text.strip(), variable)
    return given


def _unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    known = _NOT_OPTIONS | {variable_of(name) for name in OPTIONS}
    return tuple(sorted(name for name in environment if name.startswith(PREFIX) and name not in known))


def _parsed(kind: Any) -> Callable[[_Given], Any]:
    """An option that is given as an object of a class, or as the text that its parse() takes."""
    return lambda given: given.value if isinstance(given.value, kind) else kind.parse(given.value, source=given.source)


def _gc(given: _Given) -> str:
    value = given.value.lower() if isinstance(given.value, str) else None
    expected = "expected one of " + ", ".join(repr(policy) for policy in GC_POLICIES)
    if value is None or value not in GC_POLICIES:
        raise given.refused(expected, GC_POLICIES)
    if value == "idle" and (why := refusal_here()):
        raise given.refused(f"not supported by this interpreter: {why}. gc='freeze' works here")
    return value


def _histograms(given: _Given) -> str:
    value = given.value.lower() if isinstance(given.value, str) else None
    if value not in EXPOSITIONS:
        raise given.refused("expected one of " + ", ".join(repr(each) for each in EXPOSITIONS), EXPOSITIONS)
    return value


def _nvtx(given: _Given) -> str:
    if isinstance(given.value, bool):
        return "on" if given.value else "off"
    value = given.value.lower() if isinstance(given.value, str) else ""
    if value in _TRUE | _FALSE and given.source:
        return "on" if value in _TRUE else "off"
    if value not in NVTX_MODES:
        raise given.refused("expected 'auto', 'on' (True) or 'off' (False)", NVTX_MODES)
    return value


def _stalls(given: _Given) -> str:
    value = given.value.lower() if isinstance(given.value, str) else ""
    if value not in STALL_MODES:
        raise given.refused("expected one of " + ", ".join(repr(each) for each in STALL_MODES), STALL_MODES)
    return value


def _milliseconds(given: _Given) -> float:
    value = given.value
    number = _number(given)
    if isinstance(value, str) and given.source and math.isnan(number):
        number = round(parse_duration(value) * 1e3, 6)  # 9e-3 s is not 9 ms in binary
    if not (math.isfinite(number) and 0 <= number <= _HOUR_MS):
        time = ", or a time like 100ms" if given.source else ""
        raise given.refused(f"expected milliseconds, a number from 0 (off) to 3600000{time}")
    return number


def _number(given: _Given) -> float:
    """The value as a float; NaN for anything that is no number."""
    value = given.value
    if not isinstance(value, str):
        return real(value)
    try:
        return float(value) if given.source else math.nan
    except ValueError:
        return math.nan


def _integer(lowest: int, highest: int, what: str) -> Callable[[_Given], int]:
    def parse(given: _Given) -> int:
        number = _index(given)
        if number is None or not lowest <= number <= highest:
            raise given.refused(f"expected {what}, a whole number from {lowest} to {highest}")
        return number

    return parse


def _index(given: _Given) -> int | None:
    value = given.value
    if isinstance(value, bool) or (isinstance(value, str) and given.source is None):
        return None
    try:
        return int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None


def _boolean(given: _Given) -> bool:
    if isinstance(given.value, bool):
        return given.value
    text = given.value.lower() if isinstance(given.value, str) and given.source else ""
    if text not in _TRUE | _FALSE:
        how = "one of 1, true, yes, on, 0, false, no, off" if given.source else "True or False"
        raise given.refused(f"expected {how}")
    return text in _TRUE


def _append(given: _Given) -> int:
    text = given.value.lower() if isinstance(given.value, str) and given.source else ""
    if isinstance(given.value, bool) or text in _TRUE | _FALSE:
        return APPENDED_SERIES if given.value is True or text in _TRUE else 0
    number = _index(given)
    if number is None or not (number == 0 or _LEAST_APPENDED <= number <= _MOST_APPENDED):
        expected = f"expected True, False or a number of series, {_LEAST_APPENDED} to {_MOST_APPENDED}"
        raise given.refused(expected)
    return number


def _orca(given: _Given) -> str:
    value = given.value
    if isinstance(value, bool):
        return "request" if value else "off"
    text = value.lower() if isinstance(value, str) else ""
    if given.source and text in _TRUE | _FALSE:
        return "request" if text in _TRUE else "off"
    if text not in ORCA_FORMS:
        raise given.refused("expected one of 'off', 'request', 'text', 'json', True, False", ORCA_FORMS)
    return text


def _path(given: _Given) -> str:
    value = given.value
    if not isinstance(value, str) or not _PATH.fullmatch(value or "/") or set(value) & set("?#"):
        raise given.refused("expected a path like '/metrics', or '' for none")
    return value


def _token(given: _Given) -> str:
    """A bad one is not shown: it may be a good one with a blank behind it."""
    value = given.value
    if not isinstance(value, str) or (value and not _TOKEN.fullmatch(value)):
        expected = "expected 1 to 256 visible ASCII characters without blanks, or '' for none"
        raise replace(given, value=SECRET).refused(expected)
    return value


def _directory(given: _Given) -> str:
    """An absolute path: the processes of a group may run in different directories."""
    value = given.value
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or "\0" in path or (path and not os.path.isabs(path)):
        raise given.refused("expected an absolute path like '/dev/shm/tailwatch-1', or '' for no group")
    return path


def _role(given: _Given) -> str:
    if not isinstance(given.value, str) or not _ROLE.fullmatch(given.value):
        raise given.refused("expected a name of 1 to 31 letters, digits, '_', '.', '-', like 'engine'")
    return given.value


def _engine(given: _Given) -> str:
    """Numbers as their digits."""
    number = None if isinstance(given.value, str) else _index(given)
    text = given.value if number is None else str(number)
    if text == "":
        return ""
    digits = isinstance(text, str) and text.isascii() and text.isdigit()
    if not isinstance(text, str) or not _ROLE.fullmatch(text) or (digits and int(text) >= _ENGINE_NUMBERS):
        expected = "expected a number from 0 to 2**32 - 1, or a name of 1 to 31 letters, digits, '_', '.', '-'"
        raise given.refused(expected)
    return str(int(text)) if digits else text


def _routes(given: _Given) -> tuple[str, ...]:
    value = given.value
    expected = "expected route templates that begin with '/', like ['/generate', '/v2/{name}/stream']"
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise given.refused(expected)
    if not all(isinstance(route, str) and route.startswith("/") and route.isprintable() for route in value):
        raise given.refused(expected)
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def _events(given: _Given) -> int:
    number = _index(given)
    if number is None or not (number == 0 or LEAST_EVENTS <= number <= MOST_EVENTS):
        raise given.refused(f"expected a number of events, from {LEAST_EVENTS} to {MOST_EVENTS}, or 0 for none")
    return number


_OTEL = "expected True, False, a MetricExporter or a MeterProvider of OpenTelemetry, or several"


def _otel(given: _Given) -> object:
    """True, False, or a tuple of what the user has made. What they are is looked at by the exporter."""
    value = given.value
    if isinstance(value, str) and "://" in value:
        raise given.refused(f"{_OTEL}; set OTEL_EXPORTER_OTLP_ENDPOINT to the receiver's address")
    if isinstance(value, (bool, str)):
        return _boolean(given)
    made = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not made or not all(hasattr(each, "export") or hasattr(each, "get_meter") for each in made):
        raise given.refused(_OTEL)
    return made


_PARSERS: Mapping[str, Callable[[_Given], object]] = {
    "slo": _parsed(SLO),
    "gc": _gc,
    "gc_memory_limit": _parsed(MemoryLimit),
    "gc_warn_ms": _milliseconds,
    "gc_log_all": _boolean,
    "slow_gap_ms": _milliseconds,
    "metrics_path": _path,
    "metrics_append": _append,
    "metrics_port": _integer(0, 65535, "a TCP port or 0 for none"),
    "histograms": _histograms,
    "exemplars": _boolean,
    "page": _boolean,
    "page_token": _token,
    "dir": _directory,
    "otel": _otel,
    "role": _role,
    "engine": _engine,
    "routes": _routes,
    "max_label_sets": _integer(1, 4096, "a number of label sets"),
    "trust_request_start": _boolean,
    "fast_sse": _boolean,
    "orca": _orca,
    "server_timing": _boolean,
    "sse_timing": _boolean,
    "nvtx": _nvtx,
    "stalls": _stalls,
    "quiet": _boolean,
    "nvtx_tokens": _boolean,
    "trace_events": _events,
    "trace_on": _parsed(Triggers),
    "trace_keep": _parsed(Keep),
}
