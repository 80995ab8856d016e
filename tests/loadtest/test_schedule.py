"""A schedule is data: it hashes, saves, loads and splits, and describes its arrivals."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest.schedule import MOST_TOKENS, Law, Planned, Schedule

ROWS = [(0.5, 10, 20), (0.25, 30, 40), (1.0, 50, 60), (2.125, 70, 80)]
rows = st.lists(st.tuples(st.floats(0, 1000), st.integers(0, MOST_TOKENS), st.integers(0, MOST_TOKENS)), max_size=50)


def test_requests_stand_in_order() -> None:
    """Rows of any order come out sorted, with their lengths and places."""
    schedule = Schedule.of(ROWS, duration=3)
    assert list(schedule) == [Planned(0.25, 30, 40, 0), Planned(0.5, 10, 20, 1), Planned(1, 50, 60, 2), schedule[-1]]
    assert schedule[-1] == Planned(2.125, 70, 80, 3)
    assert (len(schedule), schedule.duration) == (4, 3)
    with pytest.raises(IndexError):
        schedule[4]


def test_the_digest_is_the_schedule() -> None:
    """Equal schedules have equal digests, on any machine; a nanosecond or a token more is another one."""
    first = Schedule.of(ROWS, duration=3)
    assert first.digest == Schedule.of(reversed(ROWS), duration=3).digest == "887e76daa970f104"
    assert hash(first) == hash(Schedule.of(ROWS, duration=3))
    for other in ([*ROWS[:3], (2.125000001, 70, 80)], [*ROWS[:3], (2.125, 70, 81)], ROWS[:3]):
        assert Schedule.of(other, duration=3) != first
    assert Schedule.of(ROWS, duration=4) != first
    assert first != first.digest


@given(rows, st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_parts_make_the_whole(found: list[tuple[float, int, int]], n: int) -> None:
    """The parts for n processes hold every request once, with the time and the place it has in the whole."""
    whole = Schedule.of(found)
    parts = [whole.part(i, n) for i in range(n)]
    assert sorted((row for part in parts for row in part), key=lambda row: row.index) == list(whole)
    assert all(part.duration == whole.duration and part.law == whole.law for part in parts)
    assert len({part.digest for part in parts if len(part)}) == min(n, len(whole))
    again = whole.part(0, 2).part(1, 2) if len(whole) else whole
    assert [row.index for row in again] == list(range(2, len(whole), 4))


@given(rows, st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_saved_is_the_same(found: list[tuple[float, int, int]], i: int) -> None:
    """A schedule, or a part of one, survives JSON: times to the nanosecond, law and all."""
    part = Schedule.of(found, seed=7).part(i, 3)
    again = Schedule.from_dict(json.loads(json.dumps(part.as_dict())))
    assert (again, list(again), again.seed) == (part, list(part), 7)
    assert again.law == part.law


def test_files(tmp_path: Path) -> None:
    """What save writes load reads; the error of a file that is none names it."""
    path = tmp_path / "plan.json"
    schedule = Schedule.of(ROWS)
    schedule.save(path)
    assert Schedule.load(path) == schedule
    for content, message in (
        (b"{", "no JSON"),
        (b"[]", "no schedule"),
        (b'{"schedule": 2}', "format 1"),
        (b"\xff", "JSON"),
    ):
        path.write_bytes(content)
        with pytest.raises(TailwatchError, match=message) as caught:
            Schedule.load(path)
        assert str(path) in str(caught.value)
    with pytest.raises(TailwatchError, match="No such file"):
        Schedule.load(tmp_path / "none")
    with pytest.raises(TailwatchError, match="No such file"):
        schedule.save(tmp_path / "none" / "plan.json")


def test_a_changed_file_is_refused() -> None:
    """The digest shows that a row of a saved schedule was changed since."""
    data = Schedule.of(ROWS).as_dict()
    data["output_tokens"][2] += 1
    with pytest.raises(TailwatchError, match="it was changed"):
        Schedule.from_dict(data)


junk = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=5)
)


@given(st.sampled_from(sorted(Schedule.of(ROWS).as_dict())), junk)
@settings(max_examples=300, deadline=None)
def test_damaged_files_are_refused(key: str, value: Any) -> None:
    """Any other value in any place of a saved schedule is refused in a sentence, or gives the same schedule."""
    data = Schedule.of(ROWS).as_dict()
    data[key] = value
    try:
        found = Schedule.from_dict(data)
    except TailwatchError:
        return
    assert found == Schedule.of(ROWS)


def test_wrong_columns_are_refused() -> None:
    """Unsorted times, columns of different lengths, times beyond the duration and impossible tokens are refused."""

    def of(times: list[int], prompt: list[int], output: list[int], duration: float) -> Schedule:
        columns = array("q", times), array("I", prompt), array("I", output)
        return Schedule(*columns, duration=duration, law=Law.of(columns[0], 1, "x"))

    assert len(of([0, 1, 1], [1, 1, 1], [1, 1, 1], 1)) == 3
    for wrong in (
        ([1, 0], [1, 1], [1, 1], 1.0),
        ([0], [1, 1], [1], 1.0),
        ([0, 2 * 10**9], [1, 1], [1, 1], 1.0),
        ([-1], [1], [1], 1.0),
        ([0], [MOST_TOKENS + 1], [1], 1.0),
        ([0], [1], [1], math.nan),
        ([0], [1], [1], 1e9),
    ):
        with pytest.raises(OptionError):
            of(*wrong)
    with pytest.raises(OptionError, match="part"):
        Schedule.of(ROWS).part(3, 3)


def test_the_law_of_known_times() -> None:
    """CV and Fano factor by hand: gaps 1, 1, 4 and counts 2, 0 in turn."""
    law = Law.of(array("q", [0, 10**9, 2 * 10**9, 6 * 10**9]), 7, "by hand")
    assert law.cv == pytest.approx(math.sqrt(3) / 2)
    assert (law.n, law.rate, law.fano) == (4, 4 / 7, None)
    pairs = array("q", [second * 10**9 + half for second in range(0, 20, 2) for half in (0, 5)])
    assert Law.of(pairs, 20, "pairs").fano == pytest.approx((20 / 19) / 1)
    assert Law.of(pairs, 9, "short").fano is None
    assert str(law).startswith("by hand: 4 requests in 7 s, ")
    assert "0.5714/s" in str(law) and str(law).endswith("CV 0.866")


def test_nothing_is_a_schedule() -> None:
    """A schedule of no requests has no law, and is no error."""
    empty = Schedule.of([])
    assert (list(empty), empty.law.rate, empty.law.cv, empty.law.fano) == ([], 0, None, None)
    assert Schedule.from_dict(empty.as_dict()) == empty
    assert Law.of(array("q", [5, 5, 5]), 1, "at once").cv is None


def test_a_million_requests_stay_small() -> None:
    """Sixteen bytes a request, not an object each."""
    columns = array("q", range(10**5)), array("I", bytes(4 * 10**5)), array("I", bytes(4 * 10**5))
    schedule = Schedule(*columns, duration=1, law=Law.of(columns[0], 1, "x"))
    held = (schedule.times_ns, schedule.prompt_tokens, schedule.output_tokens)
    assert sum(column.itemsize * len(column) for column in held) == 16 * 10**5
