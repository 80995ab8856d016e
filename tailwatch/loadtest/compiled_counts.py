"""The counts of a histogram, kept and read by the compiled core."""

from __future__ import annotations

from array import array
from typing import Any

from tailwatch._cold import ffi, lib

_LAYOUTS = {"ttft": lib.TW_LAYOUT_TTFT, "e2e": lib.TW_LAYOUT_E2E, "itl": lib.TW_LAYOUT_ITL}
_LOW = 0xFFFF_FFFF_FFFF_FFFF


def layout_hash() -> int:
    """Of the slots and bounds of all layouts."""
    return int(lib.tw_layout_hash())


class CompiledCounts:
    """Samples of one layout by slot; sum and extremes in nanoseconds."""

    __slots__ = ("_counts", "_layout")

    def __init__(self, layout: str) -> None:
        self._layout = lib.tw_layout_of(_LAYOUTS[layout])
        self._counts = ffi.new("tw_histogram *")
        lib.tw_histogram_init(self._counts)

    @property
    def room(self) -> int:
        """How many slots there are."""
        return int(self._layout.slots)

    def record(self, ns: int) -> None:
        """One sample."""
        lib.tw_histogram_record(self._counts, self._layout, ns)

    def record_all(self, values: array[int]) -> None:
        """Several."""
        if values:
            cells = ffi.cast("const uint64_t *", ffi.from_buffer(values))
            lib.tw_histogram_record_all(self._counts, self._layout, cells, len(values))

    def record_gaps(self, stamps: bytes | array[int]) -> None:
        """The gaps between ascending 64-bit stamps."""
        if len(stamps):
            cells = ffi.from_buffer("uint64_t[]", stamps)
            lib.tw_histogram_record_gaps(self._counts, self._layout, cells, len(cells))

    def read(self) -> tuple[dict[int, int], int, int, int]:
        """Samples by slot in use, ascending; their sum, and the extremes."""
        counts = self._read()
        slots = {i: found for i, found in enumerate(ffi.unpack(counts.slot, self._layout.slots)) if found}
        return slots, counts.sum_high << 64 | counts.sum_low, counts.min_ns, counts.max_ns

    def write(self, slots: dict[int, int], sum_ns: int, min_ns: int, max_ns: int) -> None:
        """What read() gave of another one. Raises OverflowError: a number that 64 bits do not hold."""
        self._counts.min_ns, self._counts.max_ns = min_ns, max_ns
        self._counts.sum_low, self._counts.sum_high = sum_ns & _LOW, sum_ns >> 64
        ffi.memmove(self._counts.slot, b"\0" * ffi.sizeof(self._counts.slot), ffi.sizeof(self._counts.slot))
        for slot, found in slots.items():
            self._counts.slot[slot] = found

    def edges(self, slot: int) -> tuple[int, int]:
        """Above the first and up to the second are a slot's samples; 2^64 - 1: without a bound."""
        edges = ffi.new("uint64_t[2]")
        lib.tw_slot_edges(self._layout, slot, edges, edges + 1)
        return edges[0], edges[1]

    def quantile(self, share: float) -> float:
        """Nanoseconds that this share of the samples does not exceed; there is one at least."""
        return float(lib.tw_counts_quantile(self._read(), self._layout, share))

    def _read(self) -> Any:
        counts = ffi.new("tw_counts *")
        lib.tw_histogram_read(self._counts, counts)
        return counts
