"""A report's clock and CLOCK_MONOTONIC, through anchors that may be late, drift and come from several processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.cli.nsys.clock import Anchor, Clock, earliest

SECOND = 1_000_000_000


def burst(monotonic: int, at: int, lateness: tuple[int, ...] = (400, 0, 150), pid: int = 1) -> list[Anchor]:
    """Marks a microsecond apart, each stamped so late."""
    return [Anchor(at + i * 1000 + late, monotonic + i * 1000, pid) for i, late in enumerate(lateness)]


def test_of_a_burst_the_earliest_counts() -> None:
    """An anchor can only be late."""
    anchors = burst(5 * SECOND, 100, (3000, 20, 700))

    assert [a.at - a.monotonic for a in earliest(anchors)] == [100 + 20 - 5 * SECOND]
    assert Clock(anchors).report(5 * SECOND) == 120


def test_one_burst_is_an_offset() -> None:
    """Both ways, before it and after it."""
    clock = Clock(burst(5 * SECOND, 100, (0,)))

    assert (clock.report(0), clock.report(9 * SECOND)) == (100 - 5 * SECOND, 100 + 4 * SECOND)
    assert clock.monotonic(clock.report(7 * SECOND)) == 7 * SECOND


@given(
    ppm=st.integers(-500, 500),
    offset=st.integers(-(10**15), 10**15),
    times=st.lists(st.integers(0, 120), min_size=2, max_size=20, unique=True),
    late=st.lists(st.integers(0, 800), min_size=20, max_size=20),
    asked=st.integers(-10, 130),
)
def test_drift_is_followed(ppm: int, offset: int, times: list[int], late: list[int], asked: int) -> None:
    """A clock that runs up to 500 ppm faster or slower: within the anchors the error is that of the anchors, beyond
    them what their slope allows. There and back is the same time."""

    def true(monotonic: int) -> int:
        return offset + monotonic + monotonic * ppm // 1_000_000

    anchors = [
        a for t, by in zip(times, late, strict=False) for a in burst(t * SECOND, true(t * SECOND), (by + 9, by, by + 5))
    ]
    clock = Clock(reversed(anchors))
    monotonic = asked * SECOND
    outside = max(min(times) - asked, asked - max(times), 0)

    error = clock.report(monotonic) - true(monotonic)
    assert -2 - outside * 900 <= error <= 802 + outside * 900
    assert abs(clock.monotonic(clock.report(monotonic)) - monotonic) <= 2


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 3)), min_size=1, max_size=60))
def test_any_anchors_make_a_clock_that_never_runs_backwards(rows: list[tuple[int, int, int]]) -> None:
    """Also marks that cannot be true: a later time is not earlier in the report but for the jumps between stretches
    that cannot be joined."""
    clock = Clock(Anchor(at, monotonic, pid) for at, monotonic, pid in rows)
    first, last = clock.span

    for time in (first, last, (first + last) // 2):
        assert isinstance(clock.report(time), int)
        assert clock.report(time + 10) >= clock.report(time) or clock.bursts > 1


def test_anchors_of_several_processes_are_one_clock() -> None:
    """Two processes anchor in the same millisecond: the less delayed counts, and no slope is made of a microsecond."""
    anchors = burst(SECOND, 0, (500, 600), pid=1) + burst(SECOND + 100, 100, (0, 10), pid=2)
    anchors += burst(11 * SECOND, 10 * SECOND, (0,), pid=1)
    clock = Clock(anchors)

    assert clock.bursts == 2
    assert clock.report(6 * SECOND) == 5 * SECOND


def test_no_anchor_is_no_clock() -> None:
    """ValueError."""
    with pytest.raises(ValueError, match="no clock anchors"):
        Clock([])
