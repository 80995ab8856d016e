"""Numbers at rest: what a process or a group measured, frozen, mergeable, and what can be asked of it.

Every call into tailwatch._cold drops the GIL. All times are seconds, as float.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.options.slo import parse_window
from tailwatch.snapshots.core_values import (
    ARRIVALS,
    CAUSES,
    CERTAINTIES,
    DELAYS,
    DROPS,
    ERRORS,
    MISSING,
    OUTCOME_OF,
    OUTCOMES,
    PHASES,
    REASONS,
    STALLS,
    by_name,
    by_phase,
    check,
    delays_of,
    engine_of,
    octave_of,
    process_of,
    slow_gap_of,
    step_of,
    text_of,
    utf8,
)
from tailwatch.snapshots.histogram import Histogram
from tailwatch.snapshots.model import GC, Bounds, EngineSteps, Octave, Process, ReadOnly, Second, SlowGap, Step, Window
from tailwatch.snapshots.segments import addresses_in
from tailwatch.snapshots.serialization import encode, encode_attribute

_STORED_WINDOWS = ("1m", "5m", "1h")
_LOW = 0xFFFF_FFFF
_GENERATIONS = {"gc0": 0, "gc1": 1, "gc2": 2}


class Snapshot(ReadOnly):
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
        """What came between two snapshots. Gauges and rolling windows are the later one's.

        Raises:
            OptionError: earlier was taken later.
        """
        if not isinstance(earlier, Snapshot):
            return NotImplemented
        out = ffi.new("tw_snapshot **")
        error = lib.tw_snapshot_subtract(out, self._core, earlier._core)
        check(error, "earlier", earlier.taken, f"expected a snapshot taken before this one ({self.taken})")
        return Snapshot(ffi.gc(out[0], lib.tw_snapshot_free), vars(self)["_model"], vars(self)["_route"])

    def where(self, *, model_name: str | None = None, route: str | None = None) -> Snapshot:
        """The same numbers with only the label sets of that model and route (None: any) in the request histograms,
        ``requests``, ``outcomes``, ``tokens``, ``attainment`` and ``labels``. Everything else is not kept by label."""
        model = vars(self)["_model"] if model_name is None else model_name
        found = Snapshot(self._core, model, vars(self)["_route"] if route is None else route)
        vars(found)["_every_series"] = self._every_series
        return found

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
        lib.tw_snapshot_metric(self._core, metric, utf8(model), utf8(route), counts)
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
        """The same gaps less what the pauses are estimated to have cost them (``delay``)."""
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
        """What requests waited unseen: "proxy" by a trusted header, "accept" from the kernel to the app."""
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

    @cached_property
    def _every_series(self) -> list[tuple[str, str, Any]]:
        every = (self._core.series[i] for i in range(self._core.series_count))
        return [(text_of(series.model), text_of(series.route), series) for series in every]

    def _series(self) -> list[tuple[str, str, Any]]:
        model, route = vars(self)["_model"], vars(self)["_route"]
        return [one for one in self._every_series if model in (None, one[0]) and route in (None, one[1])]

    @cached_property
    def labels(self) -> list[tuple[str, str]]:
        """(model_name, route) of each label set in which anything was counted."""
        return [(model, route) for model, route, _ in self._series()]

    @cached_property
    def requests(self) -> dict[str, int]:
        """Requests that ended, by reason: good; late, error, 429, 5xx, timeout, abort_late; 4xx, abort_early."""
        every = [by_name(REASONS, series.reasons) for _, _, series in self._series()]
        return {reason: sum(one[reason] for one in every) for reason in REASONS}

    @cached_property
    def outcomes(self) -> dict[str, int]:
        """Requests that ended: good, miss, excluded."""
        return {name: sum(n for reason, n in self.requests.items() if OUTCOME_OF[reason] == name) for name in OUTCOMES}

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
        seconds = min(max(seconds, 0), lib.TW_SECONDS)
        newest = self._core.taken.monotonic_ns // 10**9
        first = self._core.seconds + lib.TW_SECONDS - seconds
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
        return [process_of(process, text_of(process.role), taken_ns) for process in self._processes()]

    @cached_property
    def steps(self) -> list[Step]:
        """Engine steps by process and name. A window of the past (``snapshot(window=...)``) has none."""
        pairs = zip(self.processes, self._processes(), strict=True)
        return [step_of(who, raw.steps[i]) for who, raw in pairs for i in range(raw.step_count)]

    @cached_property
    def engines(self) -> list[EngineSteps]:
        """Engines whose steps are read off their schedulers, with the last of those steps. A window of the past
        (``snapshot(window=...)``) has none."""
        pairs = zip(self.processes, self._processes(), strict=True)
        return [engine_of(who, raw.engine) for who, raw in pairs if raw.engine != ffi.NULL]

    @cached_property
    def paused(self) -> dict[str, float]:
        """Process seconds by cause, of wall time (``gc.cpu``: of CPU time), summed over the processes; an open pause is
        included."""
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
    def stalls(self) -> dict[str, Histogram]:
        """How long event loops ran for over 2 ms without waiting for events, by cause: a sample for each cause that
        took at least 0.2 ms of a stall; only causes that did. Collections in it are in ``gc.pauses`` instead."""
        own = list(enumerate(STALLS))[len(CAUSES) :]
        found = {cause: self._histogram(lib.TW_METRIC_PAUSE + i) for i, cause in own}
        return {cause: histogram for cause, histogram in found.items() if histogram.count}

    @cached_property
    def _sources(self) -> list[tuple[str, Any]]:
        lost = [self._core.lost[i] for i in range(self._core.lost_count)]
        return [(text_of(row.role), row) for row in lost]

    @cached_property
    def overlap_by_source(self) -> dict[str, dict[str, dict[str, float]]]:
        """Stream seconds that coincided with pauses, by role of the paused process ("unbound": of one of several
        engines, it is not known which), phase ("ttft", "itl") and cause: an upper bound."""
        return {role: by_phase(row.overlap_ns) for role, row in self._sources}

    @cached_property
    def delays(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        """Stream seconds that causes added, by role of the process they happened in, phase ("ttft", "itl"), cause and
        certainty ("measured", "sampled", "estimated"): pauses to all gaps, other causes to slow ones."""
        return {role: delays_of(row.delay_ns) for role, row in self._sources}

    @cached_property
    def delay_by_source(self) -> dict[str, dict[str, dict[str, float]]]:
        """Stream seconds that pauses cost, by role of the paused process, phase and cause."""
        return {
            role: {phase: {cause: sum(causes[cause].values()) for cause in CAUSES} for phase, causes in phases.items()}
            for role, phases in self.delays.items()
        }

    @cached_property
    def overlap_by_phase(self) -> dict[str, dict[str, float]]:
        """Stream seconds that coincided with pauses, by phase ("ttft", "itl") and cause: an upper bound."""
        return {phase: _summed([rows[phase] for rows in self.overlap_by_source.values()]) for phase in PHASES}

    @cached_property
    def delay_by_phase(self) -> dict[str, dict[str, float]]:
        """Stream seconds that pauses cost, by phase and cause."""
        return {phase: _summed([rows[phase] for rows in self.delay_by_source.values()]) for phase in PHASES}

    @cached_property
    def overlap(self) -> dict[str, float]:
        """Stream seconds that coincided with pauses, by cause, both phases: an upper bound of their blame."""
        return _summed(list(self.overlap_by_phase.values()))

    @cached_property
    def delay(self) -> dict[str, float]:
        """Stream seconds that each cause added, both phases: pauses to all gaps, other causes to slow ones. What no
        cause explains is "upstream" (before the token reached this process) and "unexplained"."""
        sums = dict.fromkeys(DELAYS, 0.0)
        for cause, by_certainty in self._each_delay():
            sums[cause] += sum(by_certainty.values())
        return sums

    @cached_property
    def delay_by_certainty(self) -> dict[str, float]:
        """Stream seconds that causes added, by how certain they are."""
        rows = [by_certainty for _, by_certainty in self._each_delay()]
        return {certainty: sum(row[certainty] for row in rows) for certainty in CERTAINTIES}

    def _each_delay(self) -> Iterator[tuple[str, dict[str, float]]]:
        for phases in self.delays.values():
            for causes in phases.values():
                yield from causes.items()

    @cached_property
    def explained(self) -> float | None:
        """The share of that time which is neither "upstream" nor "unexplained" nor "device"; None: there is none."""
        whole = sum(self.delay.values())
        rest = sum(self.delay[cause] for cause in ("upstream", "unexplained", "device"))
        return 1 - rest / whole if whole else None

    @cached_property
    def unexplained(self) -> dict[str, float]:
        """Stream seconds of slow gaps that nothing explains, by the source of knowledge that is missing."""
        rows = [ffi.unpack(self._core.unexplained_ns[i], len(MISSING)) for i in range(len(PHASES))]
        return {reason: sum(column) / 1e9 for reason, column in zip(MISSING, zip(*rows, strict=True), strict=True)}

    # ---- the tail ----

    @cached_property
    def slowest(self) -> list[SlowGap]:
        """The longest slow gaps, and the longest slow TTFTs, of each of the last 60 minutes, of each of the last 24
        hours and of the whole run (eight of each); the longest first."""
        marks = reversed(range(self._core.slow_count))
        longest = (gap for i, gap in zip(marks, self.slow_gaps(), strict=True) if self._core.slow_longest[i])
        return sorted(longest, key=lambda gap: -gap.gap)

    @cached_property
    def recent(self) -> list[SlowGap]:
        """The last slow gaps, newest first, at most 256."""
        return list(islice(self.slow_gaps(), lib.TW_SLOW_RING))

    def slow_gaps(self) -> Iterator[SlowGap]:
        """``recent`` and ``slowest`` in one, newest first: 10 us each, for callers that must not hold the GIL for all
        of them."""
        core = self._core
        roles = [role for role, _ in self._sources]
        for record in (core.slow[i] for i in reversed(range(core.slow_count))):
            names = core.slow_series[2 * record.series], core.slow_series[2 * record.series + 1]
            yield slow_gap_of(record, *names, core.taken, roles, core.names)

    @cached_property
    def tail(self) -> dict[str, list[Octave]]:
        """Gaps longer than usual by octave of their length, by phase; empty octaves are left out."""
        rows = {phase: [self._core.tail[i][o] for o in range(lib.TW_OCTAVES)] for i, phase in enumerate(PHASES)}
        return {phase: [octave_of(o, row) for o, row in enumerate(rows[phase]) if row.count] for phase in PHASES}

    # ---- about ourselves ----

    @cached_property
    def arrivals(self) -> dict[str, int]:
        """Requests by where their arrival time came from."""
        return by_name(ARRIVALS, self._core.arrivals)

    @cached_property
    def drops(self) -> dict[str, int]:
        """What was dropped, by reason."""
        return by_name(DROPS, self._core.drops)

    @cached_property
    def errors(self) -> dict[str, int]:
        """Where something of ours went wrong, and how often."""
        return by_name(ERRORS, self._core.errors)

    @property
    def label_overflow(self) -> int:
        """Requests whose labels became "other" for want of room."""
        return int(self._core.label_overflow)

    @cached_property
    def sse_fallbacks(self) -> dict[tuple[str, str], int]:
        """Fallbacks of the fast SSE path by (shape, reason); only those that happened. Past 31 kinds of one process
        they are counted under ("other", "other")."""
        rows = [self._core.fallbacks[i] for i in range(self._core.fallback_count)]
        return {(text_of(row.shape), text_of(row.reason)): row.count for row in rows if row.count}

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able: times in seconds, moments in ISO 8601, the open octave's upper edge None."""
        windows = {window: encode(self.window(window)) for window in _STORED_WINDOWS}
        return {name: encode_attribute(name, getattr(self, name)) for name in _saved_names()} | {"windows": windows}


@cache
def _saved_names() -> list[str]:
    """The attributes of a Snapshot but those that are about the clock of this machine."""
    computed = [name for name, member in vars(Snapshot).items() if isinstance(member, (property, cached_property))]
    public = [name for name in computed if not name.startswith("_") and name not in ("origin", "taken_ns")]
    return ["taken", "seconds", *public]


def _summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(row[key] for row in rows) for key in CAUSES}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def take(addresses: Sequence[int]) -> Snapshot:
    """Copies and merges the segments at these addresses (``_hot.Core.address``) while they are written.

    Raises:
        OptionError: no address, or what is there is no segment of this version.
    """
    out = ffi.new("tw_snapshot **")
    segments = [ffi.cast("const tw_segment *", address) for address in addresses]
    error = lib.tw_snapshot_take(out, ffi.new("const tw_segment *[]", segments), len(segments))
    check(error, "addresses", addresses, "expected addresses of segments of this version, at least one")
    return Snapshot(ffi.gc(out[0], lib.tw_snapshot_free))


def take_directory(directory: str) -> Snapshot:
    """The numbers of all processes that share a directory, living and dead, as a reader outside of them sees
    them. Nothing there is written.

    Raises:
        EmptyGroupError: no process left numbers in it.
        TailwatchError: it must not be read, with the reason.
    """
    members, addresses = addresses_in(directory)
    found = take(addresses)
    del members  # its segments were mapped until here
    return found
