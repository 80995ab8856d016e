"""What the demo's table gets of one arm's client."""

from __future__ import annotations

import pytest

from tailwatch.demo import summary
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.outcomes import CODE, Outcomes
from tailwatch.loadtest.results import Result


def result(gaps: int = 0, **outcomes: int) -> Result:
    """A run of 2 s with so many requests of each outcome, each whole answer after 50 ms, and so many gaps of 10 ms."""
    counted = Outcomes({name: outcomes.get(name, 0) for name in CODE})
    latencies = Latencies()
    for _ in range(counted.good + counted.by_reason["late"]):
        latencies.e2e.record(50_000_000)
    for _ in range(gaps):
        latencies.itl.record(10_000_000)
    goodput = goodput_of(counted, None, duration=2.0, throughput=0.0, tokens=0.0, broken={})
    return Result("", 2.0, goodput, outcomes=counted, latencies=latencies)


def test_goodput_counts_over_the_planned_window_and_all_requests() -> None:
    """Errors and unfinished requests stay in the denominator; they are counted apart."""
    found = summary.summarize(result(good=2, late=4, abandoned=1, error=1, **{"5xx": 2}))

    assert (found["goodput"], found["throughput"], found["attainment"]) == (1.0, 3.0, 0.2)
    assert (found["planned"], found["finished"], found["unfinished"]) == (10, 6, 1)
    assert found["errors"] == {"error": 1, "5xx": 2}


def test_p999_needs_enough_samples() -> None:
    """A percentile that would rest on a handful of samples is left out; of no samples all are."""
    few = summary.distribution(result(gaps=summary.FEWEST_FOR_P999 - 1), "itl")
    enough = summary.distribution(result(gaps=summary.FEWEST_FOR_P999), "itl")

    assert few["p99.9"] is None and few["max"] == 0.01
    assert enough["p99.9"] == pytest.approx(0.01, rel=0.011) and enough["count"] == summary.FEWEST_FOR_P999
    assert summary.distribution(result(), "ttft") == dict.fromkeys(("p50", "p90", "p99", "p99.9", "max")) | {"count": 0}
