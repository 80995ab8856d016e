"""One client from nothing to a result: a loop, a pool, the warm-up, the run, and everything as it was."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, TypeVar

from tailwatch.errors import TailwatchError, how_to_install
from tailwatch.interrupts import is_ours
from tailwatch.loadtest.engine import Job, LoadRun
from tailwatch.loadtest.live import Live
from tailwatch.loadtest.process import exits_deferred, new_event_loop, on_interrupt
from tailwatch.loadtest.report.progress import Now
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Planned, Schedule
from tailwatch.options.slo import SLO

WARM_AT_ONCE = 8  # warm-up requests in flight
CONNECT = 5.0  # seconds that the first connection may take before the run begins without it
T = TypeVar("T")
Due = Callable[[float], bool]
Show = Callable[[Now], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """How a server is reached, and within which bounds: all but the schedule. Can be pickled.

    host, port, secure, insecure: where, over TLS or not, its certificate checked or not. make: the bytes of a planned
    request. timeout: seconds that one request may take; drain: seconds that the last ones are waited for. cap: most
    requests in flight. marked: the API ends its streams with a marker. empty: answers need no content. workers: 0 for
    an open loop. warmup: requests that are sent before and not counted. target, name, settings: for the result; nothing
    secret in them.
    """

    host: str
    port: int
    make: Callable[[Planned], bytes]
    secure: bool = False
    insecure: bool = False
    slo: SLO | None = None
    timeout: float = 60.0
    drain: float = 60.0
    cap: int = 10_000
    marked: bool = False
    empty: bool = False
    workers: int = 0
    warmup: int = 0
    target: str = ""
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def run_here(
    setup: Setup, schedule: Schedule, *, due: Due | None = None, show: Show | None = None, interruptible: bool = False
) -> Result:
    """Runs in this thread, in a loop of its own (uvloop's where it is installed).

    interruptible: Ctrl-C ends the run and its result is what was had until then; else it is the caller's
    KeyboardInterrupt.
    """
    return in_loop(lambda: measure(setup, schedule, due=due, show=show, interruptible=interruptible))


def in_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """asyncio.run() with the fastest loop there is. Whatever ends it, a KeyboardInterrupt too, its tasks end first."""
    loop = new_event_loop()
    task = loop.create_task(main())
    try:
        with exits_deferred(lambda: loop.call_soon_threadsafe(task.cancel)):
            return _until_done(loop, task)
    finally:
        with suppress(Exception):
            _cancel_all(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _until_done(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """As asyncio.Runner does it: Python's own Ctrl-C cancels the task, and is raised when that has ended; a second one
    is raised where it comes. One that is raised in a transport's callback is logged there, and lost."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    if handlers[0] is not signal.default_int_handler and not any(map(is_ours, handlers)):
        return loop.run_until_complete(task)
    pressed: list[bool] = []

    def press() -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)
        loop.call_soon_threadsafe(task.cancel)

    with on_interrupt(press):
        try:
            done = loop.run_until_complete(task)
        except asyncio.CancelledError:
            if pressed:
                raise KeyboardInterrupt from None
            raise
    if pressed:  # as it was over anyway
        raise KeyboardInterrupt
    return done


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:  # gather() of nothing makes a loop of its own
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


async def measure(
    setup: Setup,
    schedule: Schedule,
    *,
    due: Due | None = None,
    show: Show | None = None,
    interruptible: bool = False,
    begin: Callable[[LoadRun], Any] | None = None,
) -> Result:
    """The run, in the running loop. begin: called with the run before it starts, awaited, its result the start
    (monotonic ns) or None: at once. Interrupted before it began, the run sends nothing."""
    loop, brake = asyncio.get_running_loop(), _Brake()
    with on_interrupt(lambda: loop.call_soon_threadsafe(brake.pull)) if interruptible else nullcontext():
        if setup.warmup:
            await _warm(setup, schedule, brake)
        setup.make(schedule[0])  # whatever the first one takes longer is not the schedule's
        run = brake.on(LoadRun(_job(setup, schedule), await _pool(setup)))
        watching = None if due is None or show is None else asyncio.ensure_future(Live(run, due, show).watch())
        try:
            if begin is not None:
                run.start_ns = await begin(run) or 0
            return await run.go()
        finally:
            if watching is not None:
                watching.cancel()
            await asyncio.sleep(0)  # connections that were closed are notified


class _Brake:
    """What Ctrl-C pulls: it stops the run that goes on, and those that come after it."""

    def __init__(self) -> None:
        self._pulled = False
        self._run: LoadRun | None = None

    def pull(self) -> None:
        self._pulled = True
        if self._run is not None:
            self._run.stop()

    def on(self, run: LoadRun) -> LoadRun:
        """From now on it is for this run."""
        self._run = run
        if self._pulled:
            run.stop()
        return run


def _job(setup: Setup, schedule: Schedule) -> Job:
    return Job(
        schedule=schedule,
        make=setup.make,
        slo=setup.slo,
        cap=setup.cap,
        drain=setup.drain,
        workers=setup.workers,
        target=setup.target,
        name=setup.name,
        settings=setup.settings,
    )


async def _pool(setup: Setup) -> Any:
    pools = needed()
    tls = pools.tls_context(insecure=setup.insecure) if setup.secure else None
    ttft, token = setup.slo.deadlines if setup.slo is not None else (None, None)
    deadlines = (round((ttft or 0.0) * 1e9), round((token or 0.0) * 1e9))
    target = pools.Target(setup.host, setup.port, tls)
    pool = pools.Pool(target, timeout=setup.timeout, deadlines_ns=deadlines, marked=setup.marked, empty=setup.empty)
    warming = asyncio.ensure_future(pool.warm(1))
    try:
        await asyncio.wait([warming], timeout=CONNECT)
    finally:
        warming.cancel()
    return pool


async def _warm(setup: Setup, schedule: Schedule, brake: _Brake) -> None:
    """Sends requests like the first ones of the plan, a few at once, and forgets what came back; the run has
    connections of its own. Its prompts are others, so that no cache has those of the run."""
    like = islice(cycle(schedule), setup.warmup)
    few = Schedule.of([(0.0, one.prompt_tokens, one.output_tokens) for one in like], seed=~schedule.seed)
    job = Job(few, setup.make, drain=setup.timeout, workers=min(WARM_AT_ONCE, setup.warmup))
    await brake.on(LoadRun(job, await _pool(setup))).go()


def needed() -> Any:
    """The module of connections, which needs httptools.

    Raises:
        TailwatchError: it is not installed; the message has how to.
    """
    try:
        from tailwatch.loadtest import pool
    except ModuleNotFoundError as error:
        if error.name != "httptools":
            raise
        raise TailwatchError(f"the load tester needs httptools: {how_to_install('load')}") from error
    return pool
