"""Servers in virtual time whose answers are known from elsewhere: queues, a database, prefill and decode."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from tailwatch.loadtest.proportions import RunWindow
from tailwatch.loadtest.trial import Probe


def probe_of(rate: float, planned: Any, ends: Any, good: Any, kept: Mapping[str, int], windows: int) -> Probe:
    """The counts of a run: planned starts and ends in seconds, and which requests were good."""
    seconds = float(planned[-1])
    edges = np.linspace(0, seconds, windows + 1)
    starts, stops = np.searchsorted(planned, edges), np.searchsorted(np.sort(ends), edges)
    starts[-1] = len(planned)
    cut = tuple(
        RunWindow(int(b - a), int(b - a), int(np.count_nonzero(good[a:b])), int(d - c))
        for (a, b), (c, d) in zip(pairwise(starts), pairwise(stops), strict=True)
    )
    n = len(planned)
    return Probe(rate, seconds, n, n, int(np.count_nonzero(good)), int(stops[-1]), kept, cut)


def database(rate: float, service: float, seconds: float = 10.0) -> tuple[list[float], list[float]]:
    """Planned starts and ends: five workers, a constant service time, arrivals in bursts at ticks of 10 ms."""
    free, planned, ends = [0.0] * 5, list[float](), list[float]()
    for tick in range(round(seconds * 100)):
        at = tick * 0.01
        while len(planned) < int(rate * (tick + 1) * 0.01 + 1e-9):
            planned.append(at)
            ends.append(max(at, free[0]) + service)
            heapq.heapreplace(free, ends[-1])
    return planned, ends


def database_closed(workers: int, service: float, seconds: float = 100.0) -> float:
    """Completions per second of a closed loop on the same database."""
    free, waiting, done = [0.0] * 5, [0.0] * workers, 0
    while True:
        at = heapq.heappop(waiting)
        end = max(at, free[0]) + service
        if end > seconds:
            return done / seconds
        heapq.heapreplace(free, end)
        heapq.heappush(waiting, end)
        done += 1
