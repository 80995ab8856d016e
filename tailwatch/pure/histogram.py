"""The counts of a histogram in the buckets of csrc/record/histogram.c, in Python."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import pairwise

SCALE, BUCKET_MIN, BUCKETS, ROOM = 5, -638, 957, 992
NEVER = 2**64 - 1
BOUNDS_NS = {
    name: [round(float(bound) * 1e9) for bound in bounds.split()]
    for name, bounds in {
        "ttft": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160",
        "e2e": "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84",
        "itl": "0.0005 0.001 0.002 0.003 0.004 0.005 0.0075 0.01 0.015 0.02 0.025 0.03 0.04 0.05 0.075 0.1 0.15 0.2"
        " 0.3 0.4 0.5 0.75 1 2.5 5 10",
        "pause": "0.0001 0.0005 0.001 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 50",
    }.items()
}
"""Classic bounds of each layout: as csrc/record/make_layout_tables.py has them."""


def _root(number: int, degree: int) -> int:
    """The largest integer whose power of that degree is at most the number."""
    guess = 1 << -(-number.bit_length() // degree)
    while (better := ((degree - 1) * guess + number // guess ** (degree - 1)) // degree) < guess:
        guess = better
    return guess


@cache
def _bucket_uppers() -> list[int]:
    """The largest whole nanosecond below the first bucket, and in each: floor(10^9 * 2^(k/32)) for ascending k."""
    octave = 1 << SCALE
    mantissa = [_root(10 ** (9 * octave) << k + octave * 33, octave) for k in range(octave)]
    ks = range(BUCKET_MIN, BUCKET_MIN + BUCKETS + 1)
    return [mantissa[k % octave] >> 33 - k // octave for k in ks]


@cache
def uppers(layout: str) -> list[int]:
    """The largest whole nanosecond of each slot but the last, ascending."""
    return sorted({*_bucket_uppers(), *BOUNDS_NS[layout]})


def layout_hash() -> int:
    """As tw_layout_hash(): another layout has another one."""
    text = f"base2 scale={SCALE} min={BUCKET_MIN} buckets={BUCKETS} room={ROOM}\n"
    for name, bounds in BOUNDS_NS.items():
        text += f"{name} slots={len(uppers(name)) + 1} bounds_ns={bounds}\n"
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


class PureCounts:
    """As loadtest.histogram.CompiledCounts: samples of one layout by slot; sum and extremes in nanoseconds."""

    __slots__ = ("_uppers", "max_ns", "min_ns", "slots", "sum_ns")

    def __init__(self, layout: str) -> None:
        self._uppers = uppers(layout)
        self.slots: dict[int, int] = {}
        self.sum_ns = self.max_ns = 0
        self.min_ns = NEVER

    @property
    def room(self) -> int:
        """How many slots there are."""
        return len(self._uppers) + 1

    def record(self, ns: int) -> None:
        """One sample."""
        slot = bisect_left(self._uppers, ns)
        self.slots[slot] = self.slots.get(slot, 0) + 1
        self.sum_ns += ns
        self.min_ns, self.max_ns = min(self.min_ns, ns), max(self.max_ns, ns)

    def record_all(self, values: array[int]) -> None:
        """Several."""
        for value in values:
            self.record(value)

    def record_gaps(self, stamps: bytes | array[int]) -> None:
        """The gaps between ascending 64-bit stamps."""
        for before, after in pairwise(stamps if isinstance(stamps, array) else array("Q", stamps)):
            self.record(max(0, after - before))

    def read(self) -> tuple[dict[int, int], int, int, int]:
        """Samples by slot in use, ascending; their sum, and the extremes."""
        return dict(sorted(self.slots.items())), self.sum_ns, self.min_ns, self.max_ns

    def write(self, slots: dict[int, int], sum_ns: int, min_ns: int, max_ns: int) -> None:
        """What read() gave of another one."""
        self.slots, self.sum_ns, self.min_ns, self.max_ns = dict(slots), sum_ns, min_ns, max_ns

    def edges(self, slot: int) -> tuple[int, int]:
        """Above the first and up to the second are a slot's samples; NEVER: without a bound."""
        return self._uppers[slot - 1] if slot else 0, self._uppers[slot] if slot < len(self._uppers) else NEVER

    def quantile(self, share: float) -> float:
        """Nanoseconds that this share of the samples does not exceed; there is one at least. See
        tw_counts_quantile()."""
        used = sorted(self.slots.items())
        if not 0 < share < 1:
            slot = used[-1][0] if share >= 1 else used[0][0]
            return self._within(slot)[1 if share >= 1 else 0]
        count = sum(self.slots.values())
        rank = min(max(1, math.ceil(share * count * (1 - 1e-14))), count)
        slot = next(slot for slot, below in self._running(used) if below >= rank)
        return _geometric_middle(*self._within(slot))

    @staticmethod
    def _running(used: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        total = 0
        for slot, count in used:
            total += count
            yield slot, total

    def _within(self, slot: int) -> tuple[int, int]:
        """A slot's edges, narrowed to what was seen."""
        lower, upper = self.edges(slot)
        narrow = max(lower, self.min_ns), min(upper, self.max_ns)
        return narrow if narrow[0] <= narrow[1] else (lower, upper)


def _geometric_middle(lower: int, upper: int) -> int:
    if lower == upper:
        return lower
    base = float(lower) or 1.0
    value = base * math.sqrt(upper / base)
    return min(max(int(value + 0.5), lower), upper)
