"""The requests of a run in columns, and what is computed from them: samples of a latency, and which got no answer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from tailwatch.loadtest.outcomes import CODE, FAULTS, MISSES, NEVER_SENT, REASONS

NEVER = -1  # in a column of times: it did not happen
# name → array code. Times: nanoseconds from the start of the run.
COLUMNS = {
    "planned": "q",
    "sent": "q",
    "first_byte": "q",
    "first_chunk": "q",
    "first": "q",
    "last": "q",
    "end": "q",
    "tpot": "q",
    "largest_gap": "q",
    "largest_gap_at": "q",
    "index": "I",
    "prompt": "I",
    "wanted": "I",
    "tokens": "I",
    "messages": "I",
    "due": "I",
    "met": "I",
    "status": "H",
    "reason": "B",
    "fault": "B",
    "flags": "B",
}
REUSED, RETRIED, MARKED = 1, 2, 4  # flags
_MOMENTS = ("planned", "sent", "first_byte", "first_chunk", "first", "last", "end", "largest_gap_at")
_MISSED = frozenset(CODE[name] for name in MISSES if name != "late")  # no answer, or none that counts
_GIVEN_UP = frozenset(FAULTS.index(name) for name in ("timeout", "abandoned", "client_limit"))


class Requests:
    """One row a request, in columns (array.array): some 110 bytes each.

    planned, sent, first_byte, first_chunk, first (content), last (content), end, largest_gap_at: ns from the start of
    the run, NEVER where it did not happen; end: also when one that was never sent was given up. tpot, largest_gap: ns;
    NEVER where there is none. index: of the schedule. prompt, wanted: tokens asked for; tokens: that came. due, met:
    token deadlines (fluidity). reason, fault: codes into outcomes.REASONS and FAULTS. flags: REUSED, RETRIED (a stale
    connection), MARKED (one of its gaps, or its first token, overlaps a pause of this client).
    """

    __slots__ = tuple(COLUMNS)

    planned: array[int]
    sent: array[int]
    first_byte: array[int]
    first_chunk: array[int]
    first: array[int]
    last: array[int]
    end: array[int]
    tpot: array[int]
    largest_gap: array[int]
    largest_gap_at: array[int]
    index: array[int]
    prompt: array[int]
    wanted: array[int]
    tokens: array[int]
    messages: array[int]
    due: array[int]
    met: array[int]
    status: array[int]
    reason: array[int]
    fault: array[int]
    flags: array[int]

    def __init__(self) -> None:
        for name, code in COLUMNS.items():
            setattr(self, name, array(code))

    def __len__(self) -> int:
        return len(self.planned)

    def add(self, **values: int) -> None:
        """A row; every column is named."""
        for name in COLUMNS:
            getattr(self, name).append(values[name])

    def extend(self, other: Requests, shift_ns: int = 0) -> None:
        """Takes in the rows of another run that began shift_ns after this one."""
        for name in COLUMNS:
            column = getattr(other, name)
            if shift_ns and name in _MOMENTS:
                column = array("q", (value if value == NEVER else value + shift_ns for value in column))
            getattr(self, name).extend(column)

    def since_planned(self, name: str) -> array[int]:
        """ns from the planned start to the moment of a column, of the requests where it happened."""
        return _differences(getattr(self, name), self.planned)

    def since_sent(self, name: str) -> array[int]:
        """The same from the actual send."""
        return _differences(getattr(self, name), self.sent)

    def as_dict(self) -> dict[str, list[int]]:
        """For JSON: a list a column."""
        return {name: getattr(self, name).tolist() for name in COLUMNS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Requests:
        """Of `as_dict`'s lists. TypeError, ValueError, KeyError or OverflowError for anything else."""
        found = cls()
        for name, code in COLUMNS.items():
            setattr(found, name, array(code, data[name]))
        if len({len(getattr(found, name)) for name in COLUMNS}) != 1:
            raise ValueError("columns of different lengths")
        if found.reason and (max(found.reason) >= len(REASONS) or max(found.fault) >= len(FAULTS)):
            raise ValueError("an outcome unknown to this version")
        return found


def _differences(later: array[int], earlier: array[int]) -> array[int]:
    pairs = zip(later, earlier, strict=True)
    return array("q", (max(0, end - start) for end, start in pairs if end != NEVER and start != NEVER))


def samples(requests: Requests, metric: str) -> array[int]:
    """The samples in ns of a latency that is one a request, in the order of the requests. Not "itl"."""
    if metric in ("tpot", "largest_gap"):
        return array("q", (value for value in getattr(requests, metric) if value != NEVER))
    if metric == "send_lag":
        return requests.since_planned("sent")
    if metric in ("e2e", "e2e_naive"):
        since = requests.sent if metric == "e2e_naive" else requests.planned
        rows = zip(requests.end, since, requests.status, requests.fault, strict=True)
        return array("q", (end - start for end, start, status, fault in rows if _whole(end, start, status, fault)))
    if metric == "ttft_naive":
        return requests.since_sent("first")
    return requests.since_planned({"ttft": "first"}.get(metric, metric))


def _whole(end: int, start: int, status: int, fault: int) -> bool:
    """An answer that came whole and was none of error: what E2E is of."""
    return end != NEVER and start != NEVER and 200 <= status < 300 and fault == 0


def unanswered(requests: Requests, metric: str) -> tuple[array[int], int]:
    """Of the requests that count and have no TTFT ("ttft"), or no whole answer ("e2e"): how old those were, in ns, that
    this client ended or never sent; and how many others there are: they failed."""
    ages, lost = array("q"), 0
    columns = (getattr(requests, name) for name in ("reason", "first", "fault", "end", "planned"))
    for reason, first, fault, end, planned in zip(*columns, strict=True):
        if reason not in _MISSED or (metric == "ttft" and first != NEVER):
            continue
        if fault in _GIVEN_UP or reason == CODE[NEVER_SENT]:
            ages.append(max(0, end - planned))
        else:
            lost += 1
    return ages, lost
