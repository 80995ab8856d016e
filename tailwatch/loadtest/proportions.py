"""What a count of good requests proves about a share: Wilson's interval, and misses that come together.

Requests that miss do so together: one stall is one event, however many waited in it. Counting them as independent
makes every interval too narrow, so the number of requests is first divided by the design effect: how much wider the
counts of whole stretches of time scatter than independent requests would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

FEWEST_STRETCHES = 8  # below which a scatter shows little
FEW = 10  # misses worth as many independent ones, below which a scatter cannot be distinguished from luck


@dataclass(frozen=True, slots=True)
class RunWindow:
    """One of the equal, consecutive stretches of time that a probe is cut into.

    scheduled: requests planned to start in it. judged: those of them that count, good or a miss. good: those that
    kept every bound. completed: answers that ended in it without error, whenever they were planned. in_flight: planned
    and not over at its end.
    """

    scheduled: int
    judged: int
    good: int
    completed: int
    in_flight: int = 0


def wilson(good: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share after good of n (both may be effective numbers); (0, 1) where n is 0.

    Wilson 1927: the shares that a test at z standard deviations would not refuse. It is not symmetric, stays within
    [0, 1], and shows something even where every one was good.
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
    an independent one. None where fewer than 8 windows show something.

    Where the misses (or the good ones) are too few to show how they come together, those of a window are taken for one:
    a minute without a miss has not shown more than 60 windows without one.
    """
    used = [window for window in windows if window.judged]
    judged, good = sum(window.judged for window in used), sum(window.good for window in used)
    if len(used) < FEWEST_STRETCHES:
        return None
    effect = design_effect(used)
    if min(good, judged - good) / effect < FEW:
        effect = max(effect, judged / len(used))
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
