"""How long a server that is behind finishes nothing: the gaps between its answers while requests wait.

Where a request now and then takes many times as long as the others, all that wait behind it miss together. Such events
decide how many misses there are, and they are too seldom for the scatter of those that were seen to show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from tailwatch.loadtest.outcomes import CODE, MISSES
from tailwatch.loadtest.requests import NEVER, Requests

KEPT = 16  # of the longest
LONG = 17.0  # times the mean: where service times fall off exponentially the longest of a million is 14, seldom 17
DECISIVE = 0.05  # of all misses: with fewer behind them, they could be twice as many and hardly move the knee
_MISSED = frozenset(CODE[name] for name in MISSES)


class Gap(NamedTuple):
    """In seconds; missed: requests that missed and were in flight in it, or until fewer waited than keep it busy."""

    length: float
    missed: int


def service_gaps(requests: Requests, workers: int) -> dict[str, Any]:
    """The gaps at whose begin at least so many requests were in flight: count, mean and the longest (seconds), for each
    of these how many requests missed behind it; and how many missed in all."""
    rows = zip(requests.planned, requests.end, requests.reason, strict=True)
    missed = [(planned, end) for planned, end, reason in rows if reason in _MISSED]
    found = list(_busy_gaps(requests, workers))
    longest = nlargest(KEPT, found, key=lambda gap: gap[1] - gap[0])
    return {
        "count": len(found),
        "mean": sum(end - begin for begin, end, _ in found) / 1e9 / max(1, len(found)),
        "longest": [Gap((end - begin) / 1e9, _touching(missed, begin, over)) for begin, end, over in longest],
        "missed": len(missed),
    }


def _busy_gaps(requests: Requests, workers: int) -> Iterator[tuple[int, int, float]]:
    """Begin, end, and when fewer than so many were in flight again; ns."""
    ends = sorted(end for end in requests.end if end != NEVER)
    planned = sorted(requests.planned)
    waiting, arrived = list[tuple[int, int]](), 0
    for number, (end, after) in enumerate(pairwise(ends)):
        while arrived < len(planned) and planned[arrived] <= end:
            arrived += 1
        if arrived - (number + 1) >= workers:
            waiting.append((end, after))
        else:
            yield from ((*gap, end) for gap in waiting)
            waiting = []
    yield from ((*gap, inf) for gap in waiting)


def _touching(missed: Iterable[tuple[int, int]], begin: int, over: float) -> int:
    return sum(planned <= over and (end == NEVER or end >= begin) for planned, end in missed)


def rare_gaps(several: Iterable[Mapping[str, Any]]) -> tuple[int, float] | None:
    """How many gaps of several runs are about as long as the longest, and how many times the mean that is. None where
    none is long, where they are so many that their number is known, or where few of the misses are behind them."""
    rows = list(several)
    count = sum(row["count"] for row in rows)
    mean = sum(row["count"] * row["mean"] for row in rows) / max(1, count)
    longest = nlargest(KEPT, (gap for row in rows for gap in row["longest"]))
    if not longest or longest[0].length <= LONG * mean:
        return None
    alike = [gap for gap in longest if gap.length > longest[0].length / 2]
    behind = sum(gap.missed for gap in alike)
    decides = behind >= DECISIVE * sum(row["missed"] for row in rows)
    return (len(alike), longest[0].length / mean) if decides and len(alike) < KEPT else None
