"""The laws of the gaps between arrivals, in units of the mean gap, and how far a sample is from one (Kolmogorov)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import TypeVar

T = TypeVar("T")

FEWEST_CV, MOST_CV = 0.1, 10.0  # of gamma gaps; outside their density is a spike that shows nothing about a server
MOST_TESTED = 20_000  # gaps compared with their law; more would show nothing more and cost seconds


@dataclass(frozen=True, slots=True)
class Gaps:
    """A law: its name in words; the places of its arrivals, endless and rising, where the mean gap is 1; its
    distribution function, None where the gaps are fixed and there is nothing to test."""

    name: str
    places: Callable[[random.Random], Iterator[float]]
    cdf: Callable[[float], float] | None


def even() -> Gaps:
    """Every gap the same, the first arrival at once."""
    return Gaps("constant", lambda rng: map(float, count()), None)


def poisson() -> Gaps:
    """Exponential gaps: independent users."""
    return Gaps("poisson", lambda rng: _sums(lambda: -math.log(1.0 - rng.random())), lambda x: -math.expm1(-x))


def gamma(cv: float) -> Gaps:
    """Gamma gaps of this coefficient of variation: below 1 more even than Poisson, above 1 in clusters."""
    shape = 1 / (cv * cv)
    return Gaps(
        f"gamma with CV {cv:g}",
        lambda rng: _sums(lambda: rng.gammavariate(shape, 1 / shape)),
        lambda x: gamma_below(shape, shape * x),
    )


def together(size: int) -> Gaps:
    """`size` at once, and again when so many are due; the first ones at once."""
    return Gaps(f"bursts of {size}", lambda rng: (k for k in count(0.0, size) for _ in repeat(None, size)), None)


def _sums(draw: Callable[[], float]) -> Iterator[float]:
    """Running sums; compensated, so that a million gaps add no drift (Kahan)."""
    total = lost = 0.0
    while True:
        gap = draw() - lost
        total, lost = (new := total + gap), (new - total) - gap
        yield total


def gamma_below(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(shape, x), to about 1e-12: the series below shape + 1, the
    continued fraction (Lentz) above."""
    if x <= 0:
        return 0.0
    if math.isinf(x):
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    return front * _series(shape, x) if x < shape + 1 else 1.0 - front * _fraction(shape, x)


def _series(shape: float, x: float) -> float:
    term = total = 1.0 / shape
    n = shape
    while abs(term) > abs(total) * 1e-14:
        n += 1
        term *= x / n
        total += term
    return total


def _fraction(shape: float, x: float) -> float:
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / (b or tiny)
    found = d
    for i in range(1, 10_000):
        a = -i * (i - shape)
        b += 2
        d = 1 / ((a * d + b) or tiny)
        c = (b + a / c) or tiny
        found *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return found


def distance(sample: Sequence[float], cdf: Callable[[float], float], blur: float = 0.0) -> float:
    """Kolmogorov's: the largest difference between the sample's distribution function and this one. blur: what each
    value was rounded by at most; what can be explained by that alone is no difference."""
    n = len(sample)
    rising = sorted(sample)
    above = (((i + 1) / n - cdf(x + blur)) for i, x in enumerate(rising))
    below = ((cdf(max(0.0, x - blur)) - i / n) for i, x in enumerate(rising))
    return max(0.0, max(above, default=0.0), max(below, default=0.0))


def probability(distance: float, n: int) -> float:
    """Of so large a distance or a larger one under the law itself, n independent gaps: Kolmogorov's limit with
    Stephens's correction for small n (1970), good to a few per cent from n = 8."""
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance if n else 0.0
    if x < 0.3:
        return 1.0
    return min(1.0, max(0.0, 2 * math.fsum((-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))))


def tested(values: Sequence[T]) -> Sequence[T]:
    """All of them, or so many evenly spread that the test takes no longer than it needs."""
    return values if len(values) <= MOST_TESTED else values[:: -(-len(values) // MOST_TESTED)]
