"""How many replicas a load needs, and what a request that waits for many parts gets of their tail.

A replica is sized by its knee, not by its capacity: between the two every further request is answered and hardly one
in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailwatch.errors import OptionError

MOST_REPLICAS = 1_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """replicas: the fewest that stay at or below the knee. each: requests per second on each of them. one_down: the
    same while one is missing (inf where there was only one). spare: replicas that stay at or below the knee with one
    missing. cliff: what dividing by the capacity would give, None where no capacity was given; at_cliff: requests per
    second on each of those."""

    expect: float
    knee: float
    capacity: float | None
    replicas: int
    each: float
    one_down: float
    spare: int
    cliff: int | None
    at_cliff: float | None


def fleet(expect: float, knee: float, capacity: float | None = None) -> Fleet:
    """For an expected rate, the knee and the capacity of one replica, all in requests per second."""
    for name, value in (("expect", expect), ("knee", knee), ("capacity", capacity)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise OptionError.of(name, value, "expected requests per second above 0")
    if capacity is not None and capacity < knee:
        raise OptionError.of("capacity", capacity, f"expected at least the knee, {knee:g}")
    if expect / knee > MOST_REPLICAS:
        raise OptionError.of("expect", expect, f"expected at most {MOST_REPLICAS} times the knee")
    needed = _ceil(expect / knee)
    cliff = _ceil(expect / capacity) if capacity is not None else None
    down = expect / (needed - 1) if needed > 1 else math.inf
    return Fleet(
        expect, knee, capacity, needed, expect / needed, down, needed + 1, cliff, expect / cliff if cliff else None
    )


def part_quantile(share: float, parts: int) -> float:
    """The quantile (0 to 1) of one part at which the given share of requests waiting for all parts lies:
    share ** (1 / parts), where the parts are independent. Parts that a stall hits together are hit at once, and
    the whole is then no worse than this."""
    return float(_checked(share) ** (1 / _whole(parts)))


def all_good(attainment: float, parts: int) -> float:
    """The share of requests of which every part keeps a promise that each part keeps with attainment."""
    return float(_checked(attainment) ** _whole(parts))


def _ceil(ratio: float) -> int:
    """Rounded up, but for what is whole and only a float's rounding above."""
    return max(1, math.ceil(ratio * (1 - 1e-12)))


def _checked(share: float) -> float:
    if not 0 < share <= 1:
        raise OptionError.of("share", share, "expected a share above 0 and up to 1")
    return share


def _whole(parts: int) -> int:
    if parts < 1:
        raise OptionError.of("fanout", parts, "expected at least 1 part")
    return parts
