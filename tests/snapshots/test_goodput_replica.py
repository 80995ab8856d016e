"""Goodput against truth known from elsewhere: a published queueing experiment, and windows against an oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import _hot, snapshots
from tailwatch.options.slo import SLO

from .. import replica

SECOND = 1_000_000_000
BOUND_MS = 200.0


def make_core(slo: str) -> _hot.Core:
    return _hot.Core("api", 1, SLO.parse(slo).as_core(), 0, lambda scope: "/", lambda awaitable, stream: awaitable)


@pytest.fixture(scope="module")
def experiment() -> list[tuple[Any, Any]]:
    """Arrivals and completions in ms."""
    return [(1e3 * planned, 1e3 * ends) for planned, ends in replica.experiment()]


@pytest.mark.parametrize("row", range(len(replica.LOADS)), ids=[f"{load}/s" for load in replica.LOADS])
def test_the_published_rows_come_out_exactly(experiment: list[tuple[Any, Any]], row: int) -> None:
    """Fed through streams in virtual time, throughput and goodput are the published ones, percentiles within 1.1 %."""
    arrivals, finishes = experiment[row]
    latencies = finishes - arrivals
    core, base = make_core("e2e<=200ms"), 1000 * SECOND
    for arrival, finish in zip(arrivals, finishes, strict=True):
        start, end = base + round(arrival * 1e6), base + round(finish * 1e6)
        stream = core.stream("m", "r", start, "", "")
        stream.token(at=end)
        stream.close(at=end)
    seen = snapshots.take([core.address])
    total, good = sum(seen.requests.values()), seen.outcomes["good"]

    assert total == len(arrivals) == seen.e2e.count
    assert good == int((latencies <= BOUND_MS).sum())
    assert seen.outcomes["miss"] == seen.requests["late"] == total - good
    assert seen.attainment == good / total
    percentiles = [float(value) for value in np.percentile(latencies, (50, 95, 99))]
    assert tuple(round(value) for value in (total / 20, good / 20, *percentiles)) == replica.PUBLISHED[row]
    for percent in (50, 95, 99):
        exact = float(np.percentile(latencies, percent, method="inverted_cdf")) / 1e3
        assert seen.e2e.p(percent) == pytest.approx(exact, rel=0.011)
        assert seen.ttft.p(percent) == pytest.approx(exact, rel=0.011)
    assert seen.e2e.sum == pytest.approx(latencies.sum() / 1e3, abs=1e-9 * total)


# ---- windows ----

requests = st.lists(
    st.tuples(
        st.integers(0, 400),  # seconds before now at which it ended
        st.integers(0, SECOND - 1),  # and the part of a second
        st.sampled_from(["close", "abort", "fail", "timeout"]),
        st.integers(1, 300),  # first token, ms after arrival
        st.integers(1, 300),  # second token, ms after the first
        st.booleans(),  # whether any token came
    ),
    max_size=25,
)


def verdict(end: str, waited: int, gap: int) -> str:
    """The definition: bounds of 200 ms on the first token, 100 ms on the gap."""
    broken = waited > 200 or gap > 100
    if end == "close":
        return "miss" if broken else "good"
    if end == "abort":
        return "miss" if broken else "excluded"
    return "miss"


def steady_second(core: _hot.Core) -> tuple[int, Any]:
    """A snapshot, and the monotonic second it was taken in, known for certain."""
    while True:
        second = _hot.now() // SECOND
        taken = snapshots.take([core.address])
        if _hot.now() // SECOND == second:
            return second, taken


@given(requests, st.integers(1, 500))
def test_windows_against_an_oracle(ended: list[tuple[int, int, str, int, int, bool]], window: int) -> None:
    """Good, miss, excluded, finished and the shares per bound are those of the requests that ended in the window."""
    core, now = make_core("ttft<=200ms,itl<=100ms"), _hot.now() // SECOND
    done = []
    for back, part, end, ttft, gap, tokens in ended:
        at = (now - min(back, now - 1)) * SECOND + part if back else _hot.now()  # this machine may be young
        arrival = at - (ttft + gap) * 1_000_000
        stream = core.stream("m", "r", arrival, "", "")
        if tokens:
            stream.token(at=arrival + ttft * 1_000_000)
            stream.token(at=at)
        getattr(stream, end)(at=at)
        waited = ttft if tokens else ttft + gap  # without a token its end was the first that came
        kept_ttft = waited <= 200 and (tokens or end == "close")
        kept_itl = (gap <= 100) if tokens else end == "close"
        finished = end == "close"
        due, met = deadlines(ttft, gap) if tokens else (0, 0)
        outcome = verdict(end, waited, gap if tokens else 0)
        done.append((at // SECOND, outcome, finished, kept_ttft, kept_itl, due, met))

    second, seen = steady_second(core)
    inside = [one for one in done if second - one[0] < window and one[0] <= second]
    sums = seen.window(window)
    judged = [one for one in inside if one[1] != "excluded"]
    counts = {name: sum(one[1] == name for one in inside) for name in ("good", "miss", "excluded")}
    assert {"good": sums.good, "miss": sums.miss, "excluded": sums.excluded} == counts
    assert sums.finished == sum(one[2] for one in inside)
    assert sums.attainment == (counts["good"] / len(judged) if judged else None)
    assert sums.within["ttft"] == (sum(one[3] for one in judged) / len(judged) if judged else None)
    assert sums.within["itl"] == (sum(one[4] for one in judged) / len(judged) if judged else None)
    assert (sums.within["tpot"], sums.within["e2e"]) == (None, None)
    due = sum(one[5] for one in inside)
    assert sums.fluidity == (sum(one[6] for one in inside) / due if due else None)
    oldest = max([second - one[0] + 1 for one in done], default=1)
    assert min(window, oldest) <= sums.seconds <= min(window, oldest + 1)
    assert seen.goodput(window) == counts["good"] / sums.seconds
    assert seen.throughput(window) == sums.finished / sums.seconds


def deadlines(ttft: int, gap: int) -> tuple[int, int]:
    """Token deadlines due and met: 200 ms for the first, 100 ms for the next, slack carried forward."""
    due, met, slack = 0, 0, 0
    for waited, bound, step in ((ttft, 200, 200), (gap, 100, 100)):
        over = waited - slack - bound
        if over <= 0:
            due, met, slack = due + 1, met + 1, -over
        else:
            due, slack = due + over // step + 1, 0
    return due, met


def test_a_request_that_ended_in_the_future_waits_for_its_window() -> None:
    """What is later than now by a clock of the caller's is in no window yet, and in the totals at once."""
    core = make_core("e2e<=1s")
    stream = core.stream("m", "r", _hot.now(), "", "")
    stream.close(at=_hot.now() + 100 * SECOND)
    seen = snapshots.take([core.address])
    assert seen.window("1m").finished == 0
    assert sum(seen.requests.values()) == 1


def test_a_wall_clock_leaves_the_windows_alone() -> None:
    """Times an hour ahead or more are taken as now and counted: goodput goes on, in this window and the next."""
    core = make_core("e2e<=1s")
    for times in range(1, 4):
        wall = 1_800_000_000 * SECOND
        stream = core.stream("m", "r", wall, "", "")
        stream.token(at=wall + SECOND)
        stream.close(at=wall + 9 * SECOND)
        seen = snapshots.take([core.address])
        assert seen.drops["out_of_order_stamp"] == 3 * times
        assert seen.window("1m").good == times
        assert seen.goodput("1m") > 0


def test_a_second_too_old_for_the_hour_is_dropped_and_counted() -> None:
    """A request that ended more than an hour before the newest of its slot enters no window."""
    core = make_core("e2e<=1s")
    for end in (3601, 1):
        core.stream("m", "r", end * SECOND, "", "").close(at=end * SECOND)
    seen = snapshots.take([core.address])
    assert sum(seen.requests.values()) == 2
    assert seen.drops["out_of_order_stamp"] == 1
