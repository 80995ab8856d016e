"""Percentiles over requests of which some never got what is timed.

A request that its tester ended or never sent would have taken at least as long as it was waited for (right-censored);
one that failed never got it. Left out, both would flatter the server that drops its slow requests. So a percentile is
of all that count: a request that got nothing stands behind those that got it, and where the rank falls among the
former, what is known is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailwatch.loadtest.histogram import LatencyHistogram

_BUCKET = 0.022  # width of a histogram's bucket, as a share of its value


@dataclass(frozen=True, slots=True)
class Quantile:
    """A percentile in seconds. censored: the true one is at least that."""

    seconds: float
    censored: bool = False


class Sample(Protocol):
    """What percentiles are taken of."""

    @property
    def count(self) -> int:
        """All that count, with and without a value."""

    def quantile(self, percent: float) -> Quantile | None:
        """The value of rank ceil(percent / 100 * count); None where nothing is known."""


class Ranks:
    """Exact. values, ages: ns, of what was timed and of what was ended by the tester; lost: how many failed."""

    def __init__(self, values: Sequence[int], ages: Sequence[int] = (), lost: int = 0) -> None:
        self.values = sorted(values)
        self._known = sorted([*self.values, *ages]) if ages else self.values
        self.count = len(self._known) + lost

    def quantile(self, percent: float) -> Quantile | None:
        """See `Sample`."""
        if not self._known:
            return None
        rank = nearest_rank(percent, self.count)
        least = self._known[min(rank, len(self._known)) - 1]
        return Quantile(least / 1e9, rank > len(self.values) or self.values[rank - 1] != least)


class Buckets:
    """The same out of histograms: at most 1.1 % off."""

    def __init__(self, values: LatencyHistogram, ages: LatencyHistogram | None = None, lost: int = 0) -> None:
        self.values, self._known = values, values
        if ages is not None and ages.count:
            self._known = LatencyHistogram(values.layout)
            self._known.add(values)
            self._known.add(ages)
        self.count = self._known.count + lost

    def quantile(self, percent: float) -> Quantile | None:
        """See `Sample`."""
        if not self._known.count:
            return None
        rank = nearest_rank(percent, self.count)
        least = _of_rank(self._known, min(rank, self._known.count))
        exact = rank <= self.values.count and _of_rank(self.values, rank) <= least * (1 + _BUCKET)
        return Quantile(least, not exact)


def nearest_rank(percent: float, count: int) -> int:
    """ceil(percent / 100 * count), from 1 to count."""
    return min(count, max(1, math.ceil(percent * count / 100 - 1e-9)))


def _of_rank(histogram: LatencyHistogram, rank: int) -> float:
    """Seconds. Asked for by the middle of the rank, which no rounding turns into another one."""
    count = histogram.count
    return histogram.p(100.0 if rank == count else 100 * (rank - 0.5) / count) or 0.0
