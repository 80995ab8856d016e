"""The client process: tailwatch's own load tester, one job after the other, as lines over the pipe."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tailwatch.demo.full import plan
from tailwatch.demo.pipe import Upward
from tailwatch.loadtest import engine
from tailwatch.loadtest.pool import Pool, Target
from tailwatch.loadtest.process import new_event_loop
from tailwatch.loadtest.schedule import Schedule
from tailwatch.options.slo import SLO

if TYPE_CHECKING:
    from tailwatch.demo.pipe import Line
    from tailwatch.loadtest.results import Result

TELL = 0.5  # seconds between two lines
DRAIN = 20.0
CAP = 2_000


def main() -> None:
    """Run the jobs that come: {"port", "slo", "schedule", "workers", "seconds", "name", "seed"}."""
    upward = Upward()
    while (job := upward.receive()) is not None:
        loop = new_event_loop()
        try:
            result = loop.run_until_complete(_run(job, upward))
        finally:
            loop.close()
        upward.send({"result": result.as_dict()})


async def _run(job: Line, upward: Upward) -> Result:
    schedule = Schedule.from_dict(job["schedule"])
    slo = SLO.parse(job["slo"])
    deadlines = tuple(round(1e9 * (seconds or 0.0)) for seconds in slo.deadlines)
    pool = Pool(Target("127.0.0.1", job["port"]), deadlines_ns=(deadlines[0], deadlines[1]))
    made = engine.Job(
        schedule=schedule,
        make=lambda planned: plan.request(planned, job["seed"]),
        slo=slo,
        cap=CAP,
        drain=DRAIN,
        workers=job.get("workers", 0),
        seconds=job.get("seconds", 0.0),
        target="http://127.0.0.1/v1/completions",
        name=job["name"],
    )
    telling: list[asyncio.Task[None]] = []

    def watch(going: engine.LoadRun) -> None:
        telling.append(asyncio.get_running_loop().create_task(_tell(going, upward)))

    try:
        return await engine.run(made, pool, progress=watch)
    finally:
        for task in telling:
            task.cancel()


async def _tell(going: Any, upward: Upward) -> None:
    """A line now and then: the parent learns that we live."""
    while True:
        await asyncio.sleep(TELL)
        upward.send({"progress": True, "sent": going.sent, "done": going.done})
