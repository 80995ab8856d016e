"""What a search reads off a run of the load tester."""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailwatch import cli
from tailwatch.loadtest import search
from tailwatch.loadtest.client_health import SelfWatch
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.recorder import Recorder
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Planned, Schedule
from tailwatch.loadtest.trial import ClosedLoop, probe_of, prober
from tailwatch.loadtest.validity import ClientHealth
from tailwatch.options.slo import SLO

from . import made_runs

pytestmark = pytest.mark.integration

BASE = 10**15  # when the run began, ns
SLO_TEXT = "ttft<=200ms,tpot<=50ms@99%"


def answered(rows: Sequence[tuple[float, float, int]]) -> Result:
    """A run of 10 s whose requests have these TTFT, gaps of two further tokens (seconds), and status."""
    slo = SLO.parse(SLO_TEXT)
    recorder = Recorder(BASE, slo, SelfWatch())
    for index, (ttft, gap, status) in enumerate(rows):
        planned = BASE + round(10e9 * index / len(rows))
        exchange = Exchange(planned)
        exchange.sent_ns, exchange.status, exchange.ending = planned, status, Ending.FINISHED
        exchange.end_ns = planned + round((ttft + 2 * gap) * 1e9)
        exchange.first_byte_ns = exchange.first_chunk_ns = exchange.end_ns
        if status == 200:
            exchange.first_content_ns, exchange.last_content_ns = planned + round(ttft * 1e9), exchange.end_ns
            exchange.messages = exchange.tokens = 3
            exchange.largest_gap_ns = round(gap * 1e9)
            exchange.choices = ((exchange.first_content_ns, exchange.last_content_ns, 3),)
        recorder.note(exchange, Planned(index / len(rows), 0, 0, index))
    outcomes = recorder.finish(ClientHealth())
    goodput = goodput_of(outcomes, slo, duration=10.0, throughput=1.0, tokens=0.0, broken=recorder.broken)
    return Result(
        "", 10.0, goodput, slo=slo, outcomes=outcomes, latencies=recorder.latencies, requests=recorder.requests
    )


def closed_loop(workers: int, width: int, length: float, seconds: float, seed: int | None = None) -> Result:
    """So many workers for so long at a server that answers `width` at a time, each in `length` seconds (seeded: an
    exponential one's mean); what is in flight at the end is waited for."""
    rng = random.Random(seed)
    recorder, slots, ready = Recorder(BASE, None, SelfWatch()), [0.0] * width, [0.0] * workers
    while ready:
        at = heapq.heappop(ready)
        end = max(at, slots[0]) + (length if seed is None else rng.expovariate(1 / length))
        heapq.heapreplace(slots, end)
        exchange = Exchange(BASE + round(at * 1e9))
        exchange.sent_ns, exchange.status, exchange.ending = exchange.planned_ns, 200, Ending.FINISHED
        exchange.end_ns = BASE + round(end * 1e9)
        recorder.note(exchange, Planned(0.0, 0, 0, 0))
        if end < seconds:
            heapq.heappush(ready, end)
    outcomes = recorder.finish(ClientHealth())
    goodput = goodput_of(
        outcomes, None, duration=seconds, throughput=recorder.throughput(seconds), tokens=0.0, broken={}
    )
    return Result("", seconds, goodput, outcomes=outcomes, closed=True, requests=recorder.requests)


@pytest.mark.parametrize(("workers", "width", "length"), [(16, 16, 10.0), (16, 8, 10.0), (4, 4, 0.02), (7, 3, 4.0)])
def test_the_ceiling_of_long_requests(workers: int, width: int, length: float) -> None:
    """A closed loop's rate is width / length also where a request takes longer than the run was to take: filling up
    and the wait for the last count for nothing."""
    loop, asked = ClosedLoop(3.0), list[float]()

    def run(seconds: float) -> Result:
        asked.append(seconds)
        return closed_loop(workers, width, length, seconds)

    assert loop.rate(workers, run) == pytest.approx(width / length, rel=0.02)
    assert len(asked) <= 2 and asked[-1] >= min(60.0, 3 * length)
    again = asked.copy()
    assert loop.rate(workers, run) == pytest.approx(width / length, rel=0.02)
    assert asked[len(again) :] == [again[-1]], "the next one is long enough at once"


@pytest.mark.parametrize("seed", range(5))
def test_the_ceiling_of_uneven_requests(seed: int) -> None:
    """Lengths that scatter: the same, within what so few requests can show."""
    rate = ClosedLoop(3.0).rate(200, lambda seconds: closed_loop(200, 100, 4.0, seconds, seed))
    assert rate == pytest.approx(100 / 4.0, rel=0.08)


def test_a_server_that_answers_no_request_has_no_ceiling() -> None:
    """No completion, no rate, and no second run for ever."""
    assert ClosedLoop(3.0).rate(10, lambda _: made_runs.empty()) == 0.0


def test_what_failed_is_counted_apart_from_what_was_late() -> None:
    """Refusals keep no bound and exceed none; an error that took long is a failure, not a late first token."""
    rows = [(0.1, 0.01, 200)] * 70 + [(0.3, 0.01, 200)] * 10 + [(0.1, 0.06, 200)] * 5 + [(0.3, 0.0, 503)] * 15
    probe = probe_of(answered(rows), 10.0)
    assert (probe.judged, probe.good, probe.failed) == (100, 70, 15)
    assert probe.kept == {"ttft": 75, "tpot": 80}


@pytest.mark.parametrize("result", [made_runs.stalled(cap=5), made_runs.paused()], ids=["capped", "invalid"])
def test_a_run_that_is_not_valid_decides_nothing(result: Result) -> None:
    """Neither one whose cap bound, which did not offer the rate, nor one whose client was away."""
    probe = probe_of(result, 40.0)
    assert probe.invalid == "; ".join(result.validity.reasons)
    assert probe_of(made_runs.stalled(), 40.0).invalid == ""


def test_a_search_does_not_stand_on_capped_runs() -> None:
    """Where the cap binds above a rate, the knee is unresolved, with the cap as the reason and what held below it."""
    schedule = Schedule.of([(0.0, 0, 0)], duration=1.0, target="", seed=1)
    rates: list[float] = []

    def planned(rate: float, seconds: float, number: int) -> Schedule:
        rates.append(rate)
        return schedule

    def measure(_: Schedule) -> Result:
        good = answered([(0.1, 0.01, 200)] * 1000)
        if rates[-1] > 80:
            good.validity = made_runs.stalled(cap=5).validity
        return good

    ceiling = search.ClosedLoopCeiling(100.0, 8, ())
    knee = search.find(prober(planned, measure, lambda _: None), ceiling)
    assert not knee.resolved and "cap of 5 requests" in knee.reason
    assert {row.verdict for row in knee.rows() if row.rate > 80} == {"invalid"}


def erlang_knee(slots: int, service: float, attainment: float) -> float:
    """Requests per second of which a loss system with so many slots refuses just what the attainment leaves."""

    def refused(rate: float) -> float:
        share = 1.0
        for slot in range(1, slots + 1):
            share = rate * service * share / (slot + rate * service * share)
        return share

    low, high = 0.0, slots / service
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if refused(middle) <= 1 - attainment else (low, middle)
    return low


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("slots", "service"), [(4, 0.03)])
def test_the_knee_of_a_real_server(
    slots: int, service: float, fault_server: Callable[..., Any], tmp_path: Path
) -> None:
    """By the command, over sockets, two seeds each: what it promises holds the truth of Erlang's loss formula."""
    truth, found = erlang_knee(slots, service, 0.9), []
    for seed in (1, 2):
        server, file = fault_server("--slots", str(slots), "--service", str(service)), tmp_path / f"{seed}.json"
        words = ["--find", "goodput", "--slo", "e2e<=5s@90%", "--budget", "25", "--probe-seconds", "2", "--quiet"]
        words += ["--model", "m", "--seed", str(seed), "--json", str(file)]
        assert cli.main(["bench", server.url(tokens=1, first=0), *words]) in (0, 1)
        knee = json.loads(file.read_text())["knee"]
        found.append((knee["low"], knee["rate"], knee["high"], knee["resolved"], knee["reason"]))
    print(f"truth {truth:.4g}/s: {found}")
    assert all((low or 0) <= truth <= (high or math.inf) for low, _, high, *_ in found), (truth, found)
