"""What one screen shows, as numbers. Times are seconds, rates are per second, shares are of 1."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tailwatch.errors import OptionError
from tailwatch.options.slo import BOUNDS, SLO
from tailwatch.snapshots import Histogram, Policy, Process, Snapshot

_FULL = ("gc2", "gc_full")
_LATENCIES = (
    ("TTFT", "ttft", "arrival to first token"),
    ("ITL", "itl", "each gap between tokens, at the hand-over to the server"),
    ("ITL without GC", "itl_without_gc", "the same gaps without the estimated delay by pauses"),
    ("TPOT", "tpot", "per finished request: (last token - first) / (tokens - 1)"),
    ("E2E", "e2e", "finished requests: arrival to last byte"),
)


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution. Percentiles are exact to 1.1 %; max of a window to the edge of its bucket, 2.2 %."""

    name: str
    measured: str
    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """Stream seconds per second: all streams together. overlap: an upper bound of what the pauses of these processes
    cost; delay: the estimate."""

    source: str
    cause: str
    overlap: float
    delay: float


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process. paused: the share of the time in collections and tailwatch's own pauses, None of one that has ended.
    full: full collections. longest: the longest pause that ended, and its cause. standing: the seconds since its
    open pause began, 0.0: none is open, and the cause. policy: of the collector, "" of one that has ended; slices:
    per second; unfrozen: objects, None: not known; interference: gc.* calls by other code."""

    name: str
    pid: int
    lives: bool
    paused: float | None
    full: int
    longest: float
    longest_cause: str
    standing: float
    standing_cause: str
    policy: str = ""
    slices: float = 0.0
    unfrozen: int | None = None
    interference: int = 0


@dataclass(frozen=True, slots=True)
class GroupView:
    """One screen.

    Attributes:
        seconds: what it covers; since_start: all of the group's time, else the window before ``taken``.
        good, finished: requests per second; attainment: good / (good + miss).
        slo: the bounds in force in the server; within: the share of the samples of each histogram that keeps another
            SLO's bound, each alone (itl: of the gaps, not of the requests).
        causes: the share of the streams' delay that each cause added, the largest first; without those that added none.
        ended: processes that had ended and are not listed.
        dropped: what tailwatch itself could not count, and where it went wrong, since the start.
    """

    directory: str
    taken: float
    seconds: float
    since_start: bool
    in_flight: int
    finished: float
    tokens: float
    good: float
    attainment: float | None
    slo: str
    other_slo: str
    within: dict[str, float | None]
    latencies: list[Latency]
    lost: list[Lost]
    causes: dict[str, float]
    processes: list[ProcessRow]
    ended: int
    dropped: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def view_of(directory: str, now: Snapshot, earlier: Snapshot | None, other: SLO | None = None) -> GroupView:
    """What lies between two snapshots of a group; earlier None: everything up to now."""
    window = now if earlier is None else now - earlier
    seconds = max(window.seconds, 1e-9)
    lived = {process.pid for process in earlier.processes if process.lives} if earlier else set()
    shown = [process for process in window.processes if process.lives or process.pid in lived or _counted(process)]
    return GroupView(
        directory=_plain(directory),
        taken=now.taken,
        seconds=window.seconds,
        since_start=earlier is None,
        in_flight=now.in_flight,
        finished=sum(window.outcomes.values()) / seconds,
        tokens=window.tokens / seconds,
        good=window.outcomes["good"] / seconds,
        attainment=window.attainment,
        slo=_slo(now),
        other_slo=other.text.partition("@")[0] if other else "",
        within=_within(window, other) if other else {},
        latencies=[_latency(name, measured, getattr(window, key)) for name, key, measured in _LATENCIES],
        lost=_lost(window, seconds),
        causes=_causes(window),
        processes=[_row(process, window.seconds) for process in shown],
        ended=len(window.processes) - len(shown),
        dropped={name: count for name, count in {**now.drops, **now.errors}.items() if count},
    )


def _counted(process: Process) -> bool:
    return any(process.collections.values()) or any(process.paused.values())


def _slo(now: Snapshot) -> str:
    try:
        return SLO(**now.slo._asdict()).text
    except OptionError:  # none, or of a file that lies
        return ""


def _within(window: Snapshot, other: SLO) -> dict[str, float | None]:
    bounds = {name: bound for name in BOUNDS if (bound := getattr(other, name)) is not None}
    return {name: getattr(window, name).below(bound) for name, bound in bounds.items()}


def _latency(name: str, measured: str, samples: Histogram) -> Latency:
    return Latency(name, measured, len(samples), *(samples.p(percent) for percent in (50, 90, 99, 100)))


def _lost(window: Snapshot, seconds: float) -> list[Lost]:
    """By source and cause, both phases together; the largest estimate first."""
    found: dict[tuple[str, str], list[float]] = {}
    for at, sums in enumerate((window.overlap_by_source, window.delay_by_source)):
        for source, phases in sums.items():
            for causes in phases.values():
                for cause, value in causes.items():
                    found.setdefault((source, cause), [0.0, 0.0])[at] += value / seconds
    lost = [Lost(_plain(source), cause, *values) for (source, cause), values in found.items() if any(values)]
    return sorted(lost, key=lambda row: (-row.delay, -row.overlap))


def _causes(window: Snapshot) -> dict[str, float]:
    added = {cause: seconds for cause, seconds in window.delay.items() if seconds > 0}
    whole = sum(added.values())
    return {cause: added[cause] / whole for cause in sorted(added, key=lambda cause: -added[cause])}


def _row(process: Process, seconds: float) -> ProcessRow:
    cause = max(process.longest, key=lambda cause: process.longest[cause])
    covered = min(seconds, process.age)
    share = min(1.0, sum(process.paused.values()) / covered) if covered > 0 else math.nan
    return ProcessRow(
        name=_plain(process.name),
        pid=process.pid,
        lives=process.lives,
        paused=share if process.lives and math.isfinite(share) else None,
        full=sum(process.collections[cause] for cause in _FULL),
        longest=process.longest[cause],
        longest_cause=cause if process.longest[cause] > 0 else "",
        standing=process.standing,
        standing_cause=process.standing_cause,
        policy=_policy(process.policy),
        slices=sum(process.policy.slices.values()) / covered if covered > 0 else 0.0,
        unfrozen=process.policy.unfrozen,
        interference=sum(process.policy.interference.values()),
    )


def _policy(policy: Policy) -> str:
    """What it is, and that it fell back."""
    if policy.kind == "unknown":
        return ""
    return f"{policy.kind}, full collections" if policy.mode == "full collections" else policy.kind


def _plain(text: str) -> str:
    """A text of another process, fit for a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
