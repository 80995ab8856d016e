"""What a count of good requests proves about a share: Wilson's interval, misses that come together, and where the
share crosses a target as the rate rises.

Requests that miss do so together: one stall is one event, however many waited in it. Counting them as independent
makes every interval too narrow, so the number of requests is first divided by the design effect: how much wider the
counts of whole stretches of time scatter than independent requests would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

FEWEST_STRETCHES = 8  # below which a scatter says little
FEW = 10  # misses worth as many independent ones, below which a scatter cannot be told from luck


@dataclass(frozen=True, slots=True)
class RunWindow:
    """One of the equal, consecutive stretches of time that a probe is cut into.

    scheduled: requests planned to start in it. judged: those of them that count, good or a miss. good: those that
    kept every bound. completed: answers that ended in it without error, whenever they were planned.
    """

    scheduled: int
    judged: int
    good: int
    completed: int


def wilson(good: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share after good of n (both may be effective numbers); (0, 1) where n is 0.

    Wilson 1927: the shares that a test at z standard deviations would not refuse. It is not symmetric, stays within
    [0, 1], and says something even where every one was good.
    """
    if n <= 0:
        return 0.0, 1.0
    share = good / n
    middle, shrink = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if good <= 0 else (middle - half) / shrink
    high = 1.0 if good >= n else (middle + half) / shrink
    return max(0.0, low), min(1.0, high)


def fewest(target: float, z: float = 1.96) -> int:
    """Requests without a single miss that would show a share of target (below 1) with wilson()."""
    return math.ceil(z * z * target / (1 - target))


def design_effect(windows: Sequence[RunWindow]) -> float:
    """How many requests of these are worth one independent one, at least 1.

    The scatter of the misses per stretch over that of independent requests, for stretches of 1, 2, 4 … windows while
    at least 8 are left; the largest, because the length that separates the stalls is not known. 1 where no scatter
    can be seen (no miss, nothing but misses, fewer than 8 windows).
    """
    counts, worst = _Counts.of(windows), 1.0
    while counts.independent > 0 and len(counts.judged) >= FEWEST_STRETCHES:
        worst = max(worst, counts.scatter() / counts.independent)
        counts = counts.halved()
    return worst


def common_effect(several: Sequence[Sequence[RunWindow]]) -> float:
    """One design effect for the windows of several rates: the geometric mean of theirs; 1 of none."""
    return math.exp(sum(math.log(design_effect(windows)) for windows in several) / max(1, len(several)))


def interval(windows: Sequence[RunWindow]) -> tuple[float, float] | None:
    """The 95 % interval of the share of good requests that one run shows: Wilson's, over as many requests as are worth
    an independent one. None where fewer than 8 windows tell something.

    Where the misses (or the good ones) are too few to show how they come together, those of a window are taken for one:
    a minute without a miss has not shown more than 60 windows without one.
    """
    told = [window for window in windows if window.judged]
    judged, good = sum(window.judged for window in told), sum(window.good for window in told)
    if len(told) < FEWEST_STRETCHES:
        return None
    effect = design_effect(told)
    if min(good, judged - good) / effect < FEW:
        effect = max(effect, judged / len(told))
    return wilson(good / effect, judged / effect)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Requests and misses per stretch. independent: the variance of all misses, were they independent."""

    judged: Sequence[int]
    missed: Sequence[int]
    share: float
    independent: float

    @classmethod
    def of(cls, windows: Sequence[RunWindow]) -> _Counts:
        judged, missed = [window.judged for window in windows], [window.judged - window.good for window in windows]
        n = sum(judged)
        share = sum(missed) / n if n else 0.0
        return cls(judged, missed, share, n * share * (1 - share))

    def scatter(self) -> float:
        """The variance of all misses, as the stretches show it."""
        squares = sum(
            (missed - self.share * judged) ** 2 for missed, judged in zip(self.missed, self.judged, strict=True)
        )
        return squares * len(self.judged) / (len(self.judged) - 1)

    def halved(self) -> _Counts:
        """Stretches of twice the length."""
        return _Counts(_joined(self.judged), _joined(self.missed), self.share, self.independent)


def _joined(counts: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip_longest(counts[::2], counts[1::2], fillvalue=0)]


def kept_up(windows: Sequence[RunWindow], z: float = 1.96) -> tuple[float, float, float]:
    """The share of the offered requests that a busy server completes, and its interval; may exceed 1.

    windows: without those in which the requests in flight only fill up (Probe.settled). What was scheduled and not
    completed went into a queue; the interval is that of a random walk with the scatter of these differences, too wide
    rather than too narrow where the queue is stable. (0, 0, 1) where there is nothing to see.
    """
    scheduled = sum(window.scheduled for window in windows)
    if not scheduled:
        return 0.0, 0.0, 1.0
    behind = [window.scheduled - window.completed for window in windows]
    mean = sum(behind) / len(behind)
    spread = sum((one - mean) ** 2 for one in behind) / max(1, len(behind) - 1)
    share, half = 1 - sum(behind) / scheduled, z * math.sqrt(spread * len(behind)) / scheduled
    return share, share - half, share + half


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The share of misses at one rate: misses of n, both already divided by the design effect."""

    rate: float
    misses: float
    n: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a share crosses its target: the rate, and the interval it lies in."""

    rate: float
    low: float
    high: float


def crossing(points: Sequence[RatePoint], target_misses: float, z: float = 1.96) -> Crossing | None:
    """Where the fitted share of misses reaches target_misses, by logistic regression of misses on the rate.

    Near the knee of a queue the logarithm of the misses rises in a straight line with the rate (for M/M/1 exactly), so
    that probes on both sides all help. None where the points do not show a rise: fewer than two rates, or a slope
    that could be 0. The interval is Fieller's: the rates at which the fitted line is within z standard errors.
    """
    if len({point.rate for point in points}) < 2:
        return None
    middle = sum(p.rate * p.n for p in points) / sum(p.n for p in points)
    unit = max(p.rate for p in points) - min(p.rate for p in points)
    fit = _logistic([((p.rate - middle) / unit, p.misses, p.n) for p in points])
    goal = math.log(target_misses / (1 - target_misses))
    roots = _fieller(fit, goal, z) if fit else None
    if fit is None or roots is None:
        return None
    return Crossing(*(middle + unit * x for x in ((goal - fit.level) / fit.slope, *roots)))


@dataclass(frozen=True, slots=True)
class _Line:
    """log-odds = level + slope x, with the variances of both and their covariance."""

    level: float
    slope: float
    var_level: float
    var_slope: float
    covariance: float


def _logistic(data: Sequence[tuple[float, float, float]]) -> _Line | None:
    """Newton's method on (x, misses, n), from the overall share; None where it finds no line."""
    n, misses = sum(row[2] for row in data), sum(row[1] for row in data)
    if not 0 < misses < n:
        return None
    level, slope = math.log(misses / (n - misses)), 0.0
    for _ in range(50):
        line, step = _newton(data, level, slope)
        if line is None or abs(line.slope) > 500:
            return None
        level, slope = line.level, line.slope
        if step < 1e-10:
            return line
    return None


def _newton(data: Sequence[tuple[float, float, float]], level: float, slope: float) -> tuple[_Line | None, float]:
    """One step, and its length."""
    a = b = c = pull = lever = 0.0
    for x, misses, n in data:
        share = 1 / (1 + math.exp(-max(-500.0, min(500.0, level + slope * x))))
        weight, rest = n * share * (1 - share), misses - n * share
        a, b, c = a + weight, b + weight * x, c + weight * x * x
        pull, lever = pull + rest, lever + rest * x
    determinant = a * c - b * b
    if determinant <= 1e-12 * a * c or determinant <= 0:
        return None, 0.0
    up, tilt = (c * pull - b * lever) / determinant, (a * lever - b * pull) / determinant
    return _Line(level + up, slope + tilt, c / determinant, a / determinant, -b / determinant), abs(up) + abs(tilt)


def _fieller(line: _Line, goal: float, z: float) -> tuple[float, float] | None:
    """The x at which (level + slope x - goal)² = z² var(level + slope x); None where the slope could be 0."""
    a = line.slope**2 - z * z * line.var_slope
    b = line.slope * (line.level - goal) - z * z * line.covariance
    c = (line.level - goal) ** 2 - z * z * line.var_level
    inside = b * b - a * c
    if line.slope <= 0 or a <= 0 or inside < 0:
        return None
    root = math.sqrt(inside)
    return (-b - root) / a, (-b + root) / a
