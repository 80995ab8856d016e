"""The pauses and slow gaps of this process, one by one."""

from __future__ import annotations

from typing import Any

from tailwatch._cold import ffi, lib
from tailwatch.snapshots.core_values import CAUSES, pause_of, slow_gap_of, text_of
from tailwatch.snapshots.model import Pause, SlowGap


class Records:
    """The pauses and slow gaps of this process one by one, as they came: for log lines.

    address: of its segment. A cursor counts records from the first ever; 0 to begin with.
    """

    def __init__(self, address: int) -> None:
        self._segment = ffi.cast("const tw_segment *", address)

    def pauses(self, cursor: int, *, before_ns: int) -> tuple[list[Pause], int, int]:
        """Recorded pauses from the cursor on that ended by a monotonic time; the next cursor; how many were
        overwritten before they could be read."""
        clock, record = lib.tw_clock_pair_now(), ffi.new("tw_pause_record *")
        head = self._segment.pause.head
        first = max(cursor, head - lib.TW_PAUSE_RING)
        out: list[Pause] = []
        lost = first - cursor
        for number in range(first, head):
            if not lib.tw_pause_read(ffi.addressof(self._segment, "pause"), number, record):
                lost += 1
            elif record.stop_ns > before_ns:
                return out, number, lost
            else:
                out.append(pause_of(record, clock))
        return out, max(head, cursor), lost

    @property
    def pause_count(self) -> int:
        """Pauses ever recorded: the newest cursor."""
        return int(self._segment.pause.head)

    def short_pauses(self) -> tuple[int, float]:
        """How many pauses were too short to be recorded one by one, and their seconds together."""
        totals = self._segment.pause.totals
        rows = [totals[i] for i in range(len(CAUSES))]
        return sum(row.short_count for row in rows), sum(row.short_ns for row in rows) / 1e9

    def slow_gaps(self, cursor: int) -> tuple[list[SlowGap], int, int]:
        """Slow gaps from the cursor on, oldest first; the next cursor; how many were overwritten before."""
        clock, record = lib.tw_clock_pair_now(), ffi.new("tw_slow_record *")
        head = self._segment.slow_head
        first = max(cursor, head - lib.TW_SLOW_RING)
        out: list[SlowGap] = []
        lost = first - cursor
        for number in range(first, head):
            if lib.tw_segment_slow_read(self._segment, number, record):
                out.append(self._slow_gap(record, clock))
            else:
                lost += 1
        return out, max(head, cursor), lost

    def _slow_gap(self, record: Any, clock: Any) -> SlowGap:
        known = record.series < self._segment.series_count
        series = lib.tw_segment_series(self._segment, record.series if known else 0)
        roles = [text_of(lost.role) for lost in self._segment.lost]
        names = ffi.addressof(self._segment, "host", "names")
        return slow_gap_of(record, series.model, series.route, clock, roles, names)
