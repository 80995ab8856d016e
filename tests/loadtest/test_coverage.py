"""What statistics over runs promise, and statistics over requests break: simulated on a server that stalls."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy", reason="the simulation needs it: pip install numpy")

from . import stall_case

EXPERIMENTS = 400


@pytest.fixture(scope="module")
def held() -> stall_case.Held:
    """400 experiments of 6 pairs of runs, the fewest that get an interval."""
    return stall_case.held(20261121, EXPERIMENTS, 6)


def test_intervals_over_runs_hold_the_effect(held: stall_case.Held) -> None:
    """The nominal 95 % interval holds the true effect of shorter stalls on p99 in at least 93 of 100 experiments."""
    assert held.cover >= 0.93
    assert held.cover_unpaired >= 0.93


def test_equal_arms_seldom_differ(held: stall_case.Held) -> None:
    """A/A: at most 7 of 100 experiments exclude no difference, and some do: the interval is not just wide."""
    assert 0.01 <= held.alarms <= 0.07
    assert 0.01 <= held.alarms_unpaired <= 0.07


def test_this_is_the_case_that_requests_get_wrong(held: stall_case.Held) -> None:
    """A bootstrap over requests holds the true p99 some 62 times in 100, and finds a third of equal arms different."""
    assert 0.55 <= held.cover_requests <= 0.70
    assert 0.26 <= held.alarms_requests <= 0.42


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("pairs", "experiments"), [(6, 6000), (8, 1200), (12, 120)])
def test_the_guarantees_at_full_size(pairs: int, experiments: int) -> None:
    """The same with other seeds and more experiments, also with more pairs, whose sign flips take time."""
    found = stall_case.held(pairs, experiments, pairs)
    assert found.cover >= 0.93 and found.cover_unpaired >= 0.93
    assert found.alarms <= 0.07 and found.alarms_unpaired <= 0.07
