"""Servers in virtual time whose answers are known from elsewhere: queues, a database, prefill and decode."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from tailwatch.loadtest.proportions import RunWindow
from tailwatch.loadtest.trial import Probe, ProbeFunction


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


def replica(
    seed: int, *, service_rate: float = 500.0, bound: float = 0.2, glitch: float = 0.0, windows: int = 128
) -> ProbeFunction:
    """First come first served, Poisson arrivals, exponential service; a good request ends within bound seconds.

    glitch: the share of probes in which the replica once stands still for 0.6 s.
    """
    rng = np.random.default_rng(seed)

    def probe(rate: float, requests: int) -> Probe:
        planned = np.cumsum(rng.standard_exponential(requests))
        planned /= rate
        service = rng.standard_exponential(requests)
        service /= service_rate
        if glitch and rng.random() < glitch:
            service[rng.integers(requests)] += 0.6
        done = np.cumsum(service)
        ends = planned - done
        ends += service  # by how much each would come after the work before it, were there never a pause
        np.maximum.accumulate(ends, out=ends)
        ends += done
        good = ends - planned <= bound
        return probe_of(rate, planned, ends, good, {"e2e": int(np.count_nonzero(good))}, windows)

    return probe


def bursts(seed: int, together: float, windows: int = 128) -> ProbeFunction:
    """Misses that come in bursts of `together` on average, 1 % of all at 477/s and with log-odds that rise by 0.2 a
    request per second: only the counts of each window are drawn."""
    rng = np.random.default_rng(seed)

    def probe(rate: float, requests: int) -> Probe:
        each = requests // windows
        share = 1 / (1 + np.exp(np.log(99) - 0.2 * (rate - 477.0)))
        count = rng.poisson(each * share / together, windows)
        missed = np.where(count, rng.gamma(np.maximum(count, 1), together), 0).round().clip(0, each).astype(int)
        cut = tuple(RunWindow(each, each, each - int(one), each) for one in missed)
        n, good = each * windows, each * windows - int(missed.sum())
        return Probe(rate, n / rate, n, n, good, n, {"e2e": good}, cut)

    return probe


def prefill_and_decode(seed: int, *, ttft: float = 0.5, tpot: float = 0.05) -> ProbeFunction:
    """Prompts of 64 to 1024 tokens at 0.1 ms each, one after another (18.4/s at most); then 64 tokens whose gaps are
    exponential with mean 10 ms, or with active / 8 times that where more than 8 decode (12.7/s at most)."""
    rng = np.random.default_rng(seed)

    def probe(rate: float, requests: int) -> Probe:
        planned = np.cumsum(rng.standard_exponential(requests)) / rate
        prefill = rng.integers(64, 1025, requests) * 1e-4
        first, free = np.empty(requests), 0.0
        for i in range(requests):
            free = first[i] = max(free, planned[i]) + prefill[i]
        ends = decoded(first, rng)
        in_time = {"ttft": first - planned <= ttft, "tpot": (ends - first) / 63 <= tpot}
        good = in_time["ttft"] & in_time["tpot"]
        return probe_of(rate, planned, ends, good, {name: int(ok.sum()) for name, ok in in_time.items()}, 32)

    return probe


def decoded(first: Any, rng: np.random.Generator) -> Any:
    """When the last of 64 tokens came; a gap is drawn when it begins, from how many decode then."""
    ends, left = np.empty(len(first)), [63] * len(first)
    events, active = [(float(at), i) for i, at in enumerate(first)], 0
    heapq.heapify(events)
    draws = iter(rng.standard_exponential(64 * len(first)))
    while events:
        at, i = events[0]
        active += left[i] == 63
        if left[i] == 0:
            active -= 1
            ends[i] = at
            heapq.heappop(events)
            continue
        left[i] -= 1
        heapq.heapreplace(events, (at + float(next(draws)) * 0.01 * max(1.0, active / 8), i))
    return ends


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
