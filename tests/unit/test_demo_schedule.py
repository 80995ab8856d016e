"""The planned load of the demo."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tailwatch.demo import schedule


def test_the_same_arguments_give_the_same_plan() -> None:
    """Seed, rate and length decide every request, so both arms get the same load."""
    assert schedule.plan(40.0, 20.0, 7) == schedule.plan(40.0, 20.0, 7)


def test_the_digest_tells_plans_apart() -> None:
    """Another seed gives another plan and another digest."""
    first, second = schedule.plan(40.0, 20.0, 7), schedule.plan(40.0, 20.0, 8)

    assert schedule.digest(first) == schedule.digest(list(first))
    assert schedule.digest(first) != schedule.digest(second)


def test_the_mean_rate_is_the_rate_asked_for() -> None:
    """Over many periods the number of arrivals is rate times length, within five standard deviations."""
    found = len(schedule.plan(50.0, 200.0, 3))

    assert abs(found - 10_000) < 5 * 100


def test_arrivals_are_ordered_and_inside_the_window() -> None:
    """No request is planned before the start, after the end, or out of order."""
    times = [request.at for request in schedule.plan(60.0, 13.0, 5)]

    assert min(times) >= 0
    assert max(times) <= 13.0
    assert all(a <= b for a, b in pairwise(times))


def test_the_load_ramps_and_drains() -> None:
    """The plateau of a period has more than four times the arrivals per second of its drain."""
    times = [request.at % 10.0 for request in schedule.plan(100.0, 200.0, 11)]
    plateau = sum(3.0 <= at < 8.0 for at in times) / 5.0
    drain = sum(8.5 <= at < 9.5 for at in times) / 1.0

    assert plateau > 4 * drain > 0


@pytest.mark.parametrize("seconds", [4.0, 6.0, 45.0])
def test_a_window_holds_whole_periods(seconds: float) -> None:
    """The last arrivals of any window are those of a drain, not of a plateau cut off."""
    period = seconds / max(1, round(seconds / schedule.PERIOD))
    times = [request.at for request in schedule.plan(2000 / seconds, seconds, 2)]
    last, plateau = seconds - 0.15 * period, seconds - 0.5 * period

    ending = sum(last <= at for at in times) / (0.15 * period)
    middle = sum(plateau <= at < plateau + 0.25 * period for at in times) / (0.25 * period)
    assert ending < middle / 2


def test_requests_stay_within_their_bounds() -> None:
    """Lengths are drawn from the range that the module documents, and both routes are asked."""
    planned = schedule.closed(500, 1)

    assert all(schedule.FEWEST_TOKENS <= request.tokens <= schedule.MOST_TOKENS for request in planned)
    assert {request.chat for request in planned} == {True, False}
    assert schedule.mean_tokens(planned) == pytest.approx(sum(r.tokens for r in planned) / 500)
