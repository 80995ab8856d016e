"""The gaps between a server's answers while requests wait, and whether they are too rare to be counted."""

from __future__ import annotations

import random
from array import array
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.loadtest.outcomes import CODE
from tailwatch.loadtest.requests import NEVER, Requests
from tailwatch.loadtest.service_gaps import KEPT, Gap, rare_gaps, service_gaps

MS = 10**6


def made(rows: list[tuple[int, int]], missed: Collection[int] = ()) -> Requests:
    """Planned and ended, in ns; which of them missed."""
    found = Requests()
    reasons = [CODE["late" if number in missed else "good"] for number in range(len(rows))]
    found.reason = array(found.reason.typecode, reasons)
    found.planned = array(found.planned.typecode, [planned for planned, _ in rows])
    found.end = array(found.end.typecode, [end for _, end in rows])
    return found


def test_only_gaps_that_begin_with_requests_in_flight_count() -> None:
    """Three at once, a pause of the clients, one more."""
    rows = made([(0, 10 * MS), (0, 30 * MS), (0, 40 * MS), (500 * MS, 510 * MS), (0, NEVER)])
    found = service_gaps(rows, 2)  # the one that never ended is in flight all the time
    assert lengths(found) == pytest.approx([0.02, 0.01])
    assert (found["count"], found["mean"]) == (2, pytest.approx(0.015))


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 10**9)), max_size=60), st.integers(1, 4))
def test_they_are_those_that_a_count_of_what_is_in_flight_gives(rows: list[tuple[int, int]], workers: int) -> None:
    """At each end, how many had been planned and had not ended."""
    spans = [(planned, planned + length) for planned, length in rows]
    ends = sorted(end for _, end in spans)
    expected = [
        (after - end) / 1e9
        for number, (end, after) in enumerate(pairwise(ends))
        if sum(planned <= end for planned, _ in spans) - (number + 1) >= workers
    ]
    found = service_gaps(made(spans), workers)
    assert found["count"] == len(expected)
    assert lengths(found) == sorted(expected, reverse=True)[:KEPT]
    assert found["mean"] == pytest.approx(sum(expected) / max(1, len(expected)))


def test_requests_that_missed_behind_a_gap() -> None:
    """One server, 10 ms each, that stands for 500 ms once: two that came meanwhile, and one that queued behind these;
    not one that came when nothing waited any more, and none that kept its bound."""
    rows = [(0, 10 * MS), (5 * MS, 510 * MS), (100 * MS, 520 * MS), (515 * MS, 530 * MS), (600 * MS, 610 * MS)]
    found = service_gaps(made(rows, missed={1, 2, 3, 4}), 1)
    assert found["longest"][0] == (pytest.approx(0.5), 3) and found["missed"] == 4
    assert service_gaps(made(rows, missed={4}), 1)["longest"][0].missed == 0


def lengths(found: dict[str, Any]) -> list[float]:
    """Of the longest."""
    return [gap.length for gap in found["longest"]]


def of(gaps: list[float], behind: int = 10, missed: int = 100) -> dict[str, object]:
    """As one probe has them: so many misses behind each gap, and in all."""
    longest = [Gap(length, behind) for length in sorted(gaps, reverse=True)[:KEPT]]
    return {"count": len(gaps), "mean": sum(gaps) / len(gaps), "longest": longest, "missed": missed}


def test_a_few_that_are_very_long_are_rare() -> None:
    """Three of 1 s among 10 000 of 10 ms, in two probes; as many as are kept have a number that is known."""
    usual = [0.01] * 5000
    few = rare_gaps([of([*usual, 1.0]), of([*usual, 0.9, 0.7, 0.4])])
    assert few is not None and few[0] == 3 and few[1] == pytest.approx(97, rel=0.02)
    assert rare_gaps([of([*usual, *[1.0] * 8]), of([*usual, *[0.9] * 8])]) is None
    assert rare_gaps([of(usual)]) is None and rare_gaps([]) is None


def test_rare_gaps_with_few_misses_behind_them_decide_nothing() -> None:
    """A machine that stood still twice in a search of a minute, while thousands missed for want of room."""
    usual = [0.002] * 5000
    assert rare_gaps([of([*usual, 0.134], behind=40, missed=2000), of([*usual, 0.12], behind=40, missed=2000)]) is None
    assert rare_gaps([of([*usual, 0.134], behind=150, missed=2000), of(usual, missed=0)]) is not None


def test_those_of_an_exponential_law_are_not() -> None:
    """The longest of 100 000 is 11 or 12 times their mean."""
    draw = random.Random(7)
    assert rare_gaps([of([draw.expovariate(100) for _ in range(10_000)]) for _ in range(10)]) is None
