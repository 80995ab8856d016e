"""One run of a server's heap and garbage in virtual traffic, under one collector policy; for gc_policies.py.

    python gc_workload.py POLICY LOAD SECONDS SEED

A batching loop on asyncio: STREAMS streams, a step each STEP_SECONDS, of which the load keeps it busy for a part; each
stream makes a token a step. Prints one JSON object: when steps began against when they were due, memory, counts.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import tailwatch
from tailwatch import snapshots

FROZEN, LIVE = 2_600_000, 95_000
STREAMS, STEP_SECONDS = 64, 0.01
RSS_EVERY = 0.25
PAGE = 4096
BEHIND = 0.05
DISABLED = "gc.disable()"


@dataclass(frozen=True)
class Load:
    """How busy the loop is, and what a request leaves behind."""

    busy: float = 0.7
    cycles: float = 1.0
    """Of the requests, those that are a cycle; 0: a small cycle in one of 64 tokens."""
    burst: int = 0
    """Steps between two moments at which all streams end at once."""
    registry: bool = False
    """All requests hang in one linked list while they live."""


LOADS = {
    "light": Load(cycles=0.0),
    "heavy": Load(),
    "bursty": Load(burst=200),
    "registry": Load(registry=True),
    "saturated": Load(busy=1.05),
}


class Thing:
    """Of the long-lived heap."""

    __slots__ = ("parts", "values")


class Request:
    """With its tokens."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens
        self.tokens: list[Any] = []
        self.me: Request | None = None
        self.before: Request | None = None
        self.after: Request | None = None


def heap(objects: int) -> list[Thing]:
    """Four tracked objects a thing."""
    made = []
    for number in range(objects // 4):
        thing = Thing()
        thing.values = {"number": number, "list": [number]}
        thing.parts = [thing.values]
        made.append(thing)
    return made


def token(number: int) -> dict[str, Any]:
    """As an API layer makes one: eight tracked objects."""
    top = [{"token": number, "logprob": -1.0}, {"token": number + 1, "logprob": -2.0}]
    return {"index": number, "delta": {"content": "x", "role": None}, "logprobs": {"content": [{"top": top}]}}


@dataclass
class Run:
    """What is measured."""

    late_ms: list[float] = field(default_factory=list)
    busy_ms: list[float] = field(default_factory=list)
    due: list[tuple[int, int]] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0


class Server:
    """The loop."""

    def __init__(self, load: Load, seed: int) -> None:
        self.load, self.random, self.run = load, random.Random(seed), Run()
        self.ends = Request(0), Request(0)
        self.ends[0].after, self.ends[1].before = self.ends[1], self.ends[0]
        self.streams = [self._request() for _ in range(STREAMS)]

    def _request(self) -> Request:
        made = Request(self.random.randint(10, 200))
        if self.random.random() < self.load.cycles:
            made.me = made
        if self.load.registry:
            first = self.ends[0]
            made.before, made.after = first, first.after
            assert first.after is not None
            first.after.before = first.after = made
        return made

    def _end(self, request: Request) -> None:
        self.run.requests += 1
        if self.load.registry:
            assert request.before is not None and request.after is not None
            request.before.after, request.after.before = request.after, request.before

    async def _fails(self, request: Request) -> None:
        """A task whose exception holds its frame, which holds the exception."""
        try:
            raise ValueError("refused")
        except ValueError as error:
            request.tokens.append(error)
            kept = error  # noqa: F841

    def _token(self, place: int, steps: int) -> None:
        request = self.streams[place]
        made = token(steps)
        request.tokens.append(made)
        if self.load.cycles == 0 and self.random.random() < 1 / 64:
            made["me"] = made
        json.dumps(made["delta"])
        request.left -= 1
        self.run.tokens += 1
        if request.left <= 0 or (self.load.burst and steps % self.load.burst == 0):
            self._end(request)
            self.streams[place] = self._request()

    async def _step(self, steps: int) -> None:
        began = time.perf_counter()
        for place in range(STREAMS):
            self._token(place, steps)
        if self.load.cycles:
            await asyncio.create_task(self._fails(self.streams[steps % STREAMS]))
        while time.perf_counter() - began < STEP_SECONDS * self.load.busy:
            json.dumps([1, 2, 3])
        self.run.busy_ms.append((time.perf_counter() - began) * 1e3)

    async def serve(self, seconds: float) -> None:
        """Steps at their times, one after the other."""
        clock = time.monotonic
        start = due = clock()
        remember = start
        steps = 0
        while due - start < seconds:
            await asyncio.sleep(max(0.0, due - clock()))
            now = clock()
            self.run.late_ms.append((now - due) * 1e3)
            self.run.due.append((int(due * 1e9), int(now * 1e9)))
            await self._step(steps)
            steps += 1
            due += STEP_SECONDS
            if clock() - due > BEHIND or self.load.busy > 1:
                due = max(due, clock())
            if clock() >= remember:
                self.run.rss.append((clock() - start, resident()))
                remember += RSS_EVERY


def resident() -> int:
    """Bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def excess_ms(due: list[tuple[int, int]], pauses: list[Any]) -> list[float]:
    """Of each step, what of its lateness lies in pauses: the part of a collection after the step was due."""
    found, first = [], 0
    for wanted, began in due:
        while first < len(pauses) and pauses[first].stop_ns <= wanted:
            first += 1
        total, at = 0, first
        while at < len(pauses) and pauses[at].start_ns < began:
            total += max(0, min(pauses[at].stop_ns, began) - max(pauses[at].start_ns, wanted))
            at += 1
        found.append(total / 1e6)
    return found


def longest_turn_ms(due: list[tuple[int, int]]) -> float:
    """From the beginning of a step to that of the next."""
    return max(((later[1] - one[1]) / 1e6 for one, later in itertools.pairwise(due)), default=0.0)


def main(policy: str, load: str, seconds: float, seed: int) -> dict[str, Any]:
    """One run."""
    kept = heap(FROZEN)
    watch = tailwatch.install(role="engine", gc="observe" if policy in (DISABLED, "observe") else policy)
    if policy == DISABLED:
        gc.collect()
        gc.freeze()
        gc.disable()
    elif policy != "observe":
        tailwatch.freeze()
    live = heap(LIVE)
    server = Server(LOADS[load], seed)
    records = snapshots.Records(watch.core.address)
    cursor, pauses = records.pauses(0, before_ns=time.monotonic_ns())[1], []
    before = watch.snapshot().paused
    cpu = time.process_time()

    async def serve() -> None:
        nonlocal cursor
        with tailwatch.stream(model="m"):
            pass  # the loop of a process that serves is known by its requests

        async def drain() -> None:
            nonlocal cursor
            while True:
                await asyncio.sleep(0.5)
                some, cursor, _ = records.pauses(cursor, before_ns=time.monotonic_ns())
                pauses.extend(some)

        task = asyncio.create_task(drain())
        await server.serve(seconds)
        task.cancel()

    asyncio.run(serve())
    some, cursor, lost_records = records.pauses(cursor, before_ns=time.monotonic_ns())
    pauses.extend(some)
    after = watch.snapshot().paused
    run = server.run
    found = {
        "policy": policy,
        "load": load,
        "seconds": seconds,
        "late_ms": run.late_ms,
        "excess_ms": excess_ms(run.due, sorted(pauses, key=lambda each: each.start_ns)),
        "longest_step_ms": max(run.busy_ms) if run.busy_ms else 0.0,
        "longest_turn_ms": longest_turn_ms(run.due),
        "rss": run.rss,
        "steps": len(run.late_ms),
        "requests": run.requests,
        "tokens": run.tokens,
        "cpu_seconds": time.process_time() - cpu,
        "paused": {
            cause: after[cause] - before.get(cause, 0.0) for cause in after if after[cause] > before.get(cause, 0.0)
        },
        "frozen_things": len(kept) * 4,
        "live_things": len(live) * 4,
        "status": asdict(tailwatch.gc_status()),
    }
    tailwatch.uninstall()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))))
