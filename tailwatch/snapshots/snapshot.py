"""Numbers at rest: what a process or a group measured, frozen, mergeable, and what can be asked of it.

The only importer of tailwatch._cold. Every call into it drops the GIL. All times are seconds, as float.
"""

from __future__ import annotations

import errno
import math
import numbers
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache, cached_property
from typing import Any, NamedTuple, NoReturn

from tailwatch._cold import ffi, lib
from tailwatch.errors import EmptyGroupError, OptionError, TailwatchError
from tailwatch.options.slo import parse_window

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_STORED_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_STORED_WINDOWS = ("1m", "5m", "1h")
_LOW = 0xFFFF_FFFF
_GENERATIONS = {"gc0": 0, "gc1": 1, "gc2": 2}


def _names(name: Any, count: int) -> tuple[str, ...]:
    return tuple(ffi.string(name(i)).decode() for i in range(count))


CAUSES = _names(lib.tw_cause_name, lib.TW_CAUSES)
PHASES = _names(lib.tw_phase_name, lib.TW_PHASES)
REASONS = _names(lib.tw_reason_name, lib.TW_REASONS)
OUTCOMES = _names(lib.tw_outcome_name, lib.TW_OUTCOMES)
ARRIVALS = _names(lib.tw_arrival_name, lib.TW_ARRIVALS)
DROPS = _names(lib.tw_drop_name, lib.TW_DROPS)
ERRORS = _names(lib.tw_error_name, lib.TW_ERRORS)
MOMENTS = _names(lib.tw_moment_name, lib.TW_MOMENTS)
PASSES = _names(lib.tw_pass_name, lib.TW_PASSES)
DRIFTS = _names(lib.tw_drift_name, lib.TW_DRIFTS)
CEILINGS = _names(lib.tw_ceiling_name, lib.TW_CEILINGS)
POLICIES = _names(lib.tw_policy_kind_name, lib.TW_POLICY_KINDS)
POLICY_MODES = _names(lib.tw_policy_mode_name, lib.TW_POLICY_MODES)
POLICY_WHYS = _names(lib.tw_policy_why_name, lib.TW_WHYS)
OUTCOME_OF = {reason: OUTCOMES[lib.tw_reason_outcome(i)] for i, reason in enumerate(REASONS)}


def _by_name(names: Sequence[str], values: Any) -> dict[str, int]:
    return dict(zip(names, ffi.unpack(values, len(names)), strict=True))


def _seconds_by_cause(values_ns: Any) -> dict[str, float]:
    return {cause: ns / 1e9 for cause, ns in _by_name(CAUSES, values_ns).items()}


def _by_phase(values_ns: Any) -> dict[str, dict[str, float]]:
    return {phase: _seconds_by_cause(values_ns[i]) for i, phase in enumerate(PHASES)}


def _summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(row[key] for row in rows) for key in CAUSES}


def _text(words: Any) -> str:
    """Words of a fixed-size field, which end with a NUL."""
    raw: bytes = ffi.string(ffi.cast("const char *", words), ffi.sizeof(words))
    return raw.decode("utf-8", "replace")


def _check(error: int, what: str, found: object, expected: str) -> None:
    if error == errno.ENOMEM:
        raise MemoryError
    if error == errno.EINVAL:
        raise OptionError.of(what, found, expected)
    if error:
        raise OSError(error, os.strerror(error))


class _Frozen:
    """Attributes that are computed on first use and never change."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only: {name}")


class Histogram(_Frozen):
    """Samples in buckets 2.19 % wide, from 1 us to 1000 s. Counts and sums are exact.

    Attributes:
        count: samples.
        sum: seconds, all samples together.
        min, max: seconds; None when empty. In a difference of snapshots: edges of the outermost buckets, unless
            they are known.
    """

    count: int
    sum: float
    min: float | None
    max: float | None

    def __init__(self, counts: Any, layout: Any) -> None:
        known = counts.count > 0
        vars(self).update(
            _counts=counts,
            _layout=layout,
            count=counts.count,
            sum=lib.tw_counts_sum_seconds(counts),
            min=counts.min_ns / 1e9 if known else None,
            max=counts.max_ns / 1e9 if known else None,
        )

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        if not self.count:
            return "Histogram(empty)"
        named = {"min": self.p(0), "p50": self.p(50), "p99": self.p(99), "max": self.p(100)}
        return f"Histogram(count={self.count}, {', '.join(f'{name}={value:g}' for name, value in named.items())})"

    @property
    def mean(self) -> float | None:
        """Seconds; None when empty."""
        return self.sum / self.count if self.count else None

    def p(self, percent: float) -> float | None:
        """The value in seconds that this share of the samples does not exceed; None when empty.

        It is the sample of rank ceil(percent / 100 * count), at least 1, given as the geometric middle of its
        bucket (clamped to min and max): at most 1.1 % off from 1 us to 1000 s. p(0) is min, p(100) is max.

        PromQL's histogram_quantile() estimates otherwise: it does not round the rank up, and interpolates inside the
        bucket (2.2 % wide in a native histogram, as wide as its bounds are apart in a classic one), evenly or, from
        Prometheus 3 on, by its logarithm. So from the same counts the two differ by a bucket's width at most, where
        ranks fall into the same bucket; for p(0) and p(100) it has edges of buckets, not min and max.

        Raises:
            OptionError: percent is not a number from 0 to 100.
        """
        share = _real(percent)
        if not 0 <= share <= 100:
            raise OptionError.of("percent", percent, "expected a number from 0 to 100")
        if not self.count:
            return None
        quantile: int = lib.tw_counts_quantile(vars(self)["_counts"], vars(self)["_layout"], share / 100)
        return quantile / 1e9

    def below(self, seconds: float) -> float | None:
        """The share of the samples that is not above so many seconds, 0 to 1; None when empty.

        Exact at the classic bounds of the metric, at every bucket's edge, and outside [min, max]; in between the
        bucket's samples are taken as spread evenly over its logarithm.

        Raises:
            OptionError: not a number.
        """
        value = _real(seconds)
        if math.isnan(value):
            raise OptionError.of("seconds", seconds, "expected a number of seconds")
        if not self.count:
            return None
        counts = vars(self)["_counts"]
        if value * 1e9 >= counts.max_ns:
            return 1.0
        ns = max(0, round(value * 1e9))
        return 0.0 if ns < counts.min_ns else self._below(ns)

    def _below(self, ns: int) -> float:
        counts, layout = vars(self)["_counts"], vars(self)["_layout"]
        slot = lib.tw_slot_of(layout, ns)
        slots = ffi.unpack(counts.slot, slot + 1)
        edges = ffi.new("uint64_t[2]")
        lib.tw_slot_edges(layout, slot, edges, edges + 1)
        lower, upper = max(edges[0], counts.min_ns, 1), min(edges[1], counts.max_ns)
        place = math.log(max(ns, 1) / lower) / math.log(upper / lower) if upper > lower else 1.0
        share: float = (sum(slots[:-1]) + slots[-1] * min(max(place, 0.0), 1.0)) / self.count
        return share

    def bins(self) -> tuple[int, list[int]]:
        """The samples in bins a twelfth of their value wide, for a picture: the number of the first bin, and how many
        samples are in it and in each that follows; (0, []) when empty.

        Bin i holds what is above 2**(i / 8) and up to 2**((i + 1) / 8) seconds; i goes from -160, which holds all
        that is shorter too, to 79, which holds all that is longer.
        """
        if not self.count:
            return 0, []
        layout = vars(self)["_layout"]
        counts: dict[int, int] = {}
        for at, found in zip(_bins_of(layout), ffi.unpack(vars(self)["_counts"].slot, layout.slots), strict=True):
            if found:
                counts[at] = counts.get(at, 0) + found
        return min(counts), [counts.get(at, 0) for at in range(min(counts), max(counts) + 1)]

    def as_dict(self) -> dict[str, Any]:
        """count, sum, min, max, and the percentiles 50, 90, 95, 99 and 99.9 under "p". JSON-able."""
        stored = {f"{percent:g}": self.p(percent) for percent in _STORED_PERCENTILES}
        return {"count": self.count, "sum": self.sum, "min": self.min, "max": self.max, "p": stored}


@cache
def _bins_of(layout: Any) -> list[int]:
    """The bin of each slot of a layout: see Histogram.bins."""
    edges = ffi.new("uint64_t[2]")
    bins = []
    for slot in range(layout.slots):
        lib.tw_slot_edges(layout, slot, edges, edges + 1)
        middle = math.sqrt(max(edges[0], 1) * edges[1]) / 1e9  # of a slot, as its upper edge may be of the next bin
        bins.append(min(max(math.floor(8 * math.log2(middle)), -160), 79))
    return bins


def _real(value: object) -> float:
    """A number as float; NaN for anything else."""
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan


class Bounds(NamedTuple):
    """The SLO in force: seconds, None where there is no such bound; attainment is the share asked for."""

    ttft: float | None
    tpot: float | None
    itl: float | None
    e2e: float | None
    attainment: float


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that finished in the last seconds.

    attainment: good / (good + miss), None when nothing was judged. within: per bound the share of judged requests
    that kept it, None where there is no such bound or nothing was judged. fluidity: share of token deadlines met,
    None without any. seconds: what the window really covers.
    """

    good: int
    miss: int
    excluded: int
    finished: int
    attainment: float | None
    within: dict[str, float | None]
    fluidity: float | None
    seconds: float


class Second(NamedTuple):
    """Requests that finished in one second of the monotonic clock, which ``at`` is the number of."""

    at: int
    good: int
    miss: int
    finished: int


@dataclass(frozen=True, slots=True)
class GC:
    """Collections and our own passes. Every mapping but pauses is by cause, summed over the processes.

    pauses: lengths, under 0, 1, 2 (the generations), "gc_full", "gc_increment", "policy". collections: pauses that
    ended. collected, uncollectable: objects. cpu: CPU seconds of the collecting thread, where measured. callbacks:
    seconds in other people's gc.callbacks. short, short_seconds: the pauses below 50 us, which are charged to no
    gap. max: the longest, seconds.
    """

    pauses: dict[int | str, Histogram]
    collections: dict[str, int]
    collected: dict[str, int]
    uncollectable: dict[str, int]
    cpu: dict[str, float]
    callbacks: dict[str, float]
    short: dict[str, int]
    short_seconds: dict[str, float]
    max: dict[str, float]


@dataclass(frozen=True, slots=True)
class Policy:
    """The collector's policy of one process. Counts are of all who had its name, what it is and the sizes are of
    the one that lives.

    Attributes:
        kind: "off", "observe", "freeze", "out-of-band"; "unknown": nobody said, or it is dead.
        mode: how out-of-band collects: "sweep", "whole passes" (why: "version", "lists", "proof"), "" not yet.
        slices: by what gave the moment. passes: collections outside slices: our whole passes, by the same; "automatic",
            "foreign" (somebody else called for it), "untold" (one of these two).
        moved, freed: objects, of all slices; seconds, predicted_seconds: what slices took, and were predicted to.
        pass_seconds, pass_freed: of our whole passes. rounds: times that slices went through the whole old heap.
        freezes: ours. drift: what others did to the collector, by name; "freeze_blind": of "freeze", those without a
            full collection just before. ceilings: times that one was met.
        unfrozen, frozen: objects, None: not known. debt: looks at old ones that are owed, some ten go through one.
            cost: seconds that a look is predicted to take, 0.0: not known.
        ignored: files that stood where an operator's orders do, and were none. answered, answer: number of the last
            order of `tailwatch gc`, and what came of it (orders.Outcome).
    """

    kind: str = "unknown"
    mode: str = ""
    why: str = ""
    slices: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    freed: int = 0
    seconds: float = 0.0
    predicted_seconds: float = 0.0
    pass_seconds: float = 0.0
    pass_freed: int = 0
    rounds: int = 0
    freezes: int = 0
    drift: dict[str, int] = field(default_factory=dict)
    ceilings: dict[str, int] = field(default_factory=dict)
    unfrozen: int | None = None
    frozen: int | None = None
    debt: int = 0
    cost: float = 0.0
    ignored: int = 0
    answered: int = 0
    answer: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """One process, and the dead that had its name before. index: among those of its role, for life. pid: 0 where
    nobody knows it any more. paused: seconds by cause, an open pause included. lost: pauses that never reported an end.
    bytes: memory of its segment, and of those of the dead. collections, longest: pauses that ended, and the longest in
    seconds (of a difference: to the edge of its bucket, 2 %), by cause. lives: when the snapshot was taken; False where
    all of that name are dead. age: seconds since the first of them began to count until then. standing: how long it
    had been standing still then, seconds, for standing_cause; 0.0: it was not. policy: the collector's."""

    role: str
    index: int
    name: str
    pid: int
    paused: dict[str, float]
    lost: int
    bytes: int
    collections: dict[str, int]
    longest: dict[str, float]
    lives: bool
    age: float
    standing: float
    standing_cause: str
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class StepPart:
    """The steps themselves, or the host gaps before them.

    time: their lengths. overlap: seconds that coincided with pauses of their process, by cause: an upper bound of their
    blame. requests: the same, each second times the requests that it may have delayed: those in the step's batch, or
    left waiting at the gap.
    """

    time: Histogram
    overlap: dict[str, float]
    requests: dict[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """An engine's steps of one name, in one process; see tailwatch.step().

    process: its name, such as "engine-0". steps: the steps. host_gaps: from the end of a step to the begin of one of
    these, where that end left requests with work to do. requests: in the batches, summed. unknown_gap: seconds before
    steps, after an end that did not say whether it left work.
    """

    process: str
    role: str
    name: str
    steps: StepPart
    host_gaps: StepPart
    requests: int
    unknown_gap: float

    @property
    def batch(self) -> float | None:
        """Requests in a step, on average; None without steps."""
        return self.requests / self.steps.time.count if self.steps.time.count else None


@dataclass(frozen=True, slots=True)
class Share:
    """What the pauses of one cause, of one role's processes, did to one gap. overlap, late: as in SlowGap, seconds."""

    source: str
    cause: str
    overlap: float
    late: float


@dataclass(frozen=True, slots=True)
class SlowGap:
    """One slow gap, or wait for a first token. Times in seconds.

    overlap: how long it coincided with pauses, an upper bound of their blame. late: the estimate of what they cost
    it. client: waiting for a slow client. accept: waited before the app was entered. unexplained: the rest of what
    exceeds the typical gap. complete: False where the pauses were overwritten: overlap is then a lower bound, late
    unknown. token: which of its stream, 1 is the first. others: what of overlap and late is the doing of other
    processes than the stream's own, the largest four shares.
    """

    when: datetime
    phase: str
    gap: float
    typical: float
    overlap: dict[str, float]
    late: dict[str, float]
    client: float
    accept: float
    unexplained: float
    complete: bool
    request_id: str
    trace_id: str
    model_name: str
    route: str
    token: int
    others: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class Octave:
    """Gaps longer than usual, of [lower, upper) seconds (the last octave is open), and where their time went."""

    lower: float
    upper: float
    count: int
    time: float
    late: dict[str, float]
    client: float
    accept: float
    unexplained: float


@dataclass(frozen=True, slots=True)
class Pause:
    """One recorded pause of this process, at least 50 us long. Times in seconds.

    streams: gaps that it was charged to so far; overlap and late: theirs, summed. cpu: 0 where not measured.
    start_ns and stop_ns are monotonic.
    """

    when: datetime
    start_ns: int
    stop_ns: int
    cause: str
    seconds: float
    collected: int
    uncollectable: int
    cpu: float
    callbacks: float
    streams: int
    overlap: float
    late: float


def _moment(monotonic_ns: int, clock: Any) -> datetime:
    """The time of day of a monotonic time."""
    return _EPOCH + timedelta(microseconds=(monotonic_ns + clock.realtime_ns - clock.monotonic_ns) // 1000)


def _share_of(share: Any, roles: Sequence[str]) -> Share:
    return Share(roles[share.source], CAUSES[share.cause], share.overlap_ns / 1e9, share.late_ns / 1e9)


def _slow_gap(record: Any, model: Any, route: Any, clock: Any, roles: Sequence[str]) -> SlowGap:
    shares = [record.share[i] for i in range(len(record.share))]
    others = [_share_of(share, roles) for share in shares if share.overlap_ns]
    return SlowGap(
        when=_moment(record.end_ns, clock),
        phase=PHASES[record.phase],
        gap=record.gap_ns / 1e9,
        typical=record.typical_ns / 1e9,
        overlap=_seconds_by_cause(record.overlap_ns),
        late=_seconds_by_cause(record.late_ns),
        client=record.client_ns / 1e9,
        accept=record.accept_ns / 1e9,
        unexplained=record.unexplained_ns / 1e9,
        complete=bool(record.complete),
        request_id=_text(record.request_id),
        trace_id=_text(record.trace_id),
        model_name=_text(model.word),
        route=_text(route.word),
        token=record.token,
        others=tuple(sorted(others, key=lambda other: -other.overlap)),
    )


def _octave(octave: int, row: Any) -> Octave:
    return Octave(
        lower=2**octave / 1e6 if octave else 0.0,
        upper=2 ** (octave + 1) / 1e6 if octave + 1 < lib.TW_OCTAVES else math.inf,
        count=row.count,
        time=row.time_ns / 1e9,
        late=_seconds_by_cause(row.late_ns),
        client=row.client_ns / 1e9,
        accept=row.accept_ns / 1e9,
        unexplained=row.unexplained_ns / 1e9,
    )


class Snapshot(_Frozen):
    """Every number at one instant, of one process or several merged. ``later - earlier`` is what came in between.

    Attributes:
        taken: when, seconds since the Unix epoch.
        monotonic: when, seconds of the monotonic clock.
        seconds: what it covers: since the oldest process began to count, or between the two of a difference.
    """

    taken: float
    monotonic: float
    seconds: float

    def __init__(self, handle: Any, model_name: str | None = None, route: str | None = None) -> None:
        vars(self).update(
            _handle=handle,
            _model=model_name,
            _route=route,
            taken=handle.taken.realtime_ns / 1e9,
            monotonic=handle.taken.monotonic_ns / 1e9,
            seconds=handle.window_ns / 1e9,
        )

    def __repr__(self) -> str:
        what = f"{self.seconds:.1f} s, {sum(self.requests.values())} requests, {self.itl.count} gaps"
        return f"<tailwatch.Snapshot of {what}>"

    def __sub__(self, earlier: Snapshot) -> Snapshot:
        """What came between two snapshots. Gauges, slow gaps and rolling windows are the later one's.

        Raises:
            OptionError: earlier was taken later.
        """
        if not isinstance(earlier, Snapshot):
            return NotImplemented
        out = ffi.new("tw_snapshot **")
        error = lib.tw_snapshot_subtract(out, self._core, earlier._core)
        _check(error, "earlier", earlier.taken, f"expected a snapshot taken before this one ({self.taken})")
        return Snapshot(_owned(out[0]), vars(self)["_model"], vars(self)["_route"])

    def where(self, *, model_name: str | None = None, route: str | None = None) -> Snapshot:
        """The same numbers with only the label sets of that model and route (None: any) in the request histograms,
        ``requests``, ``outcomes``, ``tokens``, ``attainment`` and ``labels``. Everything else is not kept by label."""
        model = vars(self)["_model"] if model_name is None else model_name
        return Snapshot(self._core, model, vars(self)["_route"] if route is None else route)

    @property
    def _core(self) -> Any:
        return vars(self)["_handle"]

    @property
    def origin(self) -> tuple[int, int]:
        """When the oldest process began to count, and when this was taken: monotonic nanoseconds."""
        taken: int = self._core.taken.monotonic_ns
        return taken - self._core.window_ns, taken

    @property
    def taken_ns(self) -> int:
        """When, nanoseconds since the Unix epoch."""
        return int(self._core.taken.realtime_ns)

    # ---- histograms ----

    def _histogram(self, metric: int) -> Histogram:
        counts = ffi.new("tw_counts *")
        model, route = vars(self)["_model"], vars(self)["_route"]
        lib.tw_snapshot_metric(self._core, metric, _utf8(model), _utf8(route), counts)
        return Histogram(counts, lib.tw_metric_layout(metric))

    @cached_property
    def ttft(self) -> Histogram:
        """Time to first token: first message with generated content - arrival."""
        return self._histogram(lib.TW_METRIC_TTFT)

    @cached_property
    def itl(self) -> Histogram:
        """Inter-token latency: each gap between token-bearing messages, one sample."""
        return self._histogram(lib.TW_METRIC_ITL)

    @cached_property
    def itl_without_gc(self) -> Histogram:
        """The same gaps less what the pauses are estimated to have cost them (``late``)."""
        return self._histogram(lib.TW_METRIC_ITL_WITHOUT_GC)

    @cached_property
    def tpot(self) -> Histogram:
        """Time per output token: (last token - first token) / (tokens - 1), per finished request and choice."""
        return self._histogram(lib.TW_METRIC_TPOT)

    @cached_property
    def e2e(self) -> Histogram:
        """Last byte - arrival, of finished requests."""
        return self._histogram(lib.TW_METRIC_E2E)

    @cached_property
    def queue(self) -> dict[str, Histogram]:
        """What requests waited unseen: "proxy" as a trusted header says, "accept" from the kernel to the app."""
        return {
            "proxy": self._histogram(lib.TW_METRIC_QUEUE_PROXY),
            "accept": self._histogram(lib.TW_METRIC_QUEUE_ACCEPT),
        }

    @cached_property
    def abandoned_wait(self) -> Histogram:
        """How long the requests waited that were given up before their first token."""
        return self._histogram(lib.TW_METRIC_ABANDONED_WAIT)

    @cached_property
    def send_wait(self) -> Histogram:
        """Sends that were blocked by a client that did not read."""
        return self._histogram(lib.TW_METRIC_SEND_WAIT)

    # ---- requests ----

    def _series(self) -> list[tuple[str, str, Any]]:
        model, route = vars(self)["_model"], vars(self)["_route"]
        every = [self._core.series[i] for i in range(self._core.series_count)]
        named = [(_text(series.model), _text(series.route), series) for series in every]
        return [one for one in named if model in (None, one[0]) and route in (None, one[1])]

    @cached_property
    def labels(self) -> list[tuple[str, str]]:
        """(model_name, route) of each label set in which anything was counted."""
        return [(model, route) for model, route, _ in self._series()]

    @cached_property
    def requests(self) -> dict[str, int]:
        """Requests that ended, by reason: good; late, error, 429, 5xx, timeout, abort_late; 4xx, abort_early."""
        every = [_by_name(REASONS, series.reasons) for _, _, series in self._series()]
        return {reason: sum(one[reason] for one in every) for reason in REASONS}

    @cached_property
    def outcomes(self) -> dict[str, int]:
        """Requests that ended: good, miss, excluded."""
        sums = dict.fromkeys(OUTCOMES, 0)
        for reason, count in self.requests.items():
            sums[OUTCOME_OF[reason]] += count
        return sums

    @cached_property
    def tokens(self) -> int:
        """Output tokens."""
        return sum(series.output_tokens for _, _, series in self._series())

    @property
    def in_flight(self) -> int:
        """Requests open now."""
        return int(self._core.in_flight)

    @property
    def opened(self) -> int:
        """Requests that were opened."""
        return int(self._core.opened)

    @property
    def attainment(self) -> float | None:
        """good / (good + miss); None when nothing was judged."""
        return _share(self.outcomes["good"], self.outcomes["good"] + self.outcomes["miss"])

    @property
    def fluidity(self) -> float | None:
        """Share of the token deadlines that were met; None without any."""
        return _share(self._core.deadlines_met, self._core.deadlines_due)

    @cached_property
    def slo(self) -> Bounds:
        """The bounds in force."""
        slo = self._core.slo
        ttft, tpot, itl, e2e = (ns / 1e9 if ns else None for ns in (slo.ttft_ns, slo.tpot_ns, slo.itl_ns, slo.e2e_ns))
        return Bounds(ttft, tpot, itl, e2e, slo.attainment_ppm / 1e6)

    # ---- rolling windows ----

    def window(self, window: str | float = "1m") -> Window:
        """The requests that finished in the last "90s", "5m", "1h", or so many seconds, up to an hour.

        OptionError for any other window.
        """
        sums = ffi.new("tw_window *")
        lib.tw_snapshot_window(self._core, parse_window(window), sums)
        judged = sums.good + sums.miss
        kept = {"ttft": sums.ttft_ok, "tpot": sums.tpot_ok, "itl": sums.itl_ok, "e2e": sums.e2e_ok}
        bounds = self.slo._asdict()
        return Window(
            good=sums.good,
            miss=sums.miss,
            excluded=sums.excluded,
            finished=sums.finished,
            attainment=_share(sums.good, judged),
            within={name: _share(ok, judged) if bounds[name] else None for name, ok in kept.items()},
            fluidity=_share(sums.met, sums.due),
            seconds=float(sums.seconds),
        )

    def goodput(self, window: str | float = "1m") -> float:
        """Good requests per second over a window."""
        sums = self.window(window)
        return sums.good / sums.seconds

    def throughput(self, window: str | float = "1m") -> float:
        """Completed requests per second over a window."""
        sums = self.window(window)
        return sums.finished / sums.seconds

    def by_second(self, seconds: int) -> list[Second]:
        """Requests that finished, second by second, of the last so many (at most 3600), the current, unfinished one
        included; oldest first, seconds in which none did are left out."""
        core = self._core
        seconds = min(max(seconds, 0), lib.TW_SECONDS)
        newest = core.taken.monotonic_ns // 10**9
        first = core.seconds + lib.TW_SECONDS - seconds
        words = memoryview(ffi.buffer(first, seconds * ffi.sizeof("tw_second"))).cast("B").cast("Q")
        width = ffi.sizeof("tw_second") // 8
        return [
            Second(second - 1, good_miss & _LOW, good_miss >> 32, excluded_finished >> 32)
            for second, good_miss, excluded_finished in zip(
                words[::width], words[1::width], words[2::width], strict=True
            )
            if second and newest - seconds < second - 1 <= newest
        ]

    # ---- pauses ----

    def _processes(self) -> list[Any]:
        return [self._core.process[i] for i in range(self._core.process_count)]

    @cached_property
    def processes(self) -> list[Process]:
        """The processes; a window of the past has one, "*" where there were several."""
        taken_ns = self._core.taken.monotonic_ns
        return [_process(process, _text(process.role), taken_ns) for process in self._processes()]

    @cached_property
    def steps(self) -> list[Step]:
        """Engine steps by process and name. A window of the past (``snapshot(window=...)``) has none."""
        pairs = zip(self.processes, self._processes(), strict=True)
        return [_step(who, raw.steps[i]) for who, raw in pairs for i in range(raw.step_count)]

    @cached_property
    def paused(self) -> dict[str, float]:
        """Process seconds by cause, summed over the processes; an open pause is included."""
        return _summed([process.paused for process in self.processes])

    @cached_property
    def gc(self) -> GC:
        """What collections did and took."""
        rows = [process.pause[i] for process in self._processes() for i in range(len(CAUSES))]

        def total(field: str) -> dict[str, int]:
            return {cause: sum(getattr(row, field) for row in rows[i :: len(CAUSES)]) for i, cause in enumerate(CAUSES)}

        def seconds(field: str) -> dict[str, float]:
            return {cause: ns / 1e9 for cause, ns in total(field).items()}

        longest = {cause: max((r.max_ns for r in rows[i :: len(CAUSES)]), default=0) for i, cause in enumerate(CAUSES)}
        return GC(
            pauses={_GENERATIONS.get(c, c): self._histogram(lib.TW_METRIC_PAUSE + i) for i, c in enumerate(CAUSES)},
            collections=total("count"),
            collected=total("collected"),
            uncollectable=total("uncollectable"),
            cpu=seconds("cpu_ns"),
            callbacks=seconds("callbacks_ns"),
            short=total("short_count"),
            short_seconds=seconds("short_ns"),
            max={cause: ns / 1e9 for cause, ns in longest.items()},
        )

    @cached_property
    def _sources(self) -> list[tuple[str, Any]]:
        lost = [self._core.lost[i] for i in range(self._core.lost_count)]
        return [(_text(row.role), row) for row in lost]

    @cached_property
    def overlap_by_source(self) -> dict[str, dict[str, dict[str, float]]]:
        """Stream seconds that coincided with pauses, by role of the paused process ("unbound": of one of several
        engines, it is not known which), phase ("ttft", "itl") and cause: an upper bound."""
        return {role: _by_phase(row.overlap_ns) for role, row in self._sources}

    @cached_property
    def late_by_source(self) -> dict[str, dict[str, dict[str, float]]]:
        """Stream seconds that pauses cost, by role of the paused process, phase and cause: an estimate for "itl"."""
        return {role: _by_phase(row.late_ns) for role, row in self._sources}

    @cached_property
    def overlap_by_phase(self) -> dict[str, dict[str, float]]:
        """Stream seconds that coincided with pauses, by phase ("ttft", "itl") and cause: an upper bound."""
        return {phase: _summed([rows[phase] for rows in self.overlap_by_source.values()]) for phase in PHASES}

    @cached_property
    def late_by_phase(self) -> dict[str, dict[str, float]]:
        """Stream seconds that pauses cost, by phase and cause: an estimate for "itl"."""
        return {phase: _summed([rows[phase] for rows in self.late_by_source.values()]) for phase in PHASES}

    @cached_property
    def overlap(self) -> dict[str, float]:
        """Stream seconds that coincided with pauses, by cause, both phases: an upper bound of their blame."""
        return _summed(list(self.overlap_by_phase.values()))

    @cached_property
    def late(self) -> dict[str, float]:
        """Stream seconds that pauses cost, by cause, both phases: an estimate."""
        return _summed(list(self.late_by_phase.values()))

    # ---- the tail ----

    @cached_property
    def slowest(self) -> list[SlowGap]:
        """The last slow gaps, newest first, at most 256."""
        return list(self.slow_gaps())

    def slow_gaps(self) -> Iterator[SlowGap]:
        """``slowest`` one by one: 10 us each, for who must not hold the GIL for all of them."""
        core = self._core
        roles = [role for role, _ in self._sources]
        for record in (core.slow[i] for i in reversed(range(core.slow_count))):
            names = core.slow_series[2 * record.series], core.slow_series[2 * record.series + 1]
            yield _slow_gap(record, *names, core.taken, roles)

    @cached_property
    def tail(self) -> dict[str, list[Octave]]:
        """Gaps longer than usual by octave of their length, by phase; empty octaves are left out."""
        rows = {phase: [self._core.tail[i][o] for o in range(lib.TW_OCTAVES)] for i, phase in enumerate(PHASES)}
        return {phase: [_octave(o, row) for o, row in enumerate(rows[phase]) if row.count] for phase in PHASES}

    # ---- about ourselves ----

    @cached_property
    def arrivals(self) -> dict[str, int]:
        """Requests by where their arrival time came from."""
        return _by_name(ARRIVALS, self._core.arrivals)

    @cached_property
    def drops(self) -> dict[str, int]:
        """What was dropped, by reason."""
        return _by_name(DROPS, self._core.drops)

    @cached_property
    def errors(self) -> dict[str, int]:
        """Where something of ours went wrong, and how often."""
        return _by_name(ERRORS, self._core.errors)

    @property
    def label_overflow(self) -> int:
        """Requests whose labels became "other" for want of room."""
        return int(self._core.label_overflow)

    @cached_property
    def sse_fallbacks(self) -> dict[tuple[str, str], int]:
        """Fallbacks of the fast SSE path by (shape, reason); only those that happened. Past 31 kinds of one process
        they are counted under ("other", "other")."""
        rows = [self._core.fallbacks[i] for i in range(self._core.fallback_count)]
        return {(_text(row.shape), _text(row.reason)): row.count for row in rows if row.count}

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able: times in seconds, moments in ISO 8601, the open octave's upper edge None."""
        plain = (
            *("taken", "seconds", "labels", "requests", "outcomes", "tokens", "in_flight", "opened", "attainment"),
            *("fluidity", "paused", "overlap", "late", "overlap_by_phase", "late_by_phase", "arrivals", "drops"),
            *("errors", "label_overflow", "overlap_by_source", "late_by_source"),
        )
        histograms = ("ttft", "itl", "itl_without_gc", "tpot", "e2e", "abandoned_wait", "send_wait")
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: getattr(self, name).as_dict() for name in histograms},
            "labels": [list(pair) for pair in self.labels],
            "sse_fallbacks": [[*kind, count] for kind, count in self.sse_fallbacks.items()],
            "queue": {stage: histogram.as_dict() for stage, histogram in self.queue.items()},
            "slo": self.slo._asdict(),
            "windows": {window: asdict(self.window(window)) for window in _STORED_WINDOWS},
            "gc": self._gc_dict(),
            "processes": [asdict(process) for process in self.processes],
            "steps": [_step_dict(step) for step in self.steps],
            "slowest": [{**asdict(slow), "when": slow.when.isoformat()} for slow in self.slowest],
            "tail": {phase: [_octave_dict(octave) for octave in octaves] for phase, octaves in self.tail.items()},
        }

    def _gc_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self.gc, name) for name in GC.__dataclass_fields__ if name != "pauses"}
        return {**plain, "pauses": {str(key): pauses.as_dict() for key, pauses in self.gc.pauses.items()}}


def _octave_dict(octave: Octave) -> dict[str, Any]:
    return {**asdict(octave), "upper": octave.upper if math.isfinite(octave.upper) else None}


def _process(process: Any, role: str, taken_ns: int) -> Process:
    return Process(
        role=role,
        index=process.index,
        name=role if role == "*" else f"{role}-{process.index}",
        pid=process.pid,
        paused=_seconds_by_cause(process.pause_ns),
        lost=process.pauses_lost,
        bytes=process.bytes,
        collections={cause: process.pause[i].count for i, cause in enumerate(CAUSES)},
        longest={cause: process.pause[i].max_ns / 1e9 for i, cause in enumerate(CAUSES)},
        lives=bool(process.lives),
        age=(taken_ns - process.created_ns) / 1e9,
        standing=process.standing_ns / 1e9,
        standing_cause=CAUSES[process.standing_cause] if process.standing_ns else "",
        policy=_policy(process.policy.counts, process.policy.now),
    )


def _policy(counts: Any, now: Any) -> Policy:
    return Policy(
        kind=_named(POLICIES, now.kind),
        mode=_named(POLICY_MODES, now.mode),
        why=_named(POLICY_WHYS, now.why),
        slices=_by_name(MOMENTS, counts.slices),
        passes=_by_name(PASSES, counts.passes),
        moved=counts.moved,
        freed=counts.freed,
        seconds=counts.slice_ns / 1e9,
        predicted_seconds=counts.predicted_ns / 1e9,
        pass_seconds=counts.pass_ns / 1e9,
        pass_freed=counts.pass_freed,
        rounds=counts.rounds,
        freezes=counts.freezes,
        drift=_by_name(DRIFTS, counts.drift),
        ceilings=_by_name(CEILINGS, counts.ceilings),
        unfrozen=now.unfrozen - 1 if now.unfrozen else None,
        frozen=now.frozen - 1 if now.frozen else None,
        debt=now.debt,
        cost=now.cost_ns / 1024 / 1e9,
        ignored=counts.ignored,
        answered=now.answered,
        answer=now.answer,
    )


def _named(names: Sequence[str], number: int) -> str:
    """Of a file that lies, too."""
    return names[number] if number < len(names) else "unknown"


def _step_part(step: Any, phase: int) -> StepPart:
    counts = ffi.new("tw_counts *")
    lib.tw_counts_init(counts)
    if step.spent[phase] != ffi.NULL:
        lib.tw_counts_add(counts, step.spent[phase])
    return StepPart(
        time=Histogram(counts, lib.tw_step_layout(phase)),
        overlap=_seconds_by_cause(step.overlap_ns[phase]),
        requests=_seconds_by_cause(step.request_ns[phase]),
    )


def _step(process: Process, step: Any) -> Step:
    return Step(
        process=process.name,
        role=process.role,
        name=_text(step.name),
        steps=_step_part(step, lib.TW_STEP_INSIDE),
        host_gaps=_step_part(step, lib.TW_STEP_GAP),
        requests=step.batch,
        unknown_gap=step.unknown_ns / 1e9,
    )


def _step_dict(step: Step) -> dict[str, Any]:
    def part(of: StepPart) -> dict[str, Any]:
        return {"time": of.time.as_dict(), "overlap": of.overlap, "requests": of.requests}

    plain = {name: getattr(step, name) for name in ("process", "role", "name", "requests", "unknown_gap", "batch")}
    return {**plain, "steps": part(step.steps), "host_gaps": part(step.host_gaps)}


def _utf8(name: str | None) -> Any:
    """A name as C takes it; NULL for any."""
    return ffi.NULL if name is None else ffi.from_buffer(name.encode() + b"\0")


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _owned(handle: Any) -> Any:
    return ffi.gc(handle, lib.tw_snapshot_free)


def take(addresses: Sequence[int]) -> Snapshot:
    """Copies and merges the segments at these addresses (``_hot.Core.address``) while they are written.

    Raises:
        OptionError: no address, or what is there is no segment of this version.
    """
    out = ffi.new("tw_snapshot **")
    segments = [ffi.cast("const tw_segment *", address) for address in addresses]
    error = lib.tw_snapshot_take(out, ffi.new("const tw_segment *[]", segments), len(segments))
    _check(error, "addresses", addresses, "expected addresses of segments of this version, at least one")
    return Snapshot(_owned(out[0]))


def take_directory(directory: str) -> Snapshot:
    """The numbers of all processes that share a directory, living and dead, as whoever reads it from outside sees
    them. Nothing there is written.

    Raises:
        EmptyGroupError: nobody left numbers in it.
        TailwatchError: it must not be read; says why.
    """
    problem = ffi.new("tw_group_problem *")
    descriptor = lib.tw_group_open_dir(os.fsencode(directory), problem)
    if descriptor < 0:
        raise TailwatchError(f"{directory}: {_problem(problem[0])}")
    members = ffi.gc(ffi.new("tw_members *"), lib.tw_members_clear)
    try:
        found = lib.tw_members_renew(members, descriptor, ffi.NULL)
        reason = _problem(found)
    finally:
        os.close(descriptor)
    if found != lib.TW_GROUP_FINE:
        raise TailwatchError(f"{directory}: {reason}")
    if not members.n:
        refused = f"; {members.refused} files are not of this version" if members.refused else ""
        raise EmptyGroupError(f"{directory}: no process has left numbers there{refused}")
    segments = sorted((members.member[i].segment for i in range(members.n)), key=lambda each: each.opened == 0)
    return take([int(ffi.cast("uintptr_t", segment)) for segment in segments])


def _problem(problem: int) -> str:
    if problem == lib.TW_GROUP_SYSTEM:
        return os.strerror(ffi.errno)
    text: bytes = ffi.string(lib.tw_group_problem_text(problem))
    return text.decode()


class History:
    """Marks of the past, every 5 s for the last minute and every minute for the last hour, in fixed memory.

    One thread pushes; any thread asks. Not to be used after a fork: make a new one.
    """

    def __init__(self) -> None:
        out = ffi.new("tw_history **")
        _check(lib.tw_history_create(out), "history", None, "")
        self._handle = ffi.gc(out[0], lib.tw_history_free)

    @property
    def bytes(self) -> int:
        """Its memory."""
        return int(lib.tw_history_bytes())

    def push(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot where one is due. Call it at least every 5 s."""
        _check(lib.tw_history_push(self._handle, snapshot._core), "snapshot", snapshot, "")

    def window(self, now: Snapshot, seconds: float) -> Snapshot:
        """now - the mark whose age is nearest to so many seconds (the start is one too).

        The result has one label set, ("*", "*"); its ``seconds`` say what it really covers.
        """
        out = ffi.new("tw_snapshot **")
        error = lib.tw_history_window(self._handle, now._core, max(0, round(seconds * 1e9)), out)
        if error != errno.ENODATA:
            _check(error, "seconds", seconds, "expected a number of seconds, 0 or more")
        return Snapshot(_owned(out[0]))


class Records:
    """The pauses and slow gaps of this process one by one, as they came: for log lines.

    address: of its segment. A cursor counts records from the first ever; 0 to begin with.
    """

    def __init__(self, address: int) -> None:
        self._segment = ffi.cast("const tw_segment *", address)

    def pauses(self, cursor: int, *, before_ns: int) -> tuple[list[Pause], int, int]:
        """Recorded pauses from the cursor on that ended by a monotonic time; the next cursor; how many were
        overwritten before they could be read."""
        clock, record = lib.tw_clock_pair_now(), ffi.new("tw_pause_record *")
        head = self._segment.pause.head
        first = max(cursor, head - lib.TW_PAUSE_RING)
        out: list[Pause] = []
        lost = first - cursor
        for number in range(first, head):
            if not lib.tw_pause_read(ffi.addressof(self._segment, "pause"), number, record):
                lost += 1
            elif record.stop_ns > before_ns:
                return out, number, lost
            else:
                out.append(_pause(record, clock))
        return out, max(head, cursor), lost

    @property
    def pause_count(self) -> int:
        """Pauses ever recorded: the newest cursor."""
        return int(self._segment.pause.head)

    def short_pauses(self) -> tuple[int, float]:
        """How many pauses were too short to be recorded one by one, and their seconds together."""
        totals = self._segment.pause.totals
        rows = [totals[i] for i in range(len(CAUSES))]
        return sum(row.short_count for row in rows), sum(row.short_ns for row in rows) / 1e9

    def evicted_ns(self) -> dict[str, int]:
        """Nanoseconds, by cause, of pauses that were recorded and overwritten since."""
        totals = self._segment.pause.totals
        return {cause: totals[i].evicted_ns for i, cause in enumerate(CAUSES)}

    def slow_gaps(self, cursor: int) -> tuple[list[SlowGap], int, int]:
        """Slow gaps from the cursor on, oldest first; the next cursor; how many were overwritten before."""
        clock, record = lib.tw_clock_pair_now(), ffi.new("tw_slow_record *")
        head = self._segment.slow_head
        first = max(cursor, head - lib.TW_SLOW_RING)
        out: list[SlowGap] = []
        lost = first - cursor
        for number in range(first, head):
            if lib.tw_segment_slow_read(self._segment, number, record):
                out.append(self._slow_gap(record, clock))
            else:
                lost += 1
        return out, max(head, cursor), lost

    def _slow_gap(self, record: Any, clock: Any) -> SlowGap:
        known = record.series < self._segment.series_count
        series = lib.tw_segment_series(self._segment, record.series if known else 0)
        roles = [_text(lost.role) for lost in self._segment.lost]
        return _slow_gap(record, series.model, series.route, clock, roles)


def _pause(record: Any, clock: Any) -> Pause:
    return Pause(
        when=_moment(record.stop_ns, clock),
        start_ns=record.start_ns,
        stop_ns=record.stop_ns,
        cause=CAUSES[record.cause],
        seconds=(record.stop_ns - record.start_ns) / 1e9,
        collected=record.collected,
        uncollectable=record.uncollectable,
        cpu=record.cpu_ns / 1e9,
        callbacks=record.callbacks_ns / 1e9,
        streams=record.streams,
        overlap=record.overlap_ns / 1e9,
        late=record.late_ns / 1e9,
    )


class Own(NamedTuple):
    """What an exporter did, since it began: rounds, spans of requests, and the longest piece of work under the GIL.

    start_unix_ns: when it began; 0: with the numbers.
    """

    exported: int = 0
    failed: int = 0
    skipped: int = 0
    spans: int = 0
    spans_dropped: int = 0
    span_events_dropped: int = 0
    hold_ns: int = 0
    start_unix_ns: int = 0


_NOTHING_YET = Own()


def operation(route: str) -> str:
    """gen_ai.operation.name of a route."""
    text: bytes = ffi.string(lib.tw_otlp_operation(_utf8(route)))
    return text.decode()


def otlp(
    snapshot: Snapshot,
    since: Snapshot | None = None,
    *,
    version: str,
    python: str = "",
    slo: str = "",
    extra_bytes: int = 0,
    registry_seconds: float = -1.0,
    load: LoadGauges | None = None,
    provider: str,
    resource: bytes,
    schema_url: str = "",
    start_ns: int,
    since_ns: int = 0,
    delta_histograms: bool = False,
    delta_sums: bool = False,
    exponential: bool = True,
    own: Own = _NOTHING_YET,
    own_since: Own = _NOTHING_YET,
    max_buckets: int = 160,
    goodput_window: int = 60,
) -> bytes:
    """An OTLP ExportMetricsServiceRequest; encoded without the GIL.

    since: the snapshot of the export before, for what is delta; None: there was none. start_ns, since_ns: when counting
    began, and when ``since`` was taken, nanoseconds of the Unix epoch. provider: gen_ai.provider.name. resource: a
    Resource message. max_buckets: of an exponential histogram. Others: see render().
    """
    part = snapshot if since is None else snapshot - since
    metrics, held = _metrics_info(version, python, slo, extra_bytes, registry_seconds, goodput_window, load)
    texts = [ffi.new("char[]", text.encode("utf-8", "replace")) for text in (provider, schema_url)]
    content = ffi.from_buffer(resource)
    info = ffi.new(
        "tw_otlp_info *",
        {
            "metrics": metrics,
            **dict(zip(("provider", "resource_schema_url"), texts, strict=True)),
            **{"resource": content, "resource_len": len(resource)},
            **{"start_unix_ns": start_ns, "since_unix_ns": since_ns or start_ns},
            "time_unix_ns": snapshot._core.taken.realtime_ns,
            **{"delta_histograms": delta_histograms, "delta_sums": delta_sums, "exponential": exponential},
            "max_buckets": max_buckets,
            **{"own": own._asdict(), "own_since": own_since._asdict()},
        },
    )
    buffer = ffi.gc(ffi.new("tw_buffer *"), lib.tw_buffer_free)
    _check(
        lib.tw_otlp_metrics(snapshot._core, part._core, info, buffer), "max_buckets", max_buckets, "expected at least 2"
    )
    del held
    return bytes(ffi.buffer(buffer.data, buffer.length))


KINDS = {
    "text": lib.TW_FORMAT_TEXT,
    "openmetrics": lib.TW_FORMAT_OPENMETRICS,
    "protobuf": lib.TW_FORMAT_PROTOBUF,
    "protobuf_native": lib.TW_FORMAT_PROTOBUF_NATIVE,
}


class Point(NamedTuple):
    """The median TTFT, seconds, of requests that found about so many streams in flight, themselves included."""

    streams: float
    ttft: float
    samples: int


@dataclass(frozen=True, slots=True)
class Healthy:
    """What TTFT by concurrency says; see csrc/include/tailwatch/aggregate/concurrency_knee.h.

    verdict: "found", "no inflection", "few data", "one level". streams: the healthy concurrency, None where none was
    found. confidence: 0..1, the share of resamplings that find it within 10 %. samples: first tokens it stands on, of
    the last ``window`` seconds. lowest, highest: concurrency seen. points: ascending; of the last half hour.
    """

    verdict: str
    streams: float | None
    confidence: float
    samples: int
    lowest: int
    highest: int
    window: float
    points: tuple[Point, ...]
    _core: Any

    def ttft(self, streams: float) -> float | None:
        """Median TTFT, seconds, to expect where so many are in flight, the new one included; None without data."""
        seconds: float = lib.tw_healthy_ttft(self._core, streams)
        return seconds if seconds >= 0 else None


def healthy(addresses: Sequence[int]) -> Healthy:
    """From the segments at these addresses, while they are written. About 1 ms, without the GIL."""
    core, points, count = (
        ffi.new("tw_healthy *"),
        ffi.new("tw_crowd_point[]", lib.TW_CROWD_LEVELS),
        ffi.new("uint32_t *"),
    )
    segments = ffi.new("const tw_segment *[]", [ffi.cast("const tw_segment *", address) for address in addresses])
    now_ns = lib.tw_clock_pair_now().monotonic_ns
    _check(
        lib.tw_healthy_take(core, points, count, segments, len(segments), now_ns), "addresses", addresses, "segments"
    )
    return Healthy(
        verdict=ffi.string(lib.tw_healthy_name(core.verdict)).decode(),
        streams=core.streams if core.verdict == lib.TW_HEALTHY_FOUND else None,
        confidence=core.confidence,
        samples=core.samples,
        lowest=core.lowest,
        highest=core.highest,
        window=float(core.window_s),
        points=tuple(Point(p.streams, p.ttft_s, p.samples) for p in points[0 : count[0]]),
        _core=core,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGauges:
    """What is exported for routers; None: not known. Streams, seconds, shares; see loadsignal.LoadSignal."""

    running: float
    waiting: float
    healthy: float | None
    confidence: float | None
    ratio: float | None
    utilization: float | None
    headroom: float | None
    predicted_s: float | None
    within_slo: bool | None
    verdict: str
    points: Sequence[Point]


class Metric(NamedTuple):
    """A metric that is exported: its family in Prometheus (a counter without _total), its name in OTLP (None: not
    exported there), its unit as OTLP has it, and its description."""

    prometheus: str | None
    otlp: str | None
    unit: str
    help: str


def metrics() -> tuple[Metric, ...]:
    """All of them: csrc/export/metrics.c."""
    count = ffi.new("size_t *")
    rows = lib.tw_instruments(count)

    def text(found: Any) -> str | None:
        return None if found == ffi.NULL else ffi.string(found).decode()

    return tuple(
        Metric(text(row.prometheus), text(row.otlp), text(row.unit) or "", text(row.help) or "")
        for row in (rows[i] for i in range(count[0]))
    )


def _gauges(load: LoadGauges) -> tuple[Any, list[Any]]:
    """As C takes them, and what must live as long."""
    points = ffi.new("tw_crowd_point[]", [tuple(point) for point in load.points])
    verdict = ffi.new("char[]", load.verdict.encode())
    names = (
        "running",
        "waiting",
        "healthy",
        "confidence",
        "ratio",
        "utilization",
        "headroom",
        "predicted_s",
        "within_slo",
    )
    values = {name: -1.0 if (value := getattr(load, name)) is None else float(value) for name in names}
    made = {**values, "verdict": verdict, "points": points, "point_count": len(points)}
    return ffi.new("tw_load_gauges *", made), [points, verdict]


def _metrics_info(
    version: str,
    python: str,
    slo: str,
    extra_bytes: int,
    registry_seconds: float,
    goodput_window: int,
    load: LoadGauges | None,
) -> tuple[dict[str, Any], list[Any]]:
    """tw_metrics_info, and what must live as long."""
    gauges, held = _gauges(load) if load is not None else (ffi.NULL, [])
    texts = [ffi.new("char[]", text.encode("utf-8", "replace")) for text in (version, python, slo)]
    return {
        **dict(zip(("version", "python", "slo"), texts, strict=True)),
        "extra_bytes": extra_bytes,
        "registry_seconds": registry_seconds,
        "goodput_window_s": goodput_window,
        "load": gauges,
    }, [gauges, held, texts]


def render(
    snapshot: Snapshot,
    *,
    version: str,
    python: str,
    slo: str,
    extra_bytes: int = 0,
    registry_seconds: float = -1.0,
    goodput_window: int = 60,
    kind: str = "text",
    load: LoadGauges | None = None,
) -> memoryview:
    """Every family of ours in one of KINDS: Prometheus text 0.0.4, OpenMetrics 1.0 without its closing # EOF, delimited
    protobuf with native and classic histograms, or with native ones alone. Not copied.

    slo: the text the user gave. extra_bytes: memory outside segments. registry_seconds: what rendering the host's
    own registry took last; below 0: there is none. goodput_window: seconds. load: None leaves those families out.
    """
    metrics, held = _metrics_info(version, python, slo, extra_bytes, registry_seconds, goodput_window, load)
    info = ffi.new("tw_metrics_info *", metrics)
    buffer = ffi.gc(ffi.new("tw_buffer *"), lib.tw_buffer_free)
    _check(lib.tw_exposition_render(snapshot._core, info, KINDS[kind], buffer), "snapshot", snapshot, "")
    del held
    data = ffi.gc(buffer.data, lambda _, owner=buffer: None)  # the bytes live as long as a view of them
    return memoryview(ffi.buffer(data, buffer.length))
