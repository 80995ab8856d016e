"""Is B different from A? The run is the unit: one number of each, and what many runs show together.

Requests of one run share its stalls, so a bootstrap over requests calls one A/A pair in three different, and its "95 %"
interval holds the truth six times in ten (tests/loadtest/test_coverage.py repeats both). Runs do not share them:
Student's t on the log-ratios of pairs of runs holds what it promises from 6 pairs on.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from tailwatch.loadtest.t_test import detectable_errors, t_p, t_quantile

FEWEST = 6  # runs (pairs) below which there is no interval: no exact p of 5 runs a side reaches far below 0.05
LEVEL = 0.95
MOST_FLIPS = 24  # pairs of which all 2^n signs are counted
MOST_SPLITS = 50_000  # ways to deal two groups that are all counted
SAMPLES = 20_000  # drawn (seeded) where there are more


@dataclass(frozen=True, slots=True)
class Difference:
    """B less A, in one number of each run.

    runs: of A and of B. paired: run i of both belongs together (same schedule). ratio: estimate, low and high are
    B/A − 1 (from logarithms); else B − A in the number's own unit, because a run's was 0 or the number is a share.
    a, b: the geometric (arithmetic) mean of each. low, high: the 95 % interval; p: of the t-test; detectable: the
    smallest true effect, of the same kind as estimate, that would be shown in four of five such experiments; all None
    with fewer than 6 runs. exact: p of all exchanges of the labels (seeded samples of them where `sampled`). sign: p of
    the sign test, None where not paired. spread: standard deviation of one pair's (run's) logarithm or difference.
    """

    runs: tuple[int, int]
    paired: bool
    ratio: bool
    a: float
    b: float
    estimate: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    exact: float | None = None
    sampled: bool = False
    sign: float | None = None
    spread: float | None = None
    detectable: float | None = None

    def holds(self, effect: float) -> bool:
        """Whether the interval contains an effect; False where there is no interval."""
        return self.low is not None and self.high is not None and self.low <= effect <= self.high


def bare(found: Difference) -> Difference:
    """Without what it proves: where the values are bounds, a test of them shows nothing."""
    return Difference(found.runs, found.paired, found.ratio, found.a, found.b, found.estimate)


def paired(
    a: Sequence[float], b: Sequence[float], *, ratio: bool = True, alpha: float = 1 - LEVEL, resolution: float = 0.0
) -> Difference:
    """Run i of a against run i of b, which had the same schedule.

    ratio: of logarithms, where all values are above 0. alpha: what `detectable` is to be shown at (smaller where many
    rows are looked at). resolution: what a value is rounded to, as a share of it (a histogram's bucket): the mean is
    not taken for better known than one value, because all of them may be rounded the same way.
    """
    if len(a) != len(b) or not a:
        raise ValueError("pairs need as many runs of one as of the other, at least one")
    logs = ratio and min(*a, *b) > 0
    before, after = _scaled(a, logs), _scaled(b, logs)
    differences = [y - x for x, y in zip(before, after, strict=True)]
    n, mean = len(differences), _mean(differences)
    made = _Estimate(n, n, True, logs, _mean(before), _mean(after), mean)
    if n < 2:
        return made.difference()
    made.spread, made.dof = _deviation(differences), n - 1.0
    made.error = max(made.spread / math.sqrt(n), _rounding(resolution, logs, a, b))
    made.exact, made.sampled = flip_p(differences)
    made.sign = sign_p(differences)
    return made.difference(alpha)


def unpaired(
    a: Sequence[float], b: Sequence[float], *, ratio: bool = True, alpha: float = 1 - LEVEL, resolution: float = 0.0
) -> Difference:
    """Runs of a against runs of b that have nothing in common: Welch's t, and all ways to deal the runs to two sides.

    Arguments as of `paired`.
    """
    if not a or not b:
        raise ValueError("each side needs a run")
    logs = ratio and min(*a, *b) > 0
    before, after = _scaled(a, logs), _scaled(b, logs)
    made = _Estimate(len(a), len(b), False, logs, _mean(before), _mean(after), _mean(after) - _mean(before))
    if min(len(a), len(b)) < 2:
        return made.difference()
    shares = [_deviation(values) ** 2 / len(values) for values in (before, after)]
    made.error = math.sqrt(sum(shares))
    made.spread = made.error / math.sqrt(1 / len(a) + 1 / len(b))
    made.error = max(made.error, _rounding(resolution, logs, a, b))
    made.dof = _welch(shares, (len(a), len(b)))
    made.exact, made.sampled = split_p(before, after)
    return made.difference(alpha)


def floor(a: Sequence[float], again: Sequence[float], *, ratio: bool = True) -> float | None:
    """What an A/A comparison of so many pairs shows although nothing differs, in 95 of 100: half the interval around
    no effect. None with fewer than 2 pairs."""
    n = min(len(a), len(again))
    if n < 2 or len(a) != len(again):
        return None
    logs = ratio and min(*a, *again) > 0
    differences = [y - x for x, y in zip(_scaled(a, logs), _scaled(again, logs), strict=True)]
    # The mean of equal arms is known to be 0: n degrees of freedom, and a mean off 0 counts as noise.
    half = t_quantile(LEVEL, n) * math.sqrt(math.fsum(d * d for d in differences)) / n
    return _ratio(half) if logs else half


def floor_of_runs(values: Sequence[float], n: int, *, ratio: bool = True) -> float | None:
    """The same from the spread of one side's own runs, for n against n unpaired: where these differ by their schedules
    too, more than the floor of pairs. None with fewer than 2 runs."""
    if len(values) < 2 or n < 1:
        return None
    logs = ratio and min(values) > 0
    half = t_quantile(LEVEL, len(values) - 1) * _deviation(_scaled(values, logs)) * math.sqrt(2 / n)
    return _ratio(half) if logs else half


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p of each row once it is counted that so many rows were looked at (Holm's step-down). None stays None."""
    rows = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(rows):
        highest = max(highest, min(1.0, p * (len(rows) - rank)))
        adjusted[i] = highest
    return adjusted


def flip_p(differences: Sequence[float]) -> tuple[float, bool]:
    """Two-sided p of the mean under all 2^n exchanges of the labels inside the pairs, and whether it is a sample.

    All of them up to 24 pairs; the least that n pairs can give is 2 / 2^n.
    """
    observed = abs(math.fsum(differences))
    limit = observed - 1e-12 * math.fsum(map(abs, differences))
    if len(differences) > MOST_FLIPS:
        return _sampled(lambda draw: abs(math.fsum(draw.choice((d, -d)) for d in differences)) >= limit), True
    half = len(differences) // 2
    left, right = _signed_sums(differences[:half]), sorted(_signed_sums(differences[half:]))
    as_far = sum(len(right) - bisect_left(right, limit - one) + bisect_right(right, -limit - one) for one in left)
    return min(1.0, as_far / (1 << len(differences))), False


def split_p(a: Sequence[float], b: Sequence[float]) -> tuple[float, bool]:
    """Two-sided p of the difference of means under all ways to deal the runs to two sides, and whether it is a
    sample."""
    values = [*a, *b]
    total, n = math.fsum(values), len(a)
    slack = 1e-12 * math.fsum(map(abs, values))

    def off(sum_of_a: float) -> float:
        return abs(sum_of_a - total * n / len(values))

    limit = off(math.fsum(a)) - slack
    if (ways := math.comb(len(values), n)) > MOST_SPLITS:
        return _sampled(lambda draw: off(math.fsum(draw.sample(values, n))) >= limit), True
    return sum(off(sum(chosen)) >= limit for chosen in combinations(values, n)) / ways, False


def sign_p(differences: Sequence[float]) -> float:
    """Two-sided p of the count of pairs that went up against those that went down; ties are left out."""
    ups, downs = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    n, less = ups + downs, min(ups, downs)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(less + 1)) / (1 << n))


@dataclass(slots=True)
class _Estimate:
    """A difference on its own scale, logarithms or plain, while it is made."""

    n_a: int
    n_b: int
    paired: bool
    logs: bool
    a: float
    b: float
    mean: float
    error: float | None = None
    dof: float = 0.0
    spread: float | None = None
    exact: float | None = None
    sampled: bool = False
    sign: float | None = None

    def difference(self, alpha: float = 1 - LEVEL) -> Difference:
        runs, out = (self.n_a, self.n_b), _ratio if self.logs else float
        mean_of: Callable[[float], float] = math.exp if self.logs else float
        known = (runs, self.paired, self.logs, mean_of(self.a), mean_of(self.b), out(self.mean))
        if self.error is None or min(runs) < FEWEST:
            return Difference(*known, exact=self.exact, sampled=self.sampled, sign=self.sign, spread=self.spread)
        half = t_quantile(LEVEL, self.dof) * self.error
        least = detectable_errors(max(1.0, math.floor(self.dof)), alpha) * self.error
        return Difference(
            *known, out(self.mean - half), out(self.mean + half), self._p(), self.exact, self.sampled, self.sign,
            self.spread, out(least),
        )  # fmt: skip

    def _p(self) -> float:
        assert self.error is not None
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return t_p(self.mean / self.error, self.dof)


def _scaled(values: Sequence[float], logs: bool) -> list[float]:
    return [math.log(value) for value in values] if logs else [float(value) for value in values]


def _ratio(log: float) -> float:
    """B / A - 1; what no float holds is its largest."""
    return math.expm1(min(log, 700.0))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _rounding(resolution: float, logs: bool, *sides: Sequence[float]) -> float:
    """A standard error whose 95 % interval is about as wide as the difference of two rounded values may be off."""
    size = 1.0 if logs else max(abs(value) for side in sides for value in side)
    return resolution * size / 2


def _welch(shares: Sequence[float], counts: Sequence[int]) -> float:
    """Degrees of freedom (Welch and Satterthwaite); the fewer's where nothing varies."""
    below = math.fsum(share**2 / (n - 1) for share, n in zip(shares, counts, strict=True))
    return sum(shares) ** 2 / below if below > 0 else min(counts) - 1.0


def _signed_sums(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums = [one + signed for one in sums for signed in (value, -value)]
    return sums


def _sampled(as_far: Callable[[random.Random], bool]) -> float:
    """The observed labels count as one of the draws, so that p is never 0."""
    draw = random.Random(1)
    return (1 + sum(as_far(draw) for _ in range(SAMPLES))) / (1 + SAMPLES)
