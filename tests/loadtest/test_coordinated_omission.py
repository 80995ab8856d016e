"""The expected-interval correction: what HdrHistogram makes of the same values, and what doing it twice makes of them.

One second's standstill in ten, 5 ms otherwise, 1000 requests/s.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import OptionError
from tailwatch.loadtest.coordinated_omission import Corrected, corrected, omitted

pytestmark = pytest.mark.integration

FAST_MS, STALL_MS = 5.0, 1000.0


def closed_loop_ms(connections: int) -> list[float]:
    """Ten seconds of it: nine of them fast; each connection meets the stall once."""
    return [FAST_MS] * 9000 + [STALL_MS + FAST_MS] * connections


def planned_ms() -> list[float]:
    """The same second by second from the planned start: a thousand requests wait their share of the stall."""
    return [FAST_MS] * 9000 + [FAST_MS + wait for wait in range(1, 1001)]


def hdr(value_ms: float) -> float:
    """As a histogram of microseconds with 3 significant digits reports it: the largest value of its bucket."""
    us = round(value_ms * 1000)
    step = 1 << max(0, us.bit_length() - 11)
    return (us - us % step + step - 1) / 1000


def percentiles(found: Corrected, *percents: float) -> list[float]:
    return [hdr(found.p(percent)) for percent in percents]


def test_per_connection_it_gives_the_truth() -> None:
    """Five connections, each expected every 5 ms: 10 005 values, p95 505.09, p99 905.22, p99.9 995.33."""
    found = corrected(closed_loop_ms(5), 5.0)
    assert (len(found.values), found.added) == (10_005, 1000)
    assert percentiles(found, 95, 99, 99.9) == pytest.approx([505.09, 905.22, 995.33], abs=0.01)


def test_without_it_the_stall_is_nearly_gone() -> None:
    """The same data as measured: p99 is 5 ms up to 90 connections and 1005 ms from 91."""
    for connections, p99 in ((5, 5.0), (90, 5.0), (91, 1005.0), (200, 1005.0)):
        values = sorted(closed_loop_ms(connections))
        assert values[math.ceil(len(values) * 0.99) - 1] == p99


def test_the_interval_of_all_connections_is_the_wrong_one() -> None:
    """With 1 ms, the rate of all five together: 50 025 values and a median of 3 ms, which no request waited."""
    found = corrected(closed_loop_ms(5), 1.0)
    assert len(found.values) == 50_025
    assert found.p(50) == 3.0


def test_correcting_what_counts_from_the_plan_counts_twice() -> None:
    """550 500 values, median 264 ms for a true 5, p90 674."""
    found = corrected(planned_ms(), 1.0)
    assert len(found.values) == 550_500
    assert percentiles(found, 50, 90) == pytest.approx([264, 674], abs=0.5)


def test_the_guide_has_what_the_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The number of the double correction in docs/load_testing.md is that of the code beside it, for a true 5 ms."""
    text = (Path(__file__).parents[2] / "docs" / "load_testing.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "corrected(" in block)
    names: dict[str, list[float]] = {}
    exec(code, names)
    printed = capsys.readouterr().out.strip()
    assert printed == "264 ms" and f"it reads {printed}" in code
    assert sorted(names["planned"])[len(names["planned"]) // 2] == 0.005 and "the median is 5 ms" in code
    assert names["planned"] == pytest.approx([value / 1000 for value in planned_ms()])


def test_twice_is_refused() -> None:
    """What was corrected is not corrected again."""
    once = corrected([0.005, 1.005], 0.005)
    with pytest.raises(OptionError, match="corrected already"):
        corrected(once, 0.005)


@given(st.lists(st.floats(0, 100), max_size=50), st.floats(0.01, 100))
def test_what_is_added(latencies: list[float], interval: float) -> None:
    """All that was measured stays; added are values of at least nearly an interval, below the largest; in order."""
    found = corrected(latencies, interval)
    assert len(found.values) == len(latencies) + found.added
    assert found.added == sum(omitted(latency, interval) for latency in latencies)
    assert list(found.values) == sorted(found.values)
    if latencies:
        assert found.values[-1] == max(latencies) == found.p(100)
    else:
        assert math.isnan(found.p(50))


@pytest.mark.parametrize("interval", [0.0, -1.0, math.nan, math.inf])
def test_an_interval_is_above_zero(interval: float) -> None:
    """Anything else is refused."""
    with pytest.raises(OptionError, match="interval"):
        corrected([1.0], interval)


@pytest.mark.parametrize("latency", [-1.0, math.nan, math.inf])
def test_a_latency_is_a_time(latency: float) -> None:
    """Anything else is refused."""
    with pytest.raises(OptionError, match="latencies"):
        corrected([latency], 1.0)


def test_it_is_bounded() -> None:
    """An interval that would make more than 20 million values is refused before they are made."""
    with pytest.raises(OptionError, match="20 million"):
        corrected([1000.0], 1e-6)
