"""The planned load: seeded Poisson arrivals whose rate ramps up, holds, and drains, about every ten seconds."""

from __future__ import annotations

import hashlib
import json
import math
import random
from bisect import bisect_right
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise

PERIOD = 10.0  # seconds, about
# Share of the period, and the rate there over its mean: a ramp, a plateau at 1.3 times the mean, a drain.
PROFILE = ((0.0, 0.5), (0.3, 1.3), (0.8, 1.3), (0.85, 0.2), (0.95, 0.2), (1.0, 0.5))
FEWEST_TOKENS, MOST_TOKENS = 8, 128
SYSTEM_PROMPTS = 12


@dataclass(frozen=True, slots=True)
class Planned:
    """One request: when (seconds from the start), and what it asks for."""

    at: float
    tokens: int
    chat: bool
    system: int
    words: int
    seed: int


def plan(rate: float, seconds: float, seed: int) -> list[Planned]:
    """Arrivals at `rate` per second on average over `seconds`. The same arguments give the same plan."""
    rng = random.Random(seed)
    expected, found = 0.0, []
    while (expected := expected + rng.expovariate(1.0)) < rate * seconds:
        found.append(_request(_time_of(expected / rate, seconds), rng))
    return found


def closed(count: int, seed: int) -> list[Planned]:
    """Requests without a time of their own: each is sent when an earlier one is done."""
    rng = random.Random(seed)
    return [_request(0.0, rng) for _ in range(count)]


def digest(planned: list[Planned]) -> str:
    """Tells whether two runs had the same plan."""
    text = json.dumps([asdict(request) for request in planned], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def mean_tokens(planned: list[Planned]) -> float:
    """Output tokens per request."""
    return sum(request.tokens for request in planned) / max(1, len(planned))


def _request(at: float, rng: random.Random) -> Planned:
    tokens = min(MOST_TOKENS, max(FEWEST_TOKENS, round(rng.lognormvariate(3.55, 0.55))))
    return Planned(
        at=round(at, 6),
        tokens=tokens,
        chat=rng.random() < 0.5,
        system=rng.randrange(SYSTEM_PROMPTS),
        words=rng.randint(20, 160),
        seed=rng.randrange(2**31),
    )


def _time_of(mass: float, seconds: float) -> float:
    """When the profile, run through in `seconds`, has let `mass` seconds' worth of mean load pass."""
    period = seconds / max(1, round(seconds / PERIOD))
    whole, rest = divmod(mass / period, 1.0)
    return (whole + _invert(rest)) * period


def _areas() -> list[float]:
    pieces = [(t1 - t0) * (r0 + r1) / 2 for (t0, r0), (t1, r1) in pairwise(PROFILE)]
    total = sum(pieces)
    return [area / total for area in accumulate(pieces, initial=0.0)]


_AREAS = _areas()


def _invert(share: float) -> float:
    """The part of a period after which `share` of its arrivals have come."""
    i = min(bisect_right(_AREAS, share), len(PROFILE) - 1) - 1
    (t0, r0), (t1, r1) = PROFILE[i], PROFILE[i + 1]
    part = (share - _AREAS[i]) / (_AREAS[i + 1] - _AREAS[i])
    slope = r1 - r0
    if abs(slope) < 1e-9:
        return t0 + part * (t1 - t0)
    wanted = part * (r0 + r1) / 2
    return t0 + (t1 - t0) * (math.sqrt(r0 * r0 + 2 * slope * wanted) - r0) / slope
