"""Intervals of shares: known values, coverage, misses that come together, and where a share crosses its target."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.loadtest.proportions import (
    RunWindow,
    design_effect,
    fewest,
    interval,
    kept_up,
    wilson,
)
from tailwatch.loadtest.trial import Probe, pooled

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("good", "n", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (990, 1000, 0.9817, 0.9946)],
)
def test_known_intervals(good: int, n: int, low: float, high: float) -> None:
    """Wilson's interval at 95 %, as published tables have it."""
    assert wilson(good, n) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0.1, 5))
def test_an_interval_holds_its_share(good: int, missed: int, z: float) -> None:
    """Within [0, 1], with the share inside, wider for more certainty; (0, 1) for nothing."""
    n = good + missed
    low, high = wilson(good, n, z)
    assert 0 <= low <= high <= 1
    if n:
        assert low - 1e-12 <= good / n <= high + 1e-12
        assert wilson(good, n, z + 1)[0] <= low + 1e-12 and wilson(good, n, z + 1)[1] >= high - 1e-12
    else:
        assert (low, high) == (0, 1)


@pytest.mark.parametrize(("target", "n"), [(0.9, 35), (0.95, 73), (0.99, 381), (0.999, 3838)])
def test_the_fewest_requests_that_can_show_it(target: float, n: int) -> None:
    """Without a miss that many show the target, one fewer do not."""
    assert fewest(target) == n
    assert wilson(n, n)[0] >= target > wilson(n - 1, n - 1)[0]


def windows_of(missed: np.ndarray, length: int) -> list[RunWindow]:
    """A sequence of requests, cut."""
    cut = missed.reshape(-1, length).sum(axis=1)
    return [RunWindow(length, length, length - int(count), length) for count in cut]


def test_independent_misses_count_each() -> None:
    """Coin tosses have an effect near 1: too large rather than too small, it is the largest of several."""
    rng = np.random.default_rng(1)
    assert design_effect(windows_of(rng.random(100_000) < 0.02, 100)) < 3


@pytest.mark.parametrize("together", [10, 100, 1000])
def test_misses_that_come_together_count_as_one(together: int) -> None:
    """Stalls that spoil so many requests each are worth one, within a factor of two either way."""
    rng = np.random.default_rng(together)
    missed = np.repeat(rng.random(1_000_000 // together) < 0.02, together)
    assert together / 2 < design_effect(windows_of(missed, 50)) < 3 * together


@pytest.mark.parametrize(
    "windows", [[], [RunWindow(9, 9, 9, 9)] * 20, [RunWindow(9, 9, 0, 0)] * 20, [RunWindow(9, 9, 4, 9)]]
)
def test_nothing_to_see_is_no_effect(windows: list[RunWindow]) -> None:
    """Without windows, without a miss, with nothing else, or with too few windows: 1."""
    assert design_effect(windows) == 1.0


@pytest.mark.parametrize(("every", "length", "seconds"), [(5, 0.18, 60), (10, 1.0, 60), (60, 1.0, 60), (5, 2.0, 120)])
def test_the_interval_of_one_run_covers(every: float, length: float, seconds: int) -> None:
    """Stalls that spoil all requests in them: at least 93 % of 300 runs hold the truth, where counting requests as
    independent holds it in less than six of ten."""
    rng = np.random.default_rng(20261122)
    truth, inside, naive = math.exp(-length / every), 0, 0
    for _ in range(300):
        at = rng.uniform(0, seconds, rng.poisson(40 * seconds))
        stalls = np.cumsum(rng.exponential(every, int(9 * seconds / every) + 50)) - 50 * length
        last = np.searchsorted(stalls, at) - 1
        missed = at - np.where(last < 0, -np.inf, stalls[last]) < length
        planned, bad = (np.bincount(t.astype(int), minlength=seconds) for t in (at, at[missed]))
        counts = zip(planned, bad, strict=True)
        found = interval([RunWindow(int(n), int(n), int(n - m), int(n)) for n, m in counts])
        assert found is not None
        inside += found[0] <= truth <= found[1]
        low, high = wilson(len(at) - int(missed.sum()), len(at))
        naive += low <= truth <= high
    assert inside >= 0.93 * 300 and naive < 0.6 * 300


def test_a_queue_that_grows_is_not_kept_up_with() -> None:
    """Nine of ten completed in each window: 0.9, and surely below 1; all completed: 1."""
    share, low, high = kept_up([RunWindow(100, 100, 100, 90)] * 20)
    assert (share, low, high) == pytest.approx((0.9, 0.9, 0.9))
    assert kept_up([RunWindow(100, 100, 100, 99), RunWindow(100, 100, 100, 101)] * 10)[0] == 1.0
    assert kept_up([]) == (0.0, 0.0, 1.0)


def test_probes_of_a_rate_add_up() -> None:
    """Counts and times are added, windows follow one another; rates are per second of both."""
    one = Probe(5.0, 10.0, 50, 49, 40, 48, {"ttft": 41}, (RunWindow(50, 49, 40, 48),))
    two = Probe(5.0, 30.0, 150, 150, 150, 150, {"ttft": 150, "tpot": 150}, (RunWindow(150, 150, 150, 150),))
    both = pooled([one, two])
    assert (both.judged, both.good, both.kept, len(both.windows)) == (199, 190, {"tpot": 150, "ttft": 191}, 2)
    assert (both.throughput, both.goodput) == (198 / 40, 190 / 40)
    assert Probe.from_dict(both.as_dict()) == both
    assert Probe(1.0, 0.0, 0, 0, 0, 0).attainment is None
