"""The engine over a pool that is made up: when it sends, what it holds back, how it ends, and what it reports of
itself."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tailwatch.loadtest.client_health import PAUSE_NS, TICK_NS, SelfWatch, judge
from tailwatch.loadtest.engine import Job, LoadRun
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.outcomes import Outcomes
from tailwatch.loadtest.pacer import Pacer
from tailwatch.loadtest.requests import NEVER
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.validity import ClientHealth
from tailwatch.options.slo import SLO

pytestmark = pytest.mark.integration

MS = 1_000_000
Done = Callable[[Exchange], None]


class MadeUp:
    """Answers each request after `service` seconds (None: never) with one message; as many at once as are sent."""

    def __init__(self, service: float | None = 0.001) -> None:
        self.service = service
        self.in_flight = self.opened = self.retries = self.connections = 0
        self.requests: list[bytes] = []
        self.most = 0
        self.open: dict[Exchange, Done] = {}
        self.closed = False

    def send(self, exchange: Exchange, request: bytes, done: Done) -> None:
        assert not self.closed, "nothing is sent after the end"
        exchange.sent_ns = time.monotonic_ns()
        self.requests.append(request)
        self.open[exchange] = done
        self.most = max(self.most, len(self.open))
        if self.service is not None:
            asyncio.get_running_loop().call_later(self.service, self._answer, exchange)

    def close(self) -> None:
        self.closed = True
        for exchange in list(self.open):
            self._end(exchange, Ending.ABANDONED, 0)

    def _answer(self, exchange: Exchange) -> None:
        if exchange in self.open:
            now = time.monotonic_ns()
            exchange.first_byte_ns = exchange.first_chunk_ns = exchange.first_content_ns = now
            exchange.last_content_ns, exchange.messages, exchange.tokens = now, 1, 1
            self._end(exchange, Ending.FINISHED, 200)

    def _end(self, exchange: Exchange, ending: Ending, status: int) -> None:
        exchange.ending, exchange.status, exchange.end_ns = ending, status, time.monotonic_ns()
        self.open.pop(exchange)(exchange)


def plan(count: int, gap: float = 0.002, duration: float | None = None) -> Schedule:
    """So many requests, evenly."""
    return Schedule.of([(i * gap, 4, 4) for i in range(count)], duration=duration)


def go(job: Job, pool: MadeUp, meanwhile: Callable[[LoadRun], None] | None = None) -> tuple[Result, LoadRun]:
    """Runs it; meanwhile is called once the run goes on."""

    async def main() -> tuple[Result, LoadRun]:
        run = LoadRun(job, pool)
        if meanwhile is not None:
            asyncio.get_running_loop().call_soon(meanwhile, run)
        return await run.go(), run

    return asyncio.run(main())


def job(schedule: Schedule, **more: object) -> Job:
    """With the index as the bytes."""
    return Job(schedule, lambda planned: b"%d" % planned.index, **{"drain": 5.0, **more})  # type: ignore[arg-type]


def test_everything_planned_is_sent_in_order_and_not_before_its_time() -> None:
    """Each request goes out once, at or after its planned moment."""
    pool = MadeUp()
    result, _ = go(job(plan(100)), pool)
    assert pool.requests == [b"%d" % i for i in range(100)]
    assert result.outcomes.by_reason["good"] == result.outcomes.scheduled == 100
    assert result.requests is not None
    assert sorted(result.requests.planned) == list(plan(100).times_ns)
    rows = zip(result.requests.planned, result.requests.sent, strict=True)
    assert all(sent >= planned for planned, sent in rows)
    assert sum(result.series.scheduled) == sum(result.series.sent) == sum(result.series.finished) == 100
    assert result.schedule["digest"] == plan(100).digest and result.schedule["n"] == 100


def test_a_server_that_is_slow_does_not_slow_the_schedule() -> None:
    """Open loop: all 50 are in flight together when none is answered before the last is sent."""
    pool = MadeUp(service=1.0)
    result, _ = go(job(plan(50)), pool)
    assert pool.most == 50 == result.client.in_flight_max
    assert result.client.capped == 0


def test_the_cap_binds_and_is_called_out() -> None:
    """What waited for room keeps its planned time, and the run is `capped`, with the share."""
    pool = MadeUp(service=0.05)
    result, _ = go(job(plan(40), cap=4, slo=SLO.parse("ttft<=60ms")), pool)
    assert pool.most == 4
    assert result.validity.verdict == "capped" and not result.valid
    assert result.client.capped >= 10
    assert f"{result.client.capped / 40:.1%}" in result.validity.reasons[0]
    assert result.outcomes.scheduled == 40
    corrected, naive = result.percentile("ttft", 95), result.percentile("ttft_naive", 50)
    assert corrected is not None and naive is not None
    assert corrected > 0.3, "the last ones waited for nine rounds of 50 ms"
    assert naive < corrected / 2
    assert result.outcomes.by_reason["late"] > 0


def test_what_the_cap_never_let_go_is_a_miss() -> None:
    """The end of the drain leaves some unsent: never_sent, and those in flight abandoned."""
    pool = MadeUp(service=None)
    result, _ = go(job(plan(20), cap=5, drain=0.2), pool)
    assert result.outcomes.by_reason["never_sent"] == 15
    assert result.outcomes.by_reason["abandoned"] == 5
    assert result.goodput.attainment == 0.0 and result.goodput.counted == 20
    assert result.requests is not None
    assert sum(sent == NEVER for sent in result.requests.sent) == 15
    for metric in ("ttft", "e2e"):
        found = result.quantile(metric, 50)
        assert found is not None and found.censored and found.seconds >= 0.2, "the drain, at least"


def test_an_end_is_an_end() -> None:
    """A server that never answers holds a run for its drain and not longer."""
    started = time.monotonic()
    result, _ = go(job(plan(5), drain=0.3), MadeUp(service=None))
    assert result.outcomes.by_reason["abandoned"] == 5
    assert time.monotonic() - started < 30


def test_an_interrupt_reports_what_it_has() -> None:
    """What was planned for later is not counted; what was sent is waited for."""

    def meanwhile(run: LoadRun) -> None:
        if run.done >= 10:
            run.stop()
        else:
            asyncio.get_running_loop().call_later(0.002, meanwhile, run)

    result, _ = go(job(plan(10_000)), MadeUp(), meanwhile)
    assert result.validity.verdict in ("interrupted", "invalid")
    assert any("interrupted" in reason for reason in result.validity.reasons)
    assert 10 <= result.outcomes.scheduled < 10_000
    assert result.outcomes.by_reason["good"] >= 10
    assert 0 < result.duration < 20


def test_what_is_in_flight_is_shown_in_each_second() -> None:
    """Also in those in which nothing was sent or ended."""
    result, _ = go(job(plan(5), drain=2.2), MadeUp(service=None))
    assert result.series.in_flight[:3] == [5, 5, 5]
    assert sum(result.series.sent) == 5 and sum(result.series.finished) == 0


def test_a_second_interrupt_does_not_wait() -> None:
    """Those in flight are given up, and are misses."""

    def meanwhile(run: LoadRun) -> None:
        if run.sent >= 3:
            run.stop()
            run.stop()
        else:
            asyncio.get_running_loop().call_later(0.002, meanwhile, run)

    result, _ = go(job(plan(1000), drain=60.0), MadeUp(service=None), meanwhile)
    assert result.outcomes.by_reason["abandoned"] >= 3
    assert result.outcomes.good == 0


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    """Each answer makes room for the next request; by requests it ends with the last of them."""
    pool = MadeUp(service=0.01)
    result, _ = go(job(plan(60, gap=0.0), workers=5), pool)
    assert pool.most == 5 and len(pool.requests) == 60
    assert result.closed and result.outcomes.good == 60
    assert result.schedule["n"] == 60
    assert result.goodput.throughput > 0 and result.duration > 0.1


def test_a_closed_loop_ends_with_its_time() -> None:
    """No request is sent after it, and those in flight are waited for."""
    pool = MadeUp(service=0.01)
    schedule = Schedule.of([(0.0, 4, 4)] * 100_000, duration=0.3)
    result, _ = go(job(schedule, workers=3), pool)
    assert 3 <= result.outcomes.scheduled < 1000
    assert result.outcomes.good == result.outcomes.scheduled
    assert result.duration == 0.3


def test_a_client_that_stands_still_is_reported() -> None:
    """A sleep in the client's own loop: the schedule was not kept, the pause is there, its gaps are marked."""

    def stall(run: LoadRun) -> None:
        if run.sent >= 20:
            time.sleep(0.4)
        else:
            asyncio.get_running_loop().call_later(0.002, stall, run)

    result, _ = go(job(plan(200)), MadeUp(), stall)
    assert result.validity.verdict == "invalid"
    assert "fell behind its schedule" in result.validity.reasons[0]
    assert "did not run" in result.validity.reasons[0], "it slept: its CPU was not the limit"
    assert max(length for _, length in result.client.pauses) >= 400 * MS
    assert result.client.marked_requests > 0
    lag = result.latencies.send_lag.max
    assert lag is not None and lag > 0.3
    worst, naive = result.percentile("ttft", 99), result.percentile("ttft_naive", 50)
    assert worst is not None and naive is not None and worst > 0.3 > naive


@pytest.mark.parametrize(("cpu_ns", "named"), [(350 * MS, "CPU"), (20 * MS, "did not run for 0.40 s")])
def test_the_limit_that_was_hit_is_named(cpu_ns: int, named: str) -> None:
    """A pause spent computing is this client's CPU; one in which it did not run is another process's."""
    watch = SelfWatch()
    watch.starts.append(0)
    watch.ends.append(400 * MS)
    watch.paused_cpu_ns = cpu_ns
    latencies = Latencies()
    for _ in range(10):
        latencies.send_lag.record(300 * MS)
        latencies.ttft.record(301 * MS)
    verdict = judge(Outcomes(), latencies, watch.client(0), closed=False)
    assert verdict.verdict == "invalid"
    assert named in verdict.reasons[0]


@pytest.mark.parametrize(
    ("lag_ms", "ttft_ms", "kept"), [(9, 9, True), (12, 12, False), (12, 400, True), (60, 400, False)]
)
def test_a_schedule_is_kept_within_10_ms_or_5_percent(lag_ms: int, ttft_ms: int, kept: bool) -> None:
    """p99 of the send lag, against what was measured."""
    latencies = Latencies()
    for _ in range(10):
        latencies.send_lag.record(lag_ms * MS)
        latencies.ttft.record(ttft_ms * MS)
    assert judge(Outcomes(), latencies, ClientHealth(), closed=False).valid is kept


def test_a_loop_that_lags_makes_a_run_invalid() -> None:
    """What comes in is stamped late, also in a closed loop and under a cap; the limit is that of the send lag."""
    latencies, client = Latencies(), ClientHealth(capped=1, cap=1)
    for _ in range(10):
        latencies.ttft.record(12 * MS)
        client.loop_lag.record(12 * MS)
    for closed in (False, True):
        verdict = judge(Outcomes(), latencies, client, closed=closed)
        assert verdict.verdict == "invalid"
        assert "loop lag is 12.0 ms" in verdict.reasons[-1] and "10.0 ms" in verdict.reasons[-1]
    for _ in range(90):
        latencies.ttft.record(400 * MS)
    assert judge(Outcomes(), latencies, client, closed=True).verdict == "capped"


def test_too_many_excluded_answers_make_a_run_invalid() -> None:
    """Above 1 % of the schedule."""

    class Refusing(MadeUp):
        def _end(self, exchange: Exchange, ending: Ending, status: int) -> None:
            super()._end(exchange, ending, 404)

    result, _ = go(job(plan(10)), Refusing())
    assert result.goodput.excluded == 10 and result.goodput.attainment is None
    assert result.validity.verdict == "invalid"
    assert any("excluded (10 answered 4xx)" in reason for reason in result.validity.reasons)


def test_requests_are_made_before_they_are_due() -> None:
    """The second request's bytes exist when the first one is sent."""
    made: list[int] = []
    seen: list[int] = []
    pool = MadeUp()
    send = pool.send

    def spy(exchange: Exchange, request: bytes, done: Done) -> None:
        seen.append(len(made))
        send(exchange, request, done)

    pool.send = spy  # type: ignore[method-assign]
    schedule = Schedule.of([(0.5 + i * 0.02, 4, 4) for i in range(5)])
    go(Job(schedule, lambda planned: made.append(planned.index) or b"x", drain=5.0), pool)  # type: ignore[func-returns-value]
    assert seen[0] >= 2


def test_a_run_leaves_the_collector_as_it_was() -> None:
    """Frozen and off during the run, as before after it; a host's own freeze, and a collector it has switched off, are
    left alone."""
    gc.unfreeze()
    callbacks, seen = list(gc.callbacks), []
    go(job(plan(3)), MadeUp(), lambda run: seen.append((gc.get_freeze_count() > 0, gc.isenabled())))
    assert seen == [(True, False)]
    assert gc.get_freeze_count() == 0 and gc.callbacks == callbacks and gc.isenabled()
    gc.disable()
    try:
        go(job(plan(3)), MadeUp())
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        go(job(plan(3)), MadeUp())
        assert gc.get_freeze_count() == before
    finally:
        gc.unfreeze()


def test_a_pacer_comes_after_its_moment() -> None:
    """Never before it, also where the moment has passed already, and not after it is closed."""

    async def main() -> list[tuple[int, int]]:
        came: list[int] = []
        arrived = asyncio.Event()

        def due() -> None:
            came.append(time.monotonic_ns())
            arrived.set()

        pacer = Pacer(due)
        pairs = []
        for wait in (20 * MS, 3 * MS, -MS, 0):
            wanted = time.monotonic_ns() + wait
            arrived.clear()
            pacer.at(wanted)
            await asyncio.wait_for(arrived.wait(), 30)
            pairs.append((wanted, came[-1]))
        pacer.at(time.monotonic_ns() + MS)
        pacer.close()
        count = len(came)
        await asyncio.sleep(0.01)
        assert len(came) == count
        return pairs

    for wanted, came in asyncio.run(main()):
        assert came >= wanted


def test_pauses_mark_the_gaps_they_touch() -> None:
    """Only those that overlap one; a gap before or after is as it was."""
    watch = SelfWatch()
    watch.starts.extend([1000, 5000])
    watch.ends.extend([2000, 6000])
    stamps = memoryview(b"".join(value.to_bytes(8, "little") for value in (0, 900, 1500, 2500, 4000, 7000, 8000)))
    cells = stamps.cast("Q")
    assert watch.marked(cells, 0, 8000) == {1, 2, 4}
    assert watch.overlaps(1999, 2100) and not watch.overlaps(2000, 5000) and watch.overlaps(0, 1001)


def test_a_short_wait_is_no_pause() -> None:
    """Up to a tick and 10 ms more."""
    watch = SelfWatch()
    watch._alive = time.monotonic_ns() + TICK_NS
    watch.look()
    assert not watch.starts
    watch._alive = time.monotonic_ns() - TICK_NS - 2 * PAUSE_NS
    watch.look()
    assert len(watch.starts) == 1


def test_a_closed_loop_goes_through_its_requests_again() -> None:
    """For as long as was asked, whatever the schedule's own length."""
    pool = MadeUp(service=0.005)
    result, _ = go(job(plan(4, gap=0.0), workers=2, seconds=0.3), pool)
    assert len(pool.requests) > 4 and set(pool.requests) == {b"0", b"1", b"2", b"3"}
    assert result.duration == 0.3


@pytest.mark.parametrize("workers", [0, 2])
def test_an_answer_that_ends_the_run_sends_nothing_more(workers: int) -> None:
    """Closing the pool ends exchanges, and ended exchanges make room: nothing takes it."""
    pool = MadeUp(service=None)
    result, _ = go(job(plan(6, gap=0.0, duration=0.1), workers=workers, cap=2, drain=0.1), pool)
    assert pool.closed and result.outcomes.good == 0


def test_the_largest_memory_is_this_process_own() -> None:
    """getrusage() of a child begins with what its parent had: here 150 MB."""
    held = bytearray(b"x") * (150 << 20)
    code = "from tailwatch.loadtest.client_health import most_memory; print(most_memory())"
    resident = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert 5 << 20 < resident < 100 << 20 < len(held)


def test_a_request_that_is_over_wakes_no_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter for the run's end looks when it may have come, not after each of its requests."""
    looks: list[bool] = []
    change = LoadRun._change

    async def counted(self: LoadRun, limit_ns: int | None) -> bool:
        looks.append(True)
        return await change(self, limit_ns)

    monkeypatch.setattr(LoadRun, "_change", counted)
    result, _ = go(job(plan(200, gap=0.0), workers=4), MadeUp())
    assert result.outcomes.good == 200
    assert len(looks) <= 10, "four workers become idle, and four requests are over"


def test_idle_time_is_of_all_answers_and_of_none_without_deadlines() -> None:
    """Of an SLO that has a pace; None where there is nothing that could have been due."""

    class Paced(MadeUp):
        def _end(self, exchange: Exchange, ending: Ending, status: int) -> None:
            exchange.due, exchange.met, exchange.idle_ns = 4, 3, 25 * MS
            super()._end(exchange, ending, status)

    result, _ = go(job(plan(8), slo=SLO.parse("ttft<=60ms,tpot<=10ms")), Paced())
    assert result.idle == 0.2
    assert result.fluidity == 0.75
    assert go(job(plan(4)), MadeUp())[0].idle is None
