"""The demo's client: the load tester, in the process of the command. Only the server is a process of its own."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailwatch.loadtest.engine import Job, LoadRun
from tailwatch.loadtest.exchange import Exchange
from tailwatch.loadtest.live import Live
from tailwatch.loadtest.pool import Done, Pool, Target
from tailwatch.loadtest.report.progress import Progress
from tailwatch.loadtest.session import in_loop

if TYPE_CHECKING:
    from tailwatch.demo.pipe import Child
    from tailwatch.loadtest.results import Result

CHECK = 1.0  # seconds between two checks that the server still runs


@dataclass(frozen=True, slots=True)
class Measurement:
    """One job. stamps: of each request's tokens, as in `Exchange.stamps`; start_ns: of the schedule, monotonic."""

    result: Result
    stamps: list[bytes]
    start_ns: int


class StampPool(Pool):
    """Keeps the stamps of all answers: a result has only the largest gap of each."""

    def __init__(self, port: int, deadlines_ns: tuple[int, int]) -> None:
        super().__init__(Target("127.0.0.1", port), deadlines_ns=deadlines_ns)
        self.stamps: list[bytes] = []

    def send(self, exchange: Exchange, request: bytes, done: Done) -> None:
        """As the pool does it."""

        def finished(exchange: Exchange) -> None:
            self.stamps.append(exchange.stamps)
            done(exchange)

        super().send(exchange, request, finished)


def measure(job: Job, server: Child, port: int) -> Measurement:
    """Runs a job against the server. On a terminal its progress is shown.

    Raises:
        ChildError: the server ended meanwhile.
    """
    scheduled = None if job.workers else len(job.schedule)
    with Progress(job.length or None, scheduled, quiet=not sys.stderr.isatty()) as progress:
        found = in_loop(lambda: _run(job, server, port, progress))
    server.check()
    return found


async def _run(job: Job, server: Child, port: int, progress: Progress) -> Measurement:
    ttft, token = (round(1e9 * (seconds or 0.0)) for seconds in (job.slo.deadlines if job.slo else (None, None)))
    pool = StampPool(port, (ttft, token))
    run = LoadRun(job, pool)
    beside = (Live(run, progress.due, progress.show).watch(), _stop_with(server, run))
    tasks = [asyncio.ensure_future(watching) for watching in beside]
    try:
        result = await run.go()
    finally:
        for task in tasks:
            task.cancel()
    return Measurement(result, pool.stamps, run.start_ns)


async def _stop_with(server: Child, run: LoadRun) -> None:
    """Ends the run, and what is in flight, when the server has ended."""
    while not server.ended:
        await asyncio.sleep(CHECK)
    run.stop()
    run.stop()
