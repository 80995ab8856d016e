"""What a run of the load tester tells a search."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tailwatch.goodput import SLO
from tailwatch.load import search
from tailwatch.load.exchange import Ending, Exchange
from tailwatch.load.probing import probe_of, prober
from tailwatch.load.recorder import Recorder
from tailwatch.load.results import Client, Result, goodput_of
from tailwatch.load.schedule import Planned, Schedule
from tailwatch.load.selfwatch import SelfWatch

from . import made_runs

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
    outcomes = recorder.finish(Client())
    goodput = goodput_of(outcomes, slo, duration=10.0, throughput=1.0, tokens=0.0, broken=recorder.broken)
    return Result(
        "", 10.0, goodput, slo=slo, outcomes=outcomes, latencies=recorder.latencies, requests=recorder.requests
    )


def test_what_failed_is_counted_apart_from_what_was_late() -> None:
    """Refusals keep no bound and exceed none; an error that took long is a failure, not a late first token."""
    rows = [(0.1, 0.01, 200)] * 70 + [(0.3, 0.01, 200)] * 10 + [(0.1, 0.06, 200)] * 5 + [(0.3, 0.0, 503)] * 15
    probe = probe_of(answered(rows), 10.0)
    assert (probe.judged, probe.good, probe.failed) == (100, 70, 15)
    assert probe.kept == {"ttft": 75, "tpot": 80}


@pytest.mark.parametrize("result", [made_runs.stalled(cap=5), made_runs.paused()], ids=["capped", "invalid"])
def test_a_run_that_is_not_valid_says_nothing(result: Result) -> None:
    """Neither one whose cap bound, which did not offer the rate, nor one whose client was away."""
    probe = probe_of(result, 40.0)
    assert probe.invalid == "; ".join(result.validity.reasons)
    assert probe_of(made_runs.stalled(), 40.0).invalid == ""


def test_a_search_does_not_stand_on_capped_runs() -> None:
    """Where the cap binds above a rate, the knee is unresolved, with the cap as the reason and what held below it."""
    schedule = Schedule.of([(0.0, 0, 0)], duration=1.0, target="", seed=1)
    rates: list[float] = []

    def planned(rate: float, requests: int, number: int) -> Schedule:
        rates.append(rate)
        return schedule

    def measure(_: Schedule) -> Result:
        good = answered([(0.1, 0.01, 200)] * 1000)
        if rates[-1] > 80:
            good.validity = made_runs.stalled(cap=5).validity
        return good

    knee = search.find(prober(planned, measure, lambda _: None), 100.0, limits=search.Limits(first=1000, most=1000))
    assert not knee.resolved and "the cap of 5 requests in flight" in knee.reason
    assert knee.rate is not None and 75 < knee.rate <= 80
    assert {row.verdict for row in knee.rows() if row.rate > 80} == {"invalid"}
