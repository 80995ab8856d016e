"""Student's t without scipy: its p, its quantile, and the effect that a test at a level shows with a given power."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

POWER = 0.8
_NEVER = math.inf


def t_p(t: float, dof: float) -> float:
    """Two-sided p of Student's t with dof > 0 degrees of freedom."""
    return _incomplete_beta(dof / 2, 0.5, dof / (dof + t * t)) if math.isfinite(t) else 0.0


@lru_cache(maxsize=1024)
def t_quantile(level: float, dof: float) -> float:
    """The t that a two-sided interval of this level reaches to."""
    return _root(lambda t: 1 - t_p(t, dof) - level, 0.0, 2.0)


@lru_cache(maxsize=1024)
def detectable_errors(dof: float, alpha: float, power: float = POWER) -> float:
    """The true effect, in standard errors of the mean, that a t-test at alpha shows with this power (noncentral t)."""
    reach = t_quantile(1 - alpha, dof)
    return _root(lambda effect: _power(effect, reach, dof) - power, 0.0, reach + 2.0, within=1e-6)


def _root(rising: Callable[[float], float], low: float, high: float, *, within: float = 0.0) -> float:
    """Where a rising function of low.. becomes 0, to a share of itself; high is doubled until it is above."""
    while rising(high) < 0:
        low, high = high, high * 2
        if high > 1e12:
            return _NEVER
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high or high - low <= within * high:
            break
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def _power(effect: float, reach: float, dof: float) -> float:
    """P(|T| > reach) of the noncentral t: the normal numerator over every value of the chi below (Simpson)."""
    steps, wide = 200, 10 / math.sqrt(2 * dof)
    low, high = max(0.0, 1 - wide), 1 + wide
    step = (high - low) / steps
    log_scale = math.log(2) + dof / 2 * math.log(dof / 2) - math.lgamma(dof / 2)
    total = 0.0
    for i in range(steps + 1):
        s = low + i * step  # the root of chi²/dof
        if s <= 0:
            continue
        density = math.exp(log_scale + (dof - 1) * math.log(s) - dof * s * s / 2)
        outside = _above(reach * s - effect) + _above(reach * s + effect)
        total += density * outside * (1 if i in (0, steps) else 4 if i % 2 else 2)
    return total * step / 3


def _above(z: float) -> float:
    """P(Z > z) of the standard normal."""
    return math.erfc(z / math.sqrt(2)) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised, 0 <= x <= 1; the continued fraction (DLMF 8.17.22) on the side where it converges quickly."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), by Lentz's method."""
    found = front = 1.0
    back = 0.0
    for i in range(1, 1000):
        m = i // 2
        above = -(a + m) * (a + b + m) if i % 2 else m * (b - m)
        top = above / ((a + 2 * m) * (a + 2 * m + (1 if i % 2 else -1)))
        back = 1 / (1 + top * x * back)
        front = 1 + top * x / front
        found *= front * back
        if abs(front * back - 1) < 1e-15:
            break
    return found
