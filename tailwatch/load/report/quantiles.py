"""Quantiles of a run's latencies: exact where each request is known, else of the histogram (1.1 % off at most)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from tailwatch.load.report.blocks import nines
from tailwatch.load.results import Result, samples

MOST_EXACT = 200_000  # requests; sorting more costs seconds and says nothing new
POINTS = 240
_PER_GAP = ("itl", "itl_unmarked")  # not one a request


class _Counted(Protocol):
    @property
    def count(self) -> int: ...
    def p(self, percent: float) -> float | None: ...


class Quantiles:
    """Of one latency of a run (a field of `results.Latencies`), in seconds."""

    def __init__(self, result: Result, name: str) -> None:
        self._histogram: _Counted = getattr(result.latencies, name)
        self._ordered: Sequence[int] | None = None
        requests = result.requests
        if requests is not None and name not in _PER_GAP and len(requests) <= MOST_EXACT:
            self._ordered = sorted(samples(requests, name))

    @property
    def count(self) -> int:
        """Samples."""
        return self._histogram.count if self._ordered is None else len(self._ordered)

    def p(self, percent: float) -> float | None:
        """Nearest rank. None where there are none, or too few to reach it: p99.9 needs 1000. p(100): the largest."""
        reached = percent in (50, 100) or self.count * (100 - percent) >= 99.999
        return self._at(percent) if self.count and reached else None

    def above(self, seconds: float) -> int | None:
        """How many samples exceed that; None where only the histogram is known."""
        if self._ordered is None:
            return None
        return len(self._ordered) - bisect_right(self._ordered, round(seconds * 1e9))

    def curve(self) -> tuple[list[float], list[float]]:
        """(x, seconds), x on the percentile axis: from the least to the largest sample, denser where it rises."""
        if not self.count:
            return [], []
        last = max(math.log10(self.count), nines(0.5))
        xs = [last * i / (POINTS - 1) for i in range(POINTS)]
        ys = [self._at(100 * (1 - 10**-x)) or 0.0 for x in xs[:-1]]
        return xs, [*ys, self._at(100) or 0.0]

    def _at(self, percent: float) -> float | None:
        if self._ordered is None:
            return self._histogram.p(min(100.0, max(0.0, percent)))
        rank = math.ceil(percent * len(self._ordered) / 100 - 1e-9)
        return self._ordered[max(1, rank) - 1] / 1e9
