"""What the demo computes from what its client saw."""

from __future__ import annotations

from typing import Any

import pytest

from tailwatch.demo import numbers
from tailwatch.options.slo import SLO

BOUNDS = SLO.parse("ttft<=500ms,tpot<=40ms,itl<=100ms,e2e<=2s@99%")


def exchange(**changed: Any) -> dict[str, Any]:
    """A request that was answered well, with some of it changed."""
    good = {
        "planned": 0.0,
        "send_lag": 0.001,
        "ttft": 0.02,
        "e2e": 0.05,
        "gaps": [0.01] * 3,
        "wanted": 4,
        "error": None,
    }
    return good | changed


def result(exchanges: list[dict[str, Any]]) -> dict[str, Any]:
    """What the client process hands over."""
    return {"exchanges": exchanges, "loop_lag_max": 0.002, "connections": 3, "cpu_seconds": 0.1}


@pytest.mark.parametrize(("percent", "expected"), [(50, 50.0), (90, 90.0), (99, 99.0), (100, 100.0), (0, 1.0)])
def test_percentiles_are_nearest_rank(percent: float, expected: float) -> None:
    """Of 1 to 100 the p-th percentile is p."""
    assert numbers.percentile([float(i) for i in range(1, 101)], percent) == expected


def test_nothing_has_no_percentile() -> None:
    """No samples give None, not zero."""
    assert numbers.percentile([], 99) is None
    assert numbers.distribution([])["p50"] is None


def test_p999_needs_enough_samples() -> None:
    """A percentile that would rest on a handful of samples is left out."""
    few = numbers.distribution([1.0] * (numbers.FEWEST_FOR_P999 - 1))
    enough = numbers.distribution([1.0] * numbers.FEWEST_FOR_P999)

    assert few["p99.9"] is None and few["max"] == 1.0
    assert enough["p99.9"] == 1.0


@pytest.mark.parametrize(
    "changed",
    [
        {"ttft": 0.6},
        {"gaps": [0.05, 0.05]},
        {"gaps": [0.001] * 20 + [0.101]},
        {"e2e": 2.1},
        {"e2e": None, "error": "unfinished"},
        {"error": "503", "ttft": None, "e2e": None, "gaps": []},
    ],
)
def test_each_broken_bound_is_a_miss(changed: dict[str, Any]) -> None:
    """TTFT, TPOT, the worst gap, E2E, an error or no end: each alone makes a request a miss."""
    assert numbers.is_good(exchange(), BOUNDS)
    assert not numbers.is_good(exchange(**changed), BOUNDS)


def test_goodput_counts_over_the_planned_window_and_all_requests() -> None:
    """Errors and unfinished requests stay in the denominator; they are counted apart."""
    exchanges = [exchange(), exchange(), exchange(error="503", e2e=None), exchange(error="unfinished", e2e=None)]

    found = numbers.summarize(result(exchanges), BOUNDS, 2.0)

    assert (found["goodput"], found["throughput"], found["attainment"]) == (1.0, 1.0, 0.5)
    assert (found["unfinished"], found["errors"], found["finished"]) == (1, {"503": 1}, 2)
    assert found["itl"]["count"] == 12


def test_capacity_leaves_out_warm_up_and_drain() -> None:
    """Ten requests of four tokens a second, asked for four tokens: 10 requests a second, whatever happens before
    the warm-up is over and after the last request was sent."""
    steady = [exchange(planned=i / 10, e2e=1.0) for i in range(101)]
    slow_start = [exchange(planned=0.0, e2e=0.3, gaps=[0.01] * 99)]
    drain = [exchange(planned=10.0, e2e=5.0, gaps=[0.01] * 99)]

    found = numbers.capacity(result(slow_start + steady + drain), 4.0)

    assert found == pytest.approx(10.0, rel=0.02)


def test_capacity_of_a_server_that_finished_nothing_is_zero() -> None:
    """No division by nothing: the caller says what is wrong."""
    assert numbers.capacity(result([exchange(e2e=None, error="unfinished")]), 4.0) == 0.0
    assert numbers.capacity(result([]), 4.0) == 0.0
