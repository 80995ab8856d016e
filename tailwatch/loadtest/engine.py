"""Sends what was planned when it was planned, whatever the server does; or, in a closed loop, when an answer makes
room.

Bounded on every side: in requests and time by the plan, in connections by the cap, in waiting by the drain. Between the
last planned request and the end lie at most `drain` seconds; what is not over then is ended by us, and a miss.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any, Protocol

from tailwatch.loadtest.client_health import SelfWatch, judge
from tailwatch.loadtest.exchange import Exchange
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.pacer import Pacer
from tailwatch.loadtest.recorder import Recorder
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Law, Planned, Schedule
from tailwatch.options.slo import SLO

_SECOND = 1_000_000_000
LEAD_NS = 50_000_000  # from "ready" to the first second of the plan
READY_BYTES = 32 << 20  # of requests made before they are due
READY = 4096
MAKE_NS = 500_000  # making requests ahead stops so long before the next is due
PATIENCE = 1.0  # seconds that Ctrl-C gives to what is in flight


class RequestPool(Protocol):
    """What the engine needs of a `pool.Pool`."""

    in_flight: int
    opened: int
    retries: int

    @property
    def connections(self) -> int:
        """Open, or being opened."""

    def send(self, exchange: Exchange, request: bytes, done: Callable[[Exchange], None]) -> None:
        """done is called once, from the loop, never from within."""

    def close(self) -> None:
        """Ends what is in flight; done is called for each."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one client.

    make: the bytes of a planned request. cap: most requests in flight. drain: seconds given to the last ones.
    workers: 0: open loop; else so many requests in flight, closed loop: once through the schedule's requests, or until
    its duration is over where it has one; with `seconds` for so long, through them again and again. target, name,
    settings: for the result.
    """

    schedule: Schedule
    make: Callable[[Planned], bytes]
    slo: SLO | None = None
    cap: int = 10_000
    drain: float = 60.0
    workers: int = 0
    seconds: float = 0.0
    target: str = ""
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> float:
        """Seconds in which requests are sent; 0: until all are."""
        return self.seconds if self.workers and self.seconds else self.schedule.duration


class LoadRun:
    """A run that goes on: what a progress display reads, and what ends it. Of the loop's thread."""

    def __init__(self, job: Job, pool: RequestPool, start_ns: int | None = None) -> None:
        self.job, self.pool = job, pool
        self.watch = SelfWatch()
        self.start_ns = start_ns or 0
        self.recorder = Recorder(self.start_ns, job.slo, self.watch)
        self.sent = self.done = self.capped = 0
        self.lag = 0.0  # seconds that the last send was late
        self.in_flight_max = self.connections_max = 0
        self.stopped_ns = 0
        self._changed = asyncio.Event()
        self._impatient = self._over = False
        self._idle = 0

    @property
    def in_flight(self) -> int:
        """Sent and not over."""
        return self.sent - self.done

    @property
    def elapsed(self) -> float:
        """Seconds since the start; below 0 before it."""
        return (time.monotonic_ns() - self.start_ns) / 1e9 if self.start_ns else -1.0

    def stop(self) -> None:
        """Send no more, and give what is in flight a second; the second time: none."""
        self._impatient = bool(self.stopped_ns)
        self.stopped_ns = self.stopped_ns or time.monotonic_ns()
        self._changed.set()

    async def go(self) -> Result:
        """Runs to its end, and returns what was found."""
        self.watch.start()
        self.recorder.start_ns = self.start_ns = self.start_ns or time.monotonic_ns() + LEAD_NS
        try:
            await (self._closed() if self.job.workers else self._open())
        finally:
            self._over = True
            self.pool.close()
            self.watch.stop()
        return self._result()

    # Open loop

    async def _open(self) -> None:
        feed = _Feed(self.job.schedule, self.job.make, self.start_ns)
        pacer = Pacer(lambda: self._due(feed, pacer))
        feed.fill()
        try:
            self._due(feed, pacer)
            await self._until(lambda: feed.over and not feed.waiting)
        finally:
            pacer.close()
        self._give_up(feed)
        await self._drain()
        for planned, due_ns in feed.rest(self.stopped_ns or time.monotonic_ns()):
            self.recorder.never_sent(due_ns, planned)

    def _due(self, feed: _Feed, pacer: Pacer) -> None:
        """Everything that is due goes out; then the next alarm, and what can be made ahead is made."""
        if self._over or self.stopped_ns:
            return
        now = time.monotonic_ns()
        while feed.next_ns is not None and feed.next_ns <= now:
            self._offer(feed)
        if feed.next_ns is None:
            self._changed.set()
            return
        pacer.at(feed.next_ns)
        feed.fill()

    def _offer(self, feed: _Feed) -> None:
        """Send, or where the cap is full let it wait for its turn; it keeps its planned time."""
        if self.in_flight >= self.job.cap:
            feed.put_off()
            self.capped += 1
            return
        self._send(*feed.take(), lambda: self._room(feed))

    def _room(self, feed: _Feed) -> None:
        if feed.waiting and not self._over and not self.stopped_ns and self.in_flight < self.job.cap:
            self._send(*feed.take_waiting(), lambda: self._room(feed))
            if not feed.waiting:
                self._changed.set()

    def _give_up(self, feed: _Feed) -> None:
        while feed.waiting:
            planned, due_ns = feed.planned(feed.waiting.popleft())
            self.recorder.never_sent(due_ns, planned)

    # Closed loop

    async def _closed(self) -> None:
        seconds = self.job.length
        supply = cycle(self.job.schedule) if self.job.seconds else iter(self.job.schedule)
        until = self.start_ns + round(seconds * _SECOND) if seconds else None
        await asyncio.sleep(max(0.0, (self.start_ns - time.monotonic_ns()) / _SECOND))
        for _ in range(self.job.workers):
            self._again(supply, until)
        await self._until(lambda: self._idle >= self.job.workers)
        await self._drain()

    def _again(self, supply: Iterator[Planned], until: int | None) -> None:
        """A worker sends its next request, or is idle from now on: there is none, or no time."""
        stopped = self._over or self.stopped_ns or (until is not None and time.monotonic_ns() >= until)
        planned = None if stopped else next(supply, None)
        if planned is None:
            self._idle += 1
            self._changed.set()
            return
        request = self.job.make(planned)
        self._send(planned, time.monotonic_ns(), request, lambda: self._again(supply, until))

    # Both

    def _send(self, planned: Planned, due_ns: int, request: bytes, room: Callable[[], None]) -> None:
        def done(exchange: Exchange) -> None:
            self.done += 1
            self.recorder.note(exchange, planned)
            room()
            if not self.in_flight:  # what waits for anything else is woken by its cause
                self._changed.set()

        self.sent += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        exchange = Exchange(due_ns)
        self.pool.send(exchange, request, done)
        self.lag = max(0, exchange.sent_ns - due_ns) / 1e9
        self.recorder.sent(exchange.sent_ns or time.monotonic_ns(), self.in_flight)
        self.connections_max = max(self.connections_max, self.pool.connections)

    async def _until(self, over: Callable[[], bool]) -> None:
        """Waits for the plan's end, Ctrl-C, or (with a cap that blocks) the end of the patience."""
        while not over() and not self.stopped_ns:
            if not await self._change(self._limit_ns):
                return

    async def _drain(self) -> None:
        """Waits for what is in flight, not longer than its drain (after Ctrl-C: a second)."""
        limit = self._limit_ns or time.monotonic_ns() + round(self.job.drain * _SECOND)
        while self.in_flight and not self._impatient:
            patience = self.stopped_ns + round(PATIENCE * _SECOND) if self.stopped_ns else limit
            if not await self._change(min(limit, patience)):
                return

    @property
    def _limit_ns(self) -> int | None:
        """When the run is over at the latest; None: when its requests are."""
        seconds = self.job.length
        if self.job.workers and not seconds:
            return None
        return self.start_ns + round((seconds + self.job.drain) * _SECOND)

    async def _change(self, limit_ns: int | None) -> bool:
        """Waits until something is done; False: the time is over."""
        left = None if limit_ns is None else (limit_ns - time.monotonic_ns()) / _SECOND
        if left is not None and left <= 0:
            return False
        self._changed.clear()
        # Not asyncio.wait_for(), which before 3.12 loses a cancellation that comes with what it waits for.
        timer = None if left is None else asyncio.get_running_loop().call_later(left, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return True

    def _result(self) -> Result:
        job, recorder = self.job, self.recorder
        client = self.watch.client(self.start_ns)
        client.in_flight_max, client.connections_max = self.in_flight_max, self.connections_max
        client.opened, client.retries = self.pool.opened, self.pool.retries
        client.cap, client.capped = (0 if job.workers else job.cap), self.capped
        outcomes = recorder.finish(client)
        elapsed = max(recorder.requests.end, default=0) / 1e9
        duration = self._duration(elapsed)
        verdict = judge(outcomes, recorder.latencies, client, closed=bool(job.workers))
        if self.stopped_ns and verdict.valid:
            verdict.verdict = "interrupted"
        if self.stopped_ns:
            verdict.reasons.append(f"interrupted after {duration:.1f} s of the schedule")
        return Result(
            target=job.target,
            name=job.name,
            settings=job.settings,
            schedule=self._law(duration),
            closed=bool(job.workers),
            started=time.time() - (time.monotonic_ns() - self.start_ns) / 1e9,
            duration=duration,
            elapsed=max(elapsed, 0.0),
            slo=job.slo,
            goodput=goodput_of(
                outcomes,
                job.slo,
                duration=duration,
                throughput=recorder.throughput(duration),
                tokens=recorder.tokens / elapsed if elapsed > 0 else 0.0,
                broken=recorder.broken,
                windows=recorder.series.windows,
                believed=verdict.valid,
            ),
            outcomes=outcomes,
            latencies=recorder.latencies,
            tokens=recorder.tokens,
            fluidity=recorder.met / recorder.due if recorder.due else None,
            idle=recorder.idle_ns / 1e9 if recorder.due else None,
            series=recorder.series,
            client=client,
            validity=verdict,
            interrupted=bool(self.stopped_ns),
            requests=recorder.requests,
            examples=recorder.examples,
        )

    def _duration(self, elapsed: float) -> float:
        """Seconds that rates are per: of the plan, cut by Ctrl-C; of a closed loop that ran out of requests, until its
        last answer."""
        whole = self.job.length
        if self.job.workers and not self.job.seconds and (not whole or self.sent >= len(self.job.schedule)):
            whole = elapsed
        return min(whole, max(0.0, self.stopped_ns - self.start_ns) / 1e9) if self.stopped_ns else whole

    def _law(self, duration: float) -> dict[str, Any]:
        """What the schedule was; of a closed loop only what came of it."""
        schedule = self.job.schedule
        if self.job.workers:
            rate = self.sent / duration if duration > 0 else 0.0
            law = Law(f"closed loop, {self.job.workers} workers", self.sent, duration, rate, None, None)
            return {"digest": "", "seed": schedule.seed, **asdict(law)}
        return {"digest": schedule.digest, "seed": schedule.seed, **asdict(schedule.law)}


class _Feed:
    """The plan, with the bytes of the next requests made before they are due: their making is no send lag."""

    def __init__(self, schedule: Schedule, make: Callable[[Planned], bytes], start_ns: int) -> None:
        self._times, self._schedule, self._make, self._start = schedule.times_ns, schedule, make, start_ns
        self._ready: deque[tuple[Planned, bytes]] = deque()
        self._bytes = 0
        self._taken = 0
        self.waiting: deque[int] = deque()  # places in the schedule

    @property
    def over(self) -> bool:
        """All were taken."""
        return self._taken >= len(self._times)

    @property
    def next_ns(self) -> int | None:
        """When the next one is due; None: there is none."""
        return None if self.over else self._start + self._times[self._taken]

    def fill(self) -> None:
        """Makes requests ahead while there is time until the next one is due, and room."""
        made = self._taken + len(self._ready)
        limit = (self.next_ns or 0) - MAKE_NS
        while made < len(self._times) and len(self._ready) < READY and self._bytes < READY_BYTES:
            if self._ready and time.monotonic_ns() >= limit:
                return
            self._prepare(made)
            made += 1

    def take(self) -> tuple[Planned, int, bytes]:
        """The next one: what, when it was due, and its bytes."""
        if not self._ready:
            self._prepare(self._taken)
        planned, request = self._ready.popleft()
        self._bytes -= len(request)
        due = self._start + self._times[self._taken]
        self._taken += 1
        return planned, due, request

    def put_off(self) -> None:
        """The next one is to wait; its bytes are made again when its turn comes: a long queue holds none."""
        if self._ready:
            self._bytes -= len(self._ready.popleft()[1])
        self.waiting.append(self._taken)
        self._taken += 1

    def take_waiting(self) -> tuple[Planned, int, bytes]:
        """The one that has waited longest."""
        planned, due = self.planned(self.waiting.popleft())
        return planned, due, self._make(planned)

    def planned(self, i: int) -> tuple[Planned, int]:
        """What stands at a place of the schedule, and when it was due."""
        return self._schedule[i], self._start + self._times[i]

    def rest(self, until_ns: int) -> Iterator[tuple[Planned, int]]:
        """What was not taken, though it was due by then."""
        for i in range(self._taken, len(self._times)):
            planned, due = self.planned(i)
            if due > until_ns:
                return
            yield planned, due

    def _prepare(self, i: int) -> None:
        planned = self._schedule[i]
        request = self._make(planned)
        self._bytes += len(request)
        self._ready.append((planned, request))


async def run(job: Job, pool: RequestPool, *, start_ns: int | None = None, progress: Any = None) -> Result:
    """Runs a job over a pool. progress: called with the `LoadRun` once there is one, to look at and to stop it."""
    going = LoadRun(job, pool, start_ns)
    if progress is not None:
        progress(going)
    return await going.go()
