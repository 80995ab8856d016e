"""Quantiles of a run's latencies: exact where each request is known, else of the histogram (1.1 % off at most)."""

from __future__ import annotations

import math
from bisect import bisect_right

from tailwatch.loadtest.censored_percentiles import Quantile, Ranks, Sample
from tailwatch.loadtest.report import text
from tailwatch.loadtest.report.blocks import nines
from tailwatch.loadtest.results import Result

MOST_EXACT = 200_000  # requests; sorting more costs seconds and shows nothing new
POINTS = 240


class Quantiles:
    """Of one latency of a run (a field of `results.Latencies`), in seconds."""

    def __init__(self, result: Result, name: str) -> None:
        self._sample = result.sample(name, MOST_EXACT)
        self._ordered = self._sample.values if isinstance(self._sample, Ranks) else None
        self.count: int = getattr(result.latencies, name).count if self._ordered is None else len(self._ordered)
        """Samples."""

    def p(self, percent: float) -> float | None:
        """Nearest rank. None where there are none, or too few to reach it: p99.9 needs 1000. p(100): the largest. A
        lower bound where some requests never got that far (see `text_at`)."""
        found = self.quantile(percent)
        return None if found is None else found.seconds

    def text_at(self, percent: float) -> str:
        """As text: "12.3 s", or "≥12.3 s" where it is a lower bound."""
        found = self.quantile(percent)
        if found is None:
            return text.NONE
        return at_least(text.duration(found.seconds), found.censored)

    def quantile(self, percent: float) -> Quantile | None:
        """The same as `p`, with whether it is a lower bound."""
        reached = percent in (50, 100) or self._sample.count * (100 - percent) >= 99.999
        return self._sample.quantile(percent) if reached else None

    def above(self, seconds: float) -> int | None:
        """How many samples exceed that; None where only the histogram is known."""
        if self._ordered is None:
            return None
        return len(self._ordered) - bisect_right(self._ordered, round(seconds * 1e9))

    def curve(self) -> tuple[list[float], list[float]]:
        """See `tail_curve`; empty where there are no samples."""
        return tail_curve(self._sample) if self.count else ([], [])


def tail_curve(sample: Sample) -> tuple[list[float], list[float]]:
    """(x, seconds), x on the percentile axis: from the least to the largest of a sample, denser where it rises."""
    last = max(math.log10(sample.count), nines(0.5))
    xs = [last * i / (POINTS - 1) for i in range(POINTS)]
    found = [sample.quantile(percent) for percent in (*(100 * (1 - 10**-x) for x in xs[:-1]), 100.0)]
    return xs, [0.0 if quantile is None else quantile.seconds for quantile in found]


def at_least(shown: str, censored: bool) -> str:
    """A number as text, marked where it is a lower bound."""
    return f"≥{shown}" if censored else shown
