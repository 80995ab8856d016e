"""The times of a report, and CLOCK_MONOTONIC: a line through the clock anchors.

An anchor is a mark whose payload is CLOCK_MONOTONIC, read just before the call: what the tool stamps can only be late.
So of each burst the earliest counts. Between two of them the conversion is linear, never one offset: the tool's clock
is the CPU's counter, MONOTONIC follows NTP.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

BURST_NS = 1_000_000
LEAST_SPAN_NS = 1_000_000_000
MOST_SLOPE = 1e-3


@dataclass(frozen=True, slots=True)
class Anchor:
    """One mark: when the tool stamped it, ns of the report, and CLOCK_MONOTONIC just before, ns."""

    at: int
    monotonic: int
    pid: int


class Clock:
    """Converts both ways, to the nanosecond.

    Args:
        anchors: in any order, of any processes of one machine; at least one.

    Raises:
        ValueError: there is none.
    """

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        self._points = [(each.monotonic, each.at) for each in earliest(anchors)]
        if not self._points:
            raise ValueError("no clock anchors")

    @property
    def bursts(self) -> int:
        """How many of them the line goes through."""
        return len(self._points)

    @property
    def span(self) -> tuple[int, int]:
        """Monotonic ns of the first and the last: outside, the conversion is an extrapolation."""
        return self._points[0][0], self._points[-1][0]

    def report(self, monotonic: int) -> int:
        """A monotonic time as the report's, ns."""
        return self._convert(monotonic, 0, 1)

    def monotonic(self, report: int) -> int:
        """A time of the report as CLOCK_MONOTONIC, ns."""
        return self._convert(report, 1, 0)

    def _convert(self, time: int, have: int, want: int) -> int:
        points = self._points
        after = bisect_right(points, time, key=itemgetter(have))
        if 0 < after < len(points):
            a, b = points[after - 1], points[after]
        else:  # beyond the ends: the slope of all of them
            a, b = points[-1 if after else 0], points[0 if after else -1]
            if abs(b[0] - a[0]) < LEAST_SPAN_NS:
                b = a
        passed, length = time - a[have], b[have] - a[have]
        gained = (b[want] - a[want]) - length
        if length == 0 or abs(gained) > MOST_SLOPE * abs(b[0] - a[0]):
            gained, length = 0, 1
        return a[want] + passed + round(gained * passed / length)


def earliest(anchors: Iterable[Anchor]) -> list[Anchor]:
    """Of each burst the anchor that was stamped with the least delay, in the order of time."""
    bursts: list[list[Anchor]] = []
    last: dict[int, list[Anchor]] = {}
    for each in sorted(anchors, key=lambda anchor: anchor.monotonic):
        burst = last.get(each.pid)
        if burst is None or each.monotonic - burst[-1].monotonic > BURST_NS:
            burst = last[each.pid] = []
            bursts.append(burst)
        burst.append(each)
    best = [min(burst, key=lambda anchor: anchor.at - anchor.monotonic) for burst in bursts]
    return _rising(sorted(best, key=lambda anchor: anchor.monotonic))


def _rising(anchors: list[Anchor]) -> list[Anchor]:
    """Without those that would make time stand still: of two that were taken at once the one with the least delay."""
    kept: list[Anchor] = []
    for each in anchors:
        if kept and (each.monotonic - kept[-1].monotonic < BURST_NS or each.at <= kept[-1].at):
            if each.at - each.monotonic < kept[-1].at - kept[-1].monotonic:
                kept[-1] = each
        else:
            kept.append(each)
    return kept
