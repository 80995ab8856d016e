"""What a run of the load tester found: typed numbers, columns of requests, and their JSON.

Every time counts from the *planned* start unless its name says naive: what a tester reports that forgets its plan
stands beside it. Rates are per second of the plan. A file holds runs: {"tailwatch": version, "format": 1, "layout":
hash of the buckets, "runs": [...]}; runs of several processes or machines that were one load merge into one:
merging.py.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest.censored_percentiles import Buckets, Quantile, Ranks, Sample
from tailwatch.loadtest.histogram import LAYOUT_HASH, Histogram
from tailwatch.loadtest.outcomes import CODE, FAULTS, MISSES, NEVER_SENT, REASONS, Outcomes
from tailwatch.loadtest.proportions import interval
from tailwatch.loadtest.trial import Window
from tailwatch.options.slo import SLO
from tailwatch.platform import VERSION

FORMAT = 1
MOST_SAVED = 100_000  # requests whose columns go into a file; of a longer run the histograms do
EXCLUDED_LIMIT = 0.01  # share of the schedule that may be excluded (4xx) before the run says nothing
MOST_EXAMPLES = 3  # failures of each kind that are shown
NEVER = -1  # in a column of times: it did not happen

# name → array code. Times: nanoseconds from the start of the run.
COLUMNS = {
    "planned": "q",
    "sent": "q",
    "first_byte": "q",
    "first_chunk": "q",
    "first": "q",
    "last": "q",
    "end": "q",
    "tpot": "q",
    "largest_gap": "q",
    "largest_gap_at": "q",
    "index": "I",
    "prompt": "I",
    "wanted": "I",
    "tokens": "I",
    "messages": "I",
    "due": "I",
    "met": "I",
    "status": "H",
    "reason": "B",
    "fault": "B",
    "flags": "B",
}
REUSED, RETRIED, MARKED = 1, 2, 4  # flags


class Requests:
    """One row a request, in columns (array.array): some 110 bytes each.

    planned, sent, first_byte, first_chunk, first (content), last (content), end, largest_gap_at: ns from the start of
    the run, NEVER where it did not happen; end: also when one that was never sent was given up. tpot, largest_gap: ns;
    NEVER where there is none. index: of the schedule. prompt, wanted: tokens asked for; tokens: that came. due, met:
    token deadlines (fluidity). reason, fault: codes into outcomes.REASONS and FAULTS. flags: REUSED, RETRIED (a stale
    connection), MARKED (one of its gaps, or its first token, overlaps a pause of this client).
    """

    __slots__ = tuple(COLUMNS)

    planned: array[int]
    sent: array[int]
    first_byte: array[int]
    first_chunk: array[int]
    first: array[int]
    last: array[int]
    end: array[int]
    tpot: array[int]
    largest_gap: array[int]
    largest_gap_at: array[int]
    index: array[int]
    prompt: array[int]
    wanted: array[int]
    tokens: array[int]
    messages: array[int]
    due: array[int]
    met: array[int]
    status: array[int]
    reason: array[int]
    fault: array[int]
    flags: array[int]

    def __init__(self) -> None:
        for name, code in COLUMNS.items():
            setattr(self, name, array(code))

    def __len__(self) -> int:
        return len(self.planned)

    def add(self, **values: int) -> None:
        """A row; every column is named."""
        for name in COLUMNS:
            getattr(self, name).append(values[name])

    def extend(self, other: Requests, shift_ns: int = 0) -> None:
        """Takes in the rows of another run that began shift_ns after this one."""
        for name in COLUMNS:
            column = getattr(other, name)
            if shift_ns and name in _MOMENTS:
                column = array("q", (value if value == NEVER else value + shift_ns for value in column))
            getattr(self, name).extend(column)

    def since_planned(self, name: str) -> array[int]:
        """ns from the planned start to the moment of a column, of the requests where it happened."""
        return _differences(getattr(self, name), self.planned)

    def since_sent(self, name: str) -> array[int]:
        """The same from the actual send."""
        return _differences(getattr(self, name), self.sent)

    def as_dict(self) -> dict[str, list[int]]:
        """For JSON: a list a column."""
        return {name: getattr(self, name).tolist() for name in COLUMNS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Requests:
        """Of `as_dict`'s lists. TypeError, ValueError, KeyError or OverflowError for anything else."""
        found = cls()
        for name, code in COLUMNS.items():
            setattr(found, name, array(code, data[name]))
        if len({len(getattr(found, name)) for name in COLUMNS}) != 1:
            raise ValueError("columns of different lengths")
        if found.reason and (max(found.reason) >= len(REASONS) or max(found.fault) >= len(FAULTS)):
            raise ValueError("an outcome that this version does not know")
        return found


_MOMENTS = ("planned", "sent", "first_byte", "first_chunk", "first", "last", "end", "largest_gap_at")


def _differences(later: array[int], earlier: array[int]) -> array[int]:
    pairs = zip(later, earlier, strict=True)
    return array("q", (max(0, end - start) for end, start in pairs if end != NEVER and start != NEVER))


# Histograms of a run, with their layout. The naive ones count from the actual send.
LATENCIES = {
    "ttft": "ttft",
    "ttft_naive": "ttft",
    "first_byte": "ttft",
    "first_chunk": "ttft",
    "itl": "itl",
    "itl_unmarked": "itl",
    "tpot": "itl",
    "e2e": "e2e",
    "e2e_naive": "e2e",
    "largest_gap": "itl",
    "send_lag": "ttft",
    "connect": "ttft",
    "ttft_censored": "ttft",
    "e2e_censored": "e2e",
}
CENSORED = {"ttft": "ttft_censored", "e2e": "e2e_censored"}  # latency → how long was waited for what never came


@dataclass(slots=True)
class Latencies:
    """The histograms of a run.

    ttft: planned start → first content; ttft_naive: actual send → the same. first_byte, first_chunk: of the answer, of
    its body (a role, a ping). itl: each gap between messages with content; itl_unmarked: those of them that overlap no
    pause of this client. tpot: per choice of answers that came whole. e2e, e2e_naive: to the end of answers that came
    whole, with status below 300. largest_gap: one sample a request with two messages or more. send_lag: planned start →
    actual send. connect: how long opening a connection took, where a request had to. ttft_censored, e2e_censored: how
    old the requests were that this client ended or never sent before they had one; lost: how many failed before that,
    by latency. A percentile of both is asked of `Result.quantile`.
    """

    ttft: Histogram = field(default_factory=lambda: Histogram("ttft"))
    ttft_naive: Histogram = field(default_factory=lambda: Histogram("ttft"))
    first_byte: Histogram = field(default_factory=lambda: Histogram("ttft"))
    first_chunk: Histogram = field(default_factory=lambda: Histogram("ttft"))
    itl: Histogram = field(default_factory=lambda: Histogram("itl"))
    itl_unmarked: Histogram = field(default_factory=lambda: Histogram("itl"))
    tpot: Histogram = field(default_factory=lambda: Histogram("itl"))
    e2e: Histogram = field(default_factory=lambda: Histogram("e2e"))
    e2e_naive: Histogram = field(default_factory=lambda: Histogram("e2e"))
    largest_gap: Histogram = field(default_factory=lambda: Histogram("itl"))
    send_lag: Histogram = field(default_factory=lambda: Histogram("ttft"))
    connect: Histogram = field(default_factory=lambda: Histogram("ttft"))
    ttft_censored: Histogram = field(default_factory=lambda: Histogram("ttft"))
    e2e_censored: Histogram = field(default_factory=lambda: Histogram("e2e"))
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CENSORED, 0))

    def add(self, other: Latencies) -> None:
        """Takes in another run's samples."""
        for name in LATENCIES:
            getattr(self, name).add(getattr(other, name))
        self.lost = {name: count + other.lost[name] for name, count in self.lost.items()}

    def sample(self, name: str) -> Sample:
        """What percentiles of a latency are of, out of its histogram."""
        ages = getattr(self, CENSORED[name]) if name in CENSORED else None
        return Buckets(getattr(self, name), ages, self.lost.get(name, 0))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name).as_dict() for name in LATENCIES} | {"lost": self.lost}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Latencies:
        """Of `as_dict`'s numbers."""
        found = cls(lost={name: int(data["lost"][name]) for name in CENSORED})
        for name in LATENCIES:
            setattr(found, name, Histogram.from_dict(data[name]))
        wrong = [name for name, layout in LATENCIES.items() if getattr(found, name).layout != layout]
        if wrong:
            raise ValueError(f"the buckets of {wrong[0]} are those of another latency")
        return found


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many of the *scheduled* requests were good, and how many a second.

    scheduled: of the plan. counted: scheduled − excluded, the denominator. attainment: good / counted; None where
    nothing counts. low, high: its interval of 95 %, which counts misses of one stall as one; None for runs of less than
    8 s, which show no such thing. believed: the run is valid; of another one nothing is said about its SLO.
    wanted: the attainment of the SLO. rate: good requests per second of the plan. throughput: answers that came whole
    per second, over a window as long as the plan that opens with the first of them. tokens: output tokens per second
    over the whole run. broken: late requests by the bound
    that they exceeded (one may exceed several).
    """

    slo: str
    scheduled: int
    good: int
    miss: int
    excluded: int
    attainment: float | None
    low: float | None
    high: float | None
    wanted: float
    rate: float
    throughput: float
    tokens: float
    broken: dict[str, int] = field(default_factory=dict)
    believed: bool = True

    @property
    def counted(self) -> int:
        """The denominator of the attainment."""
        return self.good + self.miss

    @property
    def held(self) -> bool | None:
        """Whether the attainment asked for was reached; None: the run does not say (it is not valid, or nothing
        counted)."""
        return self.attainment >= self.wanted if self.believed and self.attainment is not None else None


# One row a second of the run, from its start.
SERIES = (
    "scheduled",
    "sent",
    "finished",
    "good",
    "miss",
    "tokens",
    "in_flight",
    "largest_gap_ns",
    "ttft_max_ns",
    "client_paused_ns",
)


@dataclass(slots=True)
class Series:
    """Numbers of each second of the run, lists of equal length.

    scheduled, good, miss, ttft_max_ns: of the requests *planned* for it. sent, finished, tokens, largest_gap_ns: of
    what happened in it (a gap where it began). in_flight: most at once, as far as sends and ends tell.
    client_paused_ns: how long this client was away.
    """

    scheduled: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    good: list[int] = field(default_factory=list)
    miss: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    largest_gap_ns: list[int] = field(default_factory=list)
    ttft_max_ns: list[int] = field(default_factory=list)
    client_paused_ns: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.scheduled)

    def reach(self, second: int) -> None:
        """Grow to hold that second."""
        for name in SERIES:
            column = getattr(self, name)
            column.extend([0] * (second + 1 - len(column)))

    @property
    def windows(self) -> tuple[Window, ...]:
        """The seconds for which something was planned."""
        rows = zip(self.scheduled, self.good, self.miss, self.finished, strict=True)
        return tuple(Window(n, good + miss, good, done) for n, good, miss, done in rows if n)

    def later(self, seconds: int) -> Series:
        """The same from a start so many seconds earlier."""
        return Series(**{name: [0] * seconds + list(getattr(self, name)) for name in SERIES})

    def plus(self, other: Series) -> Series:
        """Second by second; both begin together. Sums, but the largest of what is a maximum."""
        both, length = Series(), max(len(self), len(other))
        for name in SERIES:
            one, two = (list(getattr(part, name)) + [0] * (length - len(part)) for part in (self, other))
            combine: Callable[[int, int], int] = max if name.endswith("_ns") else int.__add__
            setattr(both, name, [combine(a, b) for a, b in zip(one, two, strict=True)])
        return both


@dataclass(slots=True)
class Client:
    """How the client itself did: what of the numbers above is its own doing.

    pauses: [start, length] in ns from the start of the run, of each time when the client's loop stood still longer than
    10 ms. paused: seconds of them together, paused_cpu: of CPU that it used in them. marked_requests, marked_gaps:
    requests and gaps that overlap one. loop_lag: how late a timer of 5 ms came. gc_seconds: of its own collector
    (frozen and off during the run). cpu: share of one core, the mean; cpu_peak: of its busiest second. in_flight_max,
    connections_max, opened, retries: of the pool. cap: most requests in flight allowed, 0: no cap; capped: requests
    that it kept waiting or from being sent. memory: largest resident size in bytes. processes: how many clients these
    numbers are of (cpu is of the busiest).
    """

    pauses: list[tuple[int, int]] = field(default_factory=list)
    paused: float = 0.0
    paused_cpu: float = 0.0
    marked_requests: int = 0
    marked_gaps: int = 0
    loop_lag: Histogram = field(default_factory=lambda: Histogram("itl"))
    gc_seconds: float = 0.0
    cpu: float = 0.0
    cpu_peak: float = 0.0
    in_flight_max: int = 0
    connections_max: int = 0
    opened: int = 0
    retries: int = 0
    cap: int = 0
    capped: int = 0
    memory: int = 0
    processes: int = 1
    uvloop: bool = False

    def plus(self, other: Client) -> Client:
        """Two clients of one load."""
        lag = Histogram("itl")
        lag.add(self.loop_lag)
        lag.add(other.loop_lag)
        return Client(
            pauses=sorted([*self.pauses, *other.pauses]),
            loop_lag=lag,
            cpu=max(self.cpu, other.cpu),
            cpu_peak=max(self.cpu_peak, other.cpu_peak),
            uvloop=self.uvloop and other.uvloop,
            **{name: getattr(self, name) + getattr(other, name) for name in _ADDED},
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**named, "loop_lag": self.loop_lag.as_dict(), "pauses": [list(pause) for pause in self.pauses]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Client:
        """Of `as_dict`'s numbers."""
        pauses = [(int(start), int(length)) for start, length in data["pauses"]]
        return cls(**{**data, "loop_lag": Histogram.from_dict(data["loop_lag"]), "pauses": pauses})


_ADDED = (
    "paused",
    "paused_cpu",
    "marked_requests",
    "marked_gaps",
    "gc_seconds",
    "in_flight_max",
    "connections_max",
    "opened",
    "retries",
    "cap",
    "capped",
    "memory",
    "processes",
)


@dataclass(slots=True)
class Validity:
    """Whether the run may be believed.

    verdict: "valid", "invalid" (its schedule was not kept, this client was too slow to stamp, or too much is excluded),
    "capped" (its cap on requests in flight bound: a closed loop in disguise) or "interrupted" (Ctrl-C: what was had
    until then). reasons: why not, sentences. warnings: what a reader should know all the same.
    """

    verdict: str = "valid"
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Nothing speaks against it."""
        return self.verdict == "valid"


_SUMMARY = (50, 90, 95, 99, 99.9, 100)
VERDICTS = ("valid", "interrupted", "capped", "invalid")  # the worse the later


@dataclass(slots=True)
class Result:
    """One run.

    target: its URL, without user and password. name: what the user calls it. settings: what was asked for, without
    secrets.
    schedule: {"digest", "seed", and the fields of `schedule.Law`}. closed: a closed loop: nothing was planned, so
    corrected and naive are the same. started: unix time of the start. duration: seconds of the plan; elapsed: until
    the last answer. interrupted: Ctrl-C ended it, whatever else the verdict says.
    examples: of what came instead of answers, by the name of the fault or outcome; without secrets.
    tokens: output tokens. fluidity: share of token deadlines met, None where the SLO has none; idle: seconds, of all
    answers together, in which a reader at the pace of these deadlines had nothing to read after the first token.
    requests: the columns; None where they were left out of the file.
    """

    target: str
    duration: float
    goodput: Goodput
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    closed: bool = False
    started: float = 0.0
    elapsed: float = 0.0
    slo: SLO | None = None
    outcomes: Outcomes = field(default_factory=Outcomes)
    latencies: Latencies = field(default_factory=Latencies)
    tokens: int = 0
    fluidity: float | None = None
    idle: float | None = None
    series: Series = field(default_factory=Series)
    client: Client = field(default_factory=Client)
    validity: Validity = field(default_factory=Validity)
    interrupted: bool = False
    requests: Requests | None = None
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ttft(self) -> Histogram:
        """Planned start → first content; seconds out of `p()`, `max` …"""
        return self.latencies.ttft

    @property
    def itl(self) -> Histogram:
        """Gaps between messages with content."""
        return self.latencies.itl

    @property
    def tpot(self) -> Histogram:
        """(last − first token) / (tokens − 1)."""
        return self.latencies.tpot

    @property
    def e2e(self) -> Histogram:
        """Planned start → end of whole answers."""
        return self.latencies.e2e

    @property
    def largest_gap(self) -> Histogram:
        """The worst gap of each request."""
        return self.latencies.largest_gap

    @property
    def valid(self) -> bool:
        """Whether the run may be believed."""
        return self.validity.valid and not self.interrupted

    @property
    def offered(self) -> float:
        """Requests per second of the plan."""
        return self.outcomes.scheduled / self.duration if self.duration > 0 else 0.0

    def percentile(self, metric: str, percent: float) -> float | None:
        """Seconds of a latency (a field of `Latencies`); None where there is no sample. Of TTFT and E2E a lower bound
        where `quantile` says so."""
        found = self.quantile(metric, percent)
        return None if found is None else found.seconds

    def quantile(self, metric: str, percent: float) -> Quantile | None:
        """The same, with whether it is a lower bound only: requests that this client ended or never sent, and those
        that failed, stand behind those that got their first token (TTFT) or their whole answer (E2E).

        Exact (the sample of rank ceil(percent / 100 * count)) where the latency is one a request and the columns of at
        most MOST_SAVED requests are known, else out of its histogram.

        Raises:
            OptionError: percent is not from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise OptionError.of("percent", percent, "expected a number from 0 to 100")
        return self.sample(metric).quantile(percent)

    def sample(self, metric: str, most: int = MOST_SAVED) -> Sample:
        """What its percentiles are of: the requests themselves, where they are known and at most so many."""
        rows = self.requests
        if rows is None or len(rows) > most or metric in ("itl", "itl_unmarked", "connect", *CENSORED.values()):
            return self.latencies.sample(metric)
        return Ranks(samples(rows, metric), *(unanswered(rows, metric) if metric in CENSORED else ()))

    def as_dict(self, *, requests: bool = True) -> dict[str, Any]:
        """For JSON; `from_dict` gives an equal one. requests: with their columns, up to MOST_SAVED of them."""
        columns = self.requests if requests and self.requests is not None else None
        if columns is not None and len(columns) > MOST_SAVED:
            columns = None
        return {
            "name": self.name,
            "target": self.target,
            "settings": self.settings,
            "schedule": self.schedule,
            "closed": self.closed,
            "started": self.started,
            "duration": self.duration,
            "elapsed": self.elapsed,
            "slo": None if self.slo is None else self.slo.text,
            "goodput": asdict(self.goodput),
            "outcomes": asdict(self.outcomes),
            "validity": asdict(self.validity),
            "interrupted": self.interrupted,
            "tokens": self.tokens,
            "fluidity": self.fluidity,
            "idle": self.idle,
            "seconds_p": self._summary(),
            "at_least_p": self._bounds(),
            "latencies": self.latencies.as_dict(),
            "series": asdict(self.series),
            "client": self.client.as_dict(),
            "examples": self.examples,
            "requests": None if columns is None else columns.as_dict(),
        }

    def _summary(self) -> dict[str, dict[str, float | None]]:
        """For a reader of the file; not read back. Out of the histograms, so that it takes no memory."""
        found = {name: self.latencies.sample(name) for name in LATENCIES}
        asked = {name: {p: sample.quantile(p) for p in _SUMMARY} for name, sample in found.items()}
        return {
            name: {f"{p:g}": None if q is None else q.seconds for p, q in row.items()} for name, row in asked.items()
        }

    def _bounds(self) -> dict[str, list[str]]:
        """Which of these numbers are lower bounds."""
        found = {name: self.latencies.sample(name) for name in CENSORED}
        asked = {name: [(p, sample.quantile(p)) for p in _SUMMARY] for name, sample in found.items()}
        return {name: [f"{p:g}" for p, q in row if q is not None and q.censored] for name, row in asked.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, name: str = "result") -> Result:
        """Of `as_dict`'s numbers. name: the file, for the error.

        Raises:
            TailwatchError: they are none.
        """
        try:
            return cls._of(data)
        except TailwatchError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise TailwatchError(f"{name}: a damaged run: {type(error).__name__} {error}") from error

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> Result:
        columns = data["requests"]
        outcomes = Outcomes(
            {reason: int(data["outcomes"]["by_reason"][reason]) for reason in REASONS},
            {fault: int(count) for fault, count in data["outcomes"]["faults"].items()},
        )
        series = Series(**{key: [int(value) for value in data["series"][key]] for key in SERIES})
        if len({len(getattr(series, key)) for key in SERIES}) != 1:
            raise ValueError("a series of different lengths")
        return cls(
            target=str(data["target"]),
            name=str(data["name"]),
            settings=dict(data["settings"]),
            schedule=dict(data["schedule"]),
            closed=bool(data["closed"]),
            started=float(data["started"]),
            duration=float(data["duration"]),
            elapsed=float(data["elapsed"]),
            tokens=int(data["tokens"]),
            fluidity=None if data["fluidity"] is None else float(data["fluidity"]),
            idle=None if data.get("idle") is None else float(data["idle"]),
            slo=None if data["slo"] is None else SLO.parse(data["slo"]),
            goodput=Goodput(**data["goodput"]),
            outcomes=outcomes,
            latencies=Latencies.from_dict(data["latencies"]),
            series=series,
            client=Client.from_dict(data["client"]),
            validity=Validity(**data["validity"]),
            interrupted=bool(data.get("interrupted", data["validity"]["verdict"] == "interrupted")),
            requests=None if columns is None else Requests.from_dict(columns),
            examples={name: [text] if isinstance(text, str) else list(text) for name, text in data["examples"].items()},
        )


def samples(requests: Requests, metric: str) -> array[int]:
    """The samples in ns of a latency that is one a request, in the order of the requests. Not "itl"."""
    if metric in ("tpot", "largest_gap"):
        return array("q", (value for value in getattr(requests, metric) if value != NEVER))
    if metric == "send_lag":
        return requests.since_planned("sent")
    if metric in ("e2e", "e2e_naive"):
        since = requests.sent if metric == "e2e_naive" else requests.planned
        rows = zip(requests.end, since, requests.status, requests.fault, strict=True)
        return array("q", (end - start for end, start, status, fault in rows if _whole(end, start, status, fault)))
    if metric == "ttft_naive":
        return requests.since_sent("first")
    return requests.since_planned({"ttft": "first"}.get(metric, metric))


def _whole(end: int, start: int, status: int, fault: int) -> bool:
    """An answer that came whole and was none of error: what E2E is of."""
    return end != NEVER and start != NEVER and 200 <= status < 300 and fault == 0


_MISSED = frozenset(CODE[name] for name in MISSES if name != "late")  # no answer, or none that counts
_GIVEN_UP = frozenset(FAULTS.index(name) for name in ("timeout", "abandoned", "client_limit"))


def unanswered(requests: Requests, metric: str) -> tuple[array[int], int]:
    """Of the requests that count and have no TTFT ("ttft"), or no whole answer ("e2e"): how old those were, in ns, that
    this client ended or never sent; and how many others there are: they failed."""
    ages, lost = array("q"), 0
    columns = (getattr(requests, name) for name in ("reason", "first", "fault", "end", "planned"))
    for reason, first, fault, end, planned in zip(*columns, strict=True):
        if reason not in _MISSED or (metric == "ttft" and first != NEVER):
            continue
        if fault in _GIVEN_UP or reason == CODE[NEVER_SENT]:
            ages.append(max(0, end - planned))
        else:
            lost += 1
    return ages, lost


def goodput_of(
    outcomes: Outcomes,
    slo: SLO | None,
    *,
    duration: float,
    throughput: float,
    tokens: float,
    broken: dict[str, int],
    windows: Sequence[Window] = (),
    believed: bool = True,
) -> Goodput:
    """The verdict over what was scheduled. windows: of equal length, for the interval."""
    counted = outcomes.good + outcomes.miss
    low, high = interval(windows) or (None, None)
    return Goodput(
        slo="" if slo is None else slo.text,
        scheduled=outcomes.scheduled,
        good=outcomes.good,
        miss=outcomes.miss,
        excluded=outcomes.excluded,
        attainment=outcomes.good / counted if counted else None,
        low=low,
        high=high,
        wanted=0.99 if slo is None else slo.attainment,
        rate=outcomes.good / duration if duration > 0 else 0.0,
        throughput=throughput,
        tokens=tokens,
        broken=broken,
        believed=believed,
    )


def save(path: str | Path, runs: Sequence[Result], *, requests: bool = True) -> None:
    """Writes runs as one JSON file.

    Raises:
        TailwatchError: the file cannot be written.
    """
    data = {
        "tailwatch": VERSION,
        "format": FORMAT,
        "layout": LAYOUT_HASH,
        "runs": [run.as_dict(requests=requests) for run in runs],
    }
    try:
        Path(path).write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from error


def load(path: str | Path) -> list[Result]:
    """Reads what `save` wrote.

    Raises:
        TailwatchError: no such file, no results, of another format, or of other buckets.
    """
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise TailwatchError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TailwatchError(f"{path}: this is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("runs"), list):
        raise TailwatchError(
            f"{path}: these are no results of format {FORMAT}, as `tailwatch bench --json` writes them"
        )
    if data.get("layout") != LAYOUT_HASH:
        raise TailwatchError(f"{path}: its histograms have other buckets, of tailwatch {data.get('tailwatch')}")
    return [Result.from_dict(run, name=str(path)) for run in data["runs"]]
