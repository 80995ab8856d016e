"""How long a server that is behind finishes nothing: the gaps between its answers while requests wait.

Where a request now and then takes many times as long as the others, all that wait behind it miss together. Such events
decide how many misses there are, and they are too seldom for the scatter of those that were seen to show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Any

from tailwatch.loadtest.requests import NEVER, Requests

KEPT = 16  # of the longest
LONG = 17.0  # times the mean: where service times fall off exponentially the longest of a million is 14, seldom 17


def service_gaps(requests: Requests, workers: int) -> dict[str, Any]:
    """The gaps at whose begin at least so many requests were in flight: count, mean and the longest; seconds."""
    ends = sorted(end for end in requests.end if end != NEVER)
    planned = sorted(requests.planned)
    found, arrived = [], 0
    for number in range(len(ends) - 1):
        while arrived < len(planned) and planned[arrived] <= ends[number]:
            arrived += 1
        if arrived - (number + 1) >= workers:
            found.append((ends[number + 1] - ends[number]) / 1e9)
    return {"count": len(found), "mean": sum(found) / max(1, len(found)), "longest": nlargest(KEPT, found)}


def rare_gaps(several: Iterable[Mapping[str, Any]]) -> tuple[int, float] | None:
    """How many gaps of several runs are about as long as the longest, and how many times the mean that is; None where
    none is long, or where they are so many that their number is known."""
    rows = list(several)
    count = sum(row["count"] for row in rows)
    mean = sum(row["count"] * row["mean"] for row in rows) / max(1, count)
    longest = nlargest(KEPT, (gap for row in rows for gap in row["longest"]))
    if not longest or longest[0] <= LONG * mean:
        return None
    alike = sum(gap > longest[0] / 2 for gap in longest)
    return (alike, longest[0] / mean) if alike < KEPT else None
