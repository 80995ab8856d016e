"""Recorded times made into times to send at: gone through again, spread, cut, and how far that moved them."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from tailwatch.loadtest.interarrival import tested

FAR_NS = 2**62  # what comes later than this does not fit a column of times


def repeated(times_ns: Sequence[int], seconds: float, rounds: int) -> list[int]:
    """Nanoseconds, gone through so often; each round is that long."""
    period = round(seconds * 1e9)
    return [time + i * period for i in range(rounds) for time in times_ns]


def spread_over(times_ns: Sequence[int], width: float, rng: random.Random) -> tuple[list[int], Sequence[int]]:
    """Times moved later by up to width seconds, sorted, and the row that each belongs to."""
    if not width:
        return list(times_ns), range(len(times_ns))
    moved = sorted((time + int(rng.random() * width * 1e9), i) for i, time in enumerate(times_ns))
    return [time for time, _ in moved], [i for _, i in moved]


def cut(times_ns: list[int], seconds: float, until: float, most: int) -> tuple[array[int], float]:
    """Of sorted times as many as fit, the first at 0, and the seconds of the plan. seconds: of all of them; until,
    most: where to end before."""
    first = times_ns[0]
    most = min(most, bisect_right(times_ns, first + FAR_NS))
    kept = array("q", (time - first for time in times_ns[:most]))
    if len(kept) < len(times_ns):
        seconds = (times_ns[len(kept)] - first) / 1e9
    elif kept[-1] > seconds * 1e9:  # spread beyond the last bucket
        seconds = kept[-1] / 1e9
    if until < seconds:
        seconds = until
        kept = kept[: bisect_right(kept, seconds * 1e9 - 1)]
    return kept, seconds


def apart(sent_ns: array[int], recorded_ns: Sequence[int], factor: float) -> float:
    """Kolmogorov's distance of the sent times from the recorded ones of as many rows: what spreading moved."""
    meant = array("d", (round(time * factor) for time in recorded_ns[: len(sent_ns)]))
    points = (*tested(sent_ns), *tested(meant))
    far = max((abs(bisect_right(sent_ns, at) - bisect_right(meant, at)) for at in points), default=0)
    return far / max(1, len(sent_ns))
