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

from tailwatch._cold import ffi, lib
from tailwatch.errors import OptionError, TailwatchError

LAYOUTS = {"ttft": lib.TW_LAYOUT_TTFT, "e2e": lib.TW_LAYOUT_E2E, "itl": lib.TW_LAYOUT_ITL}
LAYOUT_HASH = f"{lib.tw_layout_hash():016x}"
_LOW = 0xFFFF_FFFF_FFFF_FFFF
_NEVER = _LOW


class LatencyHistogram:
    """Samples of one latency. layout: which classic bounds are exact: "ttft", "e2e" or "itl" (also for TPOT)."""

    __slots__ = ("_counts", "_layout", "layout")

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self._layout = lib.tw_layout_of(LAYOUTS[layout])
        self._counts = ffi.new("tw_histogram *")
        lib.tw_histogram_init(self._counts)

    def record(self, ns: int) -> None:
        """One sample in nanoseconds; below 0 counts as 0."""
        lib.tw_histogram_record(self._counts, self._layout, max(0, ns))

    def record_all(self, values: array[int]) -> None:
        """Samples in nanoseconds, array('Q') or array('q') of numbers that are not below 0."""
        if values:
            cells = ffi.cast("const uint64_t *", ffi.from_buffer(values))
            lib.tw_histogram_record_all(self._counts, self._layout, cells, len(values))

    def record_gaps(self, stamps: bytes | array[int]) -> None:
        """The gaps between ascending 64-bit stamps in nanoseconds, as `Exchange.stamps` has them."""
        if len(stamps):
            cells = ffi.from_buffer("uint64_t[]", stamps)
            lib.tw_histogram_record_gaps(self._counts, self._layout, cells, len(cells))

    def add(self, other: LatencyHistogram) -> None:
        """Takes in the samples of another one of the same layout."""
        if other.layout != self.layout:
            raise OptionError.of("layout", other.layout, f"expected a histogram of layout {self.layout!r}")
        counts = self._read()
        lib.tw_counts_add(counts, other._read())
        self._write(counts)

    @property
    def count(self) -> int:
        """Samples."""
        return int(self._read().count)

    @property
    def sum(self) -> float:
        """Seconds, all samples together."""
        return float(lib.tw_counts_sum_seconds(self._read()))

    @property
    def min(self) -> float | None:
        """Seconds, exact; None when empty."""
        counts = self._read()
        return counts.min_ns / 1e9 if counts.count else None

    @property
    def max(self) -> float | None:
        """Seconds, exact; None when empty."""
        counts = self._read()
        return counts.max_ns / 1e9 if counts.count else None

    @property
    def mean(self) -> float | None:
        """Seconds; None when empty."""
        counts = self._read()
        return float(lib.tw_counts_sum_seconds(counts)) / counts.count if counts.count else None

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
        counts = self._read()
        return lib.tw_counts_quantile(counts, self._layout, percent / 100) / 1e9 if counts.count else None

    def buckets(self) -> Iterator[tuple[float, float, int]]:
        """(above, up to, samples) of each bucket in use, ascending, in seconds; the last one's upper edge may be
        inf."""
        edges = ffi.new("uint64_t[2]")
        for slot, found in self._slots(self._read()):
            lib.tw_slot_edges(self._layout, slot, edges, edges + 1)
            yield edges[0] / 1e9, math.inf if edges[1] == _NEVER else edges[1] / 1e9, found

    def as_dict(self) -> dict[str, Any]:
        """For JSON: nanoseconds and the counts by slot number; `from_dict` gives an equal one."""
        counts = self._read()
        return {
            "layout": self.layout,
            "count": counts.count,
            "sum_ns": counts.sum_high << 64 | counts.sum_low,
            "min_ns": counts.min_ns if counts.count else None,
            "max_ns": counts.max_ns if counts.count else None,
            "slots": {str(slot): found for slot, found in self._slots(counts)},
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
        counts = found._read()
        for slot, count in data["slots"].items():
            if not 0 <= int(slot) < found._layout.slots:
                raise ValueError(f"slot {slot}")
            counts.slot[int(slot)] = count
            counts.count += count
        if counts.count != data["count"]:
            raise ValueError(f"{counts.count} samples in its slots, {data['count']} said")
        if counts.count:
            counts.min_ns, counts.max_ns, total = data["min_ns"], data["max_ns"], int(data["sum_ns"])
            counts.sum_low, counts.sum_high = total & _LOW, total >> 64
        found._write(counts)
        return found

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], LatencyHistogram], tuple[dict[str, Any]]]:
        return LatencyHistogram.from_dict, (self.as_dict(),)

    def _slots(self, counts: Any) -> list[tuple[int, int]]:
        return [(i, found) for i, found in enumerate(ffi.unpack(counts.slot, self._layout.slots)) if found]

    def _read(self) -> Any:
        counts = ffi.new("tw_counts *")
        lib.tw_histogram_read(self._counts, counts)
        return counts

    def _write(self, counts: Any) -> None:
        self._counts.min_ns, self._counts.max_ns = counts.min_ns, counts.max_ns
        self._counts.sum_low, self._counts.sum_high = counts.sum_low, counts.sum_high
        ffi.memmove(self._counts.slot, counts.slot, ffi.sizeof("uint64_t") * lib.TW_SLOTS_MAX)
