"""What a router needs of one server: how many streams it has, and how many it can have before TTFT grows.

Balancers that compare servers with one another flood the one that looks least loaded though it is past its healthy
range. The numbers here are absolute: streams in flight against the concurrency above which TTFT leaves its first
straight line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailwatch import _hot, snapshots
from tailwatch.export.core_metrics import LoadGauges
from tailwatch.group.membership import GroupMember
from tailwatch.snapshots import Healthy, Point

REFRESH_SECONDS = 2.0
"""How often the daemon looks for the healthy concurrency anew."""

_BANDS_AN_OCTAVE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSignal:
    """One server's load: of the whole group of processes, where there is one. Counts are as of the call.

    Attributes:
        running: requests in flight whose first token was seen.
        waiting: requests in flight without a first token. A response that is not streamed has none before its end.
        healthy: healthy concurrency: concurrent streams above which median TTFT starts to grow faster. None
            until that number is found: see verdict.
        confidence: 0 to 1: the share of resamplings of the data that find it within 10 % of this; 0.0 without one.
        verdict: "found"; "no_inflection": TTFT grows linearly up to ``highest`` streams; "few_data"; "single_level":
            the data has no two concurrencies far enough apart.
        highest: the most streams that were in flight at an arrival in the data.
        ratio: in flight / healthy: above 1 TTFT grows with each more. None without healthy.
        utilization: the same, at most 1.
        headroom: streams that may be added before healthy is reached, at least 0. None without healthy.
        predicted_ttft: seconds, the median TTFT to expect of a request admitted now: an estimate. None without data.
        within_slo: whether that is within the SLO's TTFT bound. None without bound or estimate.
        requests_per_second: arrivals per second, over the last few seconds.
        processes: running processes that have served requests.
        scope: "group": concurrency is that of all processes, because they share an engine; "process": processes are
            independent, and healthy is the value of one process times ``processes``.
        curve: the median TTFT by concurrency (of the group or of a process, by scope), ascending.
        age: seconds since healthy, confidence, verdict and curve were computed; the counts are as of the call.
    """

    running: int
    waiting: int
    healthy: float | None
    confidence: float
    verdict: str
    highest: int
    ratio: float | None
    utilization: float | None
    headroom: float | None
    predicted_ttft: float | None
    within_slo: bool | None
    requests_per_second: float
    processes: int
    scope: str
    curve: tuple[Point, ...]
    age: float

    @property
    def in_flight(self) -> int:
        """running + waiting."""
        return self.running + self.waiting


class LoadMeter:
    """Keeps the estimate, and puts the counts of the moment beside it.

    Args:
        core: of this process.
        membership: its group.
        ttft_bound: the SLO's, seconds; None: there is none.
    """

    def __init__(self, core: _hot.Core, membership: GroupMember, ttft_bound: Callable[[], float | None]) -> None:
        self._core = core
        self._membership = membership
        self._ttft_bound = ttft_bound
        self.forget()

    def forget(self) -> None:
        """In a fork child: what was known is the parent's."""
        self._healthy: Healthy | None = None
        self._made = 0.0
        self._rate = 0.0
        self._opened = (time.monotonic(), self._core.opened)

    def refresh(self) -> None:
        """Look for the healthy concurrency anew: about a millisecond without the GIL. Called by the daemon; nothing
        while no request has come."""
        now, opened = time.monotonic(), self._membership.opened()
        since, before = self._opened
        if now - since >= REFRESH_SECONDS / 2:
            self._rate = max(0, opened - before) / (now - since)
            self._opened = (now, opened)
        if opened:
            self._healthy, self._made = self._membership.healthy(), now

    def read(self) -> LoadSignal:
        """The load now: a few microseconds, once there is an estimate."""
        if self._healthy is None:
            self._healthy, self._made = (
                snapshots.healthy([self._core.address]),
                time.monotonic(),
            )  # no lock is waited for
        healthy = self._healthy
        running, in_flight, serving = self._core.group_load()
        running = min(running, in_flight)
        share = 1 if self._membership.shares_engine else max(1, serving)
        streams = None if healthy.streams is None else healthy.streams * share
        predicted, bound = healthy.ttft(in_flight / share + 1), self._ttft_bound()
        return LoadSignal(
            running=running,
            waiting=in_flight - running,
            healthy=streams,
            confidence=healthy.confidence,
            verdict=healthy.verdict,
            highest=healthy.highest * share,
            ratio=None if streams is None else in_flight / streams,
            utilization=None if streams is None else min(1.0, in_flight / streams),
            headroom=None if streams is None else max(0.0, streams - in_flight),
            predicted_ttft=predicted,
            within_slo=None if predicted is None or bound is None else predicted <= bound,
            requests_per_second=self._rate,
            processes=serving,
            scope="group" if self._membership.shares_engine else "process",
            curve=healthy.points,
            age=time.monotonic() - self._made,
        )

    def gauges(self) -> LoadGauges:
        """read() as the metrics have it, the curve in at most 4 points an octave."""
        now = self.read()
        return LoadGauges(
            running=now.running,
            waiting=now.waiting,
            healthy=now.healthy,
            confidence=now.confidence if now.healthy is not None else None,
            ratio=now.ratio,
            utilization=now.utilization,
            headroom=now.headroom,
            predicted_s=now.predicted_ttft,
            within_slo=now.within_slo,
            verdict=now.verdict,
            points=bands(now.curve),
        )


def bands(curve: Sequence[Point]) -> list[Point]:
    """The points of a curve, those of the same quarter of an octave as one: means, weighted by samples."""
    found: dict[int, list[Point]] = {}
    for point in curve:
        found.setdefault(_band(round(point.streams)), []).append(point)
    return [_together(points) for _, points in sorted(found.items())]


def _band(streams: int) -> int:
    """Whole numbers up to 8 have one each."""
    shift = max(0, streams.bit_length() - _BANDS_AN_OCTAVE + 1)
    return (shift << 8) + (streams >> shift)


def _together(points: list[Point]) -> Point:
    samples = sum(point.samples for point in points)
    streams = sum(point.streams * point.samples for point in points) / samples
    return Point(streams, sum(point.ttft * point.samples for point in points) / samples, samples)
