"""Latencies counted in the server side's buckets, so that both views can be laid on each other and machines merged.

Base-2 exponential buckets at scale 5, 1 us to 1000 s, with the classic bounds split in:
csrc/include/tailwatch/record/histogram.h.
Counts and sums are exact; merging is associative and commutative. Recording belongs to one thread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tailwatch import platform
from tailwatch.errors import OptionError, TailwatchError

if platform.LINUX:
    from tailwatch.loadtest.compiled_counts import CompiledCounts as Counts
    from tailwatch.loadtest.compiled_counts import layout_hash
else:
    from tailwatch.pure.histogram import PureCounts as Counts  # type: ignore[assignment]
    from tailwatch.pure.histogram import layout_hash

LAYOUT_HASH = f"{layout_hash():016x}"
_NEVER = 0xFFFF_FFFF_FFFF_FFFF


class LatencyHistogram:
    """Samples of one latency. layout: which classic bounds are exact: "ttft", "e2e" or "itl" (also for TPOT)."""

    __slots__ = ("_counts", "layout")

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self._counts = Counts(layout)

    def record(self, ns: int) -> None:
        """One sample in nanoseconds; below 0 counts as 0."""
        self._counts.record(max(0, ns))

    def record_all(self, values: array[int]) -> None:
        """Samples in nanoseconds, array('Q') or array('q') of numbers that are not below 0."""
        self._counts.record_all(values)

    def record_gaps(self, stamps: bytes | array[int]) -> None:
        """The gaps between ascending 64-bit stamps in nanoseconds, as `Exchange.stamps` has them."""
        self._counts.record_gaps(stamps)

    def add(self, other: LatencyHistogram) -> None:
        """Takes in the samples of another one of the same layout."""
        if other.layout != self.layout:
            raise OptionError.of("layout", other.layout, f"expected a histogram of layout {self.layout!r}")
        (slots, total, least, most), theirs = self._counts.read(), other._counts.read()
        for slot, found in theirs[0].items():
            slots[slot] = slots.get(slot, 0) + found
        self._counts.write(slots, total + theirs[1], min(least, theirs[2]), max(most, theirs[3]))

    @property
    def count(self) -> int:
        """Samples."""
        return sum(self._counts.read()[0].values())

    @property
    def sum(self) -> float:
        """Seconds, all samples together."""
        return _seconds(self._counts.read()[1])

    @property
    def min(self) -> float | None:
        """Seconds, exact; None when empty."""
        slots, _, least, _ = self._counts.read()
        return least / 1e9 if slots else None

    @property
    def max(self) -> float | None:
        """Seconds, exact; None when empty."""
        slots, _, _, most = self._counts.read()
        return most / 1e9 if slots else None

    @property
    def mean(self) -> float | None:
        """Seconds; None when empty."""
        return self.sum / count if (count := self.count) else None

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatencyHistogram) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self.count:
            return f"Histogram({self.layout!r}, empty)"
        return (
            f"Histogram({self.layout!r}, count={self.count}, p50={self.p(50):g}, p99={self.p(99):g}, max={self.max:g})"
        )

    def p(self, percent: float) -> float | None:
        """The value in seconds that this share of the samples does not exceed; None when empty.

        The sample of rank ceil(percent / 100 * count), at least 1, as the geometric middle of its bucket, clamped to
        min and max: at most 1.1 % off, as on the server side. p(0) is min, p(100) max.

        Raises:
            OptionError: not a number from 0 to 100.
        """
        if not 0 <= percent <= 100:
            raise OptionError.of("percent", percent, "expected a number from 0 to 100")
        return self._counts.quantile(percent / 100) / 1e9 if self.count else None

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """(above, up to, samples) of each bucket in use, ascending, in seconds; the last one's upper edge may be
        inf."""
        for slot, found in self._counts.read()[0].items():
            above, upper = self._counts.edges(slot)
            yield above / 1e9, math.inf if upper == _NEVER else upper / 1e9, found

    def as_dict(self) -> dict[str, Any]:
        """For JSON: nanoseconds and the counts by slot number; `from_dict` gives an equal one."""
        slots, total, least, most = self._counts.read()
        return {
            "layout": self.layout,
            "count": sum(slots.values()),
            "sum_ns": total,
            "min_ns": least if slots else None,
            "max_ns": most if slots else None,
            "slots": {str(slot): found for slot, found in slots.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LatencyHistogram:
        """Of `as_dict`'s numbers.

        Raises:
            TailwatchError: they are none, or do not fit together.
        """
        try:
            return cls._of(data)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise TailwatchError(f"a damaged histogram: {type(error).__name__} {error}") from error

    @classmethod
    def _of(cls, data: Mapping[str, Any]) -> LatencyHistogram:
        found = cls(data["layout"])
        slots = {int(slot): _natural(count) for slot, count in data["slots"].items()}
        count = sum(slots.values())
        if wrong := [slot for slot in slots if not 0 <= slot < found._counts.room]:
            raise ValueError(f"slot {wrong[0]}")
        if count != data["count"]:
            raise ValueError(f"{count} samples in its slots, expected {data['count']}")
        if count:
            total, least, most = (_natural(data[name]) for name in ("sum_ns", "min_ns", "max_ns"))
            found._counts.write(slots, total, least, most)
        return found

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], LatencyHistogram], tuple[dict[str, Any]]]:
        return LatencyHistogram.from_dict, (self.as_dict(),)


def _natural(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 128:
        raise ValueError(f"{number!r} is no count")
    return number


def _seconds(ns: int) -> float:
    return ns / 10**9
