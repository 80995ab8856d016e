"""Measured in virtual time by the code that measures servers: a queue, a stall in a wide server and in a narrow one,
and timelines whose numbers are known from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tailwatch.loadtest.client_health import SelfWatch
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.recorder import Recorder
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Planned
from tailwatch.loadtest.validity import ClientHealth
from tailwatch.options.slo import SLO

from .. import replica

pytestmark = pytest.mark.integration

BASE = 10**15  # when the run began, ns


def measured(
    planned: Sequence[float],
    ends: Sequence[float],
    *,
    sent: Sequence[float] | None = None,
    slo: str = "e2e<=200ms",
    duration: float = 10.0,
) -> Result:
    """The result of requests with these moments (seconds from the start; sent: as planned)."""
    bounds = SLO.parse(slo)
    recorder = Recorder(BASE, bounds, SelfWatch())
    for index, (plan, go, end) in enumerate(zip(planned, sent or planned, ends, strict=True)):
        exchange = Exchange(BASE + round(plan * 1e9))
        exchange.sent_ns, exchange.status, exchange.ending = BASE + round(go * 1e9), 200, Ending.FINISHED
        exchange.first_content_ns = exchange.last_content_ns = exchange.end_ns = BASE + round(end * 1e9)
        exchange.first_byte_ns = exchange.first_chunk_ns = exchange.end_ns
        exchange.messages = exchange.tokens = 1
        recorder.note(exchange, Planned(plan, 0, 0, index))
    outcomes = recorder.finish(ClientHealth())
    goodput = goodput_of(
        outcomes,
        bounds,
        duration=duration,
        throughput=recorder.throughput(duration),
        tokens=0.0,
        broken=recorder.broken,
    )
    return Result(
        "", duration, goodput, slo=bounds, outcomes=outcomes, latencies=recorder.latencies, requests=recorder.requests
    )


def ms(result: Result, *percents: float, metric: str = "ttft") -> list[float | None]:
    """Exact percentiles, milliseconds."""
    found = (result.percentile(metric, percent) for percent in percents)
    return [None if value is None else round(value * 1e3, 3) for value in found]


# ---- first come first served: 500/s, 20 s, 200 ms; one generator, the loads in this order ----


@pytest.fixture(scope="module")
def experiment() -> list[tuple[Any, Any]]:
    return replica.experiment()


@pytest.mark.parametrize("row", range(len(replica.LOADS)), ids=[f"{load}/s" for load in replica.LOADS])
def test_the_published_rows(experiment: list[tuple[Any, Any]], row: int) -> None:
    """Offered rate, goodput and percentiles are the published ones; goodput is of what was planned."""
    planned, ends = experiment[row]
    result = measured(planned.tolist(), ends.tolist(), duration=20.0)
    throughput, goodput, *percentiles = replica.PUBLISHED[row]
    assert (round(result.offered), round(result.goodput.rate)) == (throughput, goodput)
    assert result.goodput.good == int((ends - planned <= 0.2).sum())
    assert result.goodput.attainment == result.goodput.good / len(planned)
    # The published ones lie between two ranks, ours are of a request; rounded to whole milliseconds either way.
    assert ms(result, 50, 95, 99) == pytest.approx(percentiles, abs=0.5 + 0.004 * percentiles[-1])


# ---- one second in ten, 1000/s, 5 ms ----


def wide(planned: Sequence[float]) -> list[float]:
    """A server of any width that stands still from 9 s to 10 s."""
    return [max(at, 10.0 if at >= 9.0 else at) + 0.005 for at in planned]


def narrow(planned: Sequence[float], capacity: float) -> list[float]:
    """One that serves in order, so many a second, and stands still from 2 s to 3 s."""
    ends, free = [], 0.0
    for at in planned:
        free = max(at, free)
        free = 3.0 if 2.0 <= free < 3.0 else free
        ends.append(free + 0.005)
        free += 1 / capacity
    return ends


GRID = [k / 1000 for k in range(10_000)]


def test_a_second_in_ten() -> None:
    """From the planned start: p90 5, p95 505, p99 905, p99.9 995, at most 1005 ms; goodput misses what waited."""
    result = measured(GRID, wide(GRID))
    assert ms(result, 90, 95, 99, 99.9, 100) == [5, 505, 905, 995, 1005]
    assert ms(result, 95, 99, metric="e2e") == [505, 905]
    assert result.goodput.good == 9000 + 195
    assert result.ttft.p(99) == pytest.approx(0.905, rel=0.011)


@pytest.mark.parametrize(("capacity", "simulated"), [(1250, 985.8), (1500, 972.3), (2000, 955.5), (4000, 930.3)])
def test_a_second_in_ten_of_a_finite_server(capacity: int, simulated: float) -> None:
    """p99 = 1000 (1 - 0.1 (1 - rho)) + 5 ms: the queue that the stall leaves makes more requests wait."""
    p99 = ms(measured(GRID, narrow(GRID, capacity)), 99)[0]
    assert p99 == pytest.approx(1000 * (1 - 0.1 * (1 - 1000 / capacity)) + 5, abs=1.5)
    assert p99 == pytest.approx(simulated, abs=1)


@pytest.mark.parametrize(("connections", "p99"), [(5, 5), (90, 5), (91, 1005), (200, 1005)])
def test_naively_it_hangs_on_the_connections(connections: int, p99: int) -> None:
    """A closed loop that sends 1000/s while the server answers: each connection meets the stall once, and p99 is 5 ms
    up to 90 connections and 1005 ms from 91. What it never sent is not there to be seen."""
    sent = [k / 1000 for k in range(9000)] + [9.0] * connections
    ends = [at + 0.005 for at in sent[:9000]] + [10.005] * connections
    assert ms(measured(sent, ends), 99) == [p99]


def test_the_same_run_seen_both_ways() -> None:
    """Five connections that keep the plan's requests waiting: from the plan p99 is 905 ms, from the send 5."""
    ends, sent = wide(GRID), list(GRID)
    for k in range(9005, 10_000):  # the first five occupy the connections; the rest goes out when these are free
        sent[k] = ends[k] - 0.005
    result = measured(GRID, ends, sent=sent)
    assert ms(result, 95, 99) == [505, 905]
    assert ms(result, 95, 99, metric="ttft_naive") == [5, 5]
    assert ms(result, 99, 100, metric="send_lag") == [895, 995]


# ---- timelines ----


def test_four_requests() -> None:
    """10 ms each, but for a pause that the third meets after 200 ms and the fourth at its start: 10, 10, 810, 1010.

    p99 is 1010, the mean 460 ms."""
    planned, pause = [0.0, 0.25, 0.7, 0.5], (0.5, 1.5)
    ends = [(pause[1] if pause[0] <= at < pause[1] else at) + 0.01 for at in planned]
    result = measured(planned, ends)
    assert [round((end - at) * 1e3) for at, end in zip(planned, ends, strict=True)] == [10, 10, 810, 1010]
    assert ms(result, 50, 75, 99) == [10, 810, 1010]
    assert result.ttft.sum / result.ttft.count == pytest.approx(0.46)


@pytest.mark.parametrize(("rate", "p99"), [(10, 920), (25, 980), (40, 995), (49, 999.592)])
def test_a_pause_every_hundred_requests(rate: int, p99: float) -> None:
    """One server of 10 ms that pauses a second at every hundredth: below its 50/s p99 is near a second; from the sends
    of a closed loop it is 10 ms, and p99.1 shows all of it."""
    planned = [k / rate for k in range(1000)]
    ends, free = [], 0.0
    for k, at in enumerate(planned):
        free = max(at, free) + (1.01 if k % 100 == 0 else 0.01)
        ends.append(free)
    assert ms(measured(planned, ends), 99) == pytest.approx([p99], abs=0.01)
    closed = [end - (1.01 if k % 100 == 0 else 0.01) for k, end in enumerate(ends)]
    assert ms(measured(closed, ends), 99, 99.1) == [10, 1010]
