"""One load by several client processes: each sends every n-th request of the schedule, and their results merge exactly.

A child is a fresh interpreter that reads its task from its standard input and writes what it sees and finds to its
standard output, both pickled; it ends when its input does. They start together, at a moment of the clock that all
processes share.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import IO, Any

from tailwatch.errors import TailwatchError
from tailwatch.loadtest.engine import LoadRun
from tailwatch.loadtest.live import together
from tailwatch.loadtest.merging import merged
from tailwatch.loadtest.process import grow_in_place, on_interrupt
from tailwatch.loadtest.report.progress import Now
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Schedule
from tailwatch.loadtest.session import Due, Setup, Show, in_loop, measure, run_here

LEAD = 0.1  # seconds from "all are ready" to the start
LOOK_SECONDS = 0.5  # seconds between two looks of a child
_CODE = "import sys; sys.path[:] = [p for p in sys.path if p]; from tailwatch.loadtest.processes import child; child()"


def run_in(
    processes: int,
    setup: Setup,
    schedule: Schedule,
    *,
    due: Due | None = None,
    show: Show | None = None,
    interruptible: bool = False,
) -> Result:
    """Runs a load in so many processes; in this one where it is one. Ctrl-C as in `run_here`.

    Raises:
        TailwatchError: a child died; the message has its last words.
    """
    if processes == 1:
        return run_here(setup, schedule, due=due, show=show, interruptible=interruptible)
    children = [_Child(i) for i in range(processes)]
    try:
        for i, child in enumerate(children):
            child.put((_part(setup, i, processes), schedule.part(i, processes)))
        parts = _interruptibly(children, interruptible, lambda: _collect(children, due, show))
        return _whole(parts, schedule)
    finally:
        for child in children:
            child.end()


def _part(setup: Setup, i: int, n: int) -> Setup:
    """A process's share of what is counted: workers, connections, the warm-up."""
    workers = len(range(i, setup.workers, n))
    warmup = len(range(i, setup.warmup, n))
    return replace(setup, workers=workers, warmup=warmup, cap=max(1, len(range(i, setup.cap, n))))


def _whole(parts: list[Result], schedule: Schedule) -> Result:
    """They began at one moment of one clock, which each has read by its own look at another one."""
    for part in parts:
        part.started = parts[0].started
    if parts[0].closed:
        return merged(parts)
    return merged(parts, schedule={"digest": schedule.digest, "seed": schedule.seed, **asdict(schedule.law)})


class _Child:
    """A client process and the thread that reads what it sends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches it through us, once
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def put(self, what: Any) -> None:
        """To its standard input; a child that is gone is found out by its silence."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            pickle.dump(what, self._process.stdin)
            self._process.stdin.flush()

    def get(self, timeout: float | None = None) -> tuple[str, Any]:
        """What it sent: (what, value). queue.Empty: nothing in that time.

        Raises:
            TailwatchError: it is dead.
        """
        what, value = self.messages.get(timeout=timeout)
        if what == "gone":
            raise TailwatchError(f"client process {self.number} ended: {value}")
        return what, value

    def interrupt(self) -> None:
        """As Ctrl-C."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Whatever it does."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join()
        process.stdout.close()
        process.stderr.close()

    def _read(self) -> None:
        process = self._process
        assert process.stdout is not None and process.stderr is not None
        try:
            while True:
                self.messages.put(pickle.load(process.stdout))
        except (EOFError, OSError, pickle.UnpicklingError):
            words = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
            self.messages.put(("gone", words[-1] if words else "without a word"))


def _collect(children: list[_Child], due: Due | None, show: Show | None) -> list[Result]:
    for child in children:
        what, _ = child.get()
        assert what == "ready"
    start = time.monotonic_ns() + round(LEAD * 1e9)
    for child in children:
        child.put(start)
    found: dict[int, Result] = {}
    seen: dict[int, Now] = {}
    while len(found) < len(children):
        for child in children:
            if child.number in found:
                continue
            with suppress(queue.Empty):
                what, value = child.get(timeout=0.05)
                (found if what == "result" else seen)[child.number] = value
        elapsed = (time.monotonic_ns() - start) / 1e9
        if due is not None and show is not None and seen and due(elapsed):
            show(together(list(seen.values())))
    return [found[child.number] for child in children]


def _interruptibly(children: list[_Child], interruptible: bool, collect: Callable[[], list[Result]]) -> list[Result]:
    """Meanwhile Ctrl-C is the children's. One that it meets before it can take it dies: nothing was measured then."""
    if not interruptible:
        return collect()
    seen: list[bool] = []

    def forward() -> None:
        seen.append(True)
        for child in children:
            child.interrupt()

    with on_interrupt(forward):
        try:
            return collect()
        except TailwatchError:
            if seen:
                raise KeyboardInterrupt from None
            raise


def child() -> None:
    """The other end: what a client process does."""
    grow_in_place()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no pickle
    inward = sys.stdin.buffer
    setup, schedule = pickle.load(inward)
    send = _MessageWriter(out)

    async def begin(run: LoadRun) -> int:
        loop = asyncio.get_running_loop()
        send("ready", None)
        start = int(await loop.run_in_executor(None, pickle.load, inward))
        threading.Thread(target=_orphaned, args=(inward,), daemon=True).start()
        return start

    every = _Every(LOOK_SECONDS)
    result = in_loop(
        lambda: measure(setup, schedule, due=every, show=lambda now: send("now", now), interruptible=True, begin=begin)
    )
    send("result", result)
    out.close()
    os._exit(0)  # the thread that waits for our input's end is not waited for


class _MessageWriter:
    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def __call__(self, what: str, value: Any) -> None:
        pickle.dump((what, value), self._out)
        self._out.flush()


class _Every:
    """Due so many seconds after it was last due."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, 0.0

    def __call__(self, elapsed: float) -> bool:
        if elapsed < self._next:
            return False
        self._next = elapsed + self._seconds
        return True


def _orphaned(inward: IO[bytes]) -> None:
    """Nothing waits for the result any more."""
    inward.read()
    os._exit(1)
