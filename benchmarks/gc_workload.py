"""One run of a server's heap and garbage in virtual traffic, under one collector policy; for gc_policies.py.

    python gc_workload.py POLICY LOAD SECONDS SEED OBJECTS

A batching loop on asyncio: STREAMS streams, a step each STEP_SECONDS, of which the load keeps it busy for a part; each
stream makes a token a step, and a request has 10 to 200. Prints one JSON object: when steps began against when they
were due, memory, counts. At the end all streams are dropped, and what is left is counted after a while without work.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import sys
import threading
import time
from array import array
from dataclasses import asdict, dataclass, field
from typing import Any

import tailwatch
from tailwatch import snapshots
from tailwatch.gc.hook import WARM_REQUESTS

LIVE = 95_000
STREAMS, STEP_SECONDS = 64, 0.01
RSS_EVERY = 0.25
IDLE_SECONDS, SETTLE_SECONDS = 0.5, 2.0
"""Before the traffic, in which a server sees to what it has loaded; after it."""
PAGE = 4096
MOST_TOKENS = 200
REQUESTS_COLLECTED = 15
BEHIND = 0.05
BODY_BYTES = 160 << 10
DISABLED = "gc.disable()"


@dataclass(frozen=True)
class Load:
    """How busy the loop is, and what a request leaves behind."""

    busy: float = 0.7
    """Of each step; above 1: steps follow one another without a wait."""
    cycles: bool = True
    """Each request is a cycle with all its tokens, and tasks fail with tracebacks; without: each leaves a small cycle
    that holds its body."""
    burst: int = 0
    """Steps between two moments at which all streams end at once."""
    registry: bool = False
    """All requests hang in one linked list while they live."""
    kept: bool = True
    """Tokens are kept until their request ends; without, nothing grows old, and no pass is ever due."""
    growth: int = 0
    """Objects that each step adds to a cache for good."""
    threads: int = 0
    """Others that compute in Python all the time."""
    host_froze: bool = False
    """The application freezes its own heap before tailwatch is installed."""
    paced: bool = True
    """A step each STEP_SECONDS; without, one after the other, as fast as they go."""


LOADS = {
    "light": Load(cycles=False),
    "heavy": Load(),
    "bursty": Load(burst=200),
    "registry": Load(registry=True),
    "saturated": Load(busy=1.05),
    "growing": Load(busy=0.5, growth=800),
    "threads": Load(busy=0.3, threads=2),
    "host-froze": Load(busy=0.5, kept=False, host_froze=True),
    "still": Load(busy=0.0, cycles=False, kept=False, paced=False),
}


class Thing:
    """Of the long-lived heap."""

    __slots__ = ("parts", "values")
    parts: list[Any]
    values: dict[str, Any]


class Request:
    """With its tokens."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens
        self.tokens: list[Any] = []
        self.me: list[Any] = []
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
    """As an API layer makes one, with the two most probable: TOKEN_OBJECTS tracked objects."""
    top = [{"token": [number + rank], "logprob": -float(rank)} for rank in range(2)]
    return {"index": number, "delta": {"content": f"x{number}"}, "logprobs": {"content": [{"top": top}]}}


def numbers() -> array[float]:
    """Where the collector does not see them, and memory hardly: both are measured."""
    return array("d")


@dataclass
class Run:
    """What is measured."""

    late_ms: array[float] = field(default_factory=numbers)
    holes_ms: array[float] = field(default_factory=numbers)
    """Of each step, the longest time between two looks at the clock by a thread that does nothing else: what the
    machine took."""
    own_holes_ms: array[float] = field(default_factory=numbers)
    """The same by the thread's own clock, which the kernel stops where it sees that the machine took the processor."""
    due: array[int] = field(default_factory=lambda: array("q"))
    """When each step was due, and when it began; ns."""
    rss: list[tuple[float, int]] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    tasks: int = 0


class Server:
    """The loop."""

    def __init__(self, load: Load, seed: int) -> None:
        self.load, self.random, self.run = load, random.Random(seed), Run()
        self.ends = Request(0), Request(0)
        self.ends[0].after, self.ends[1].before = self.ends[1], self.ends[0]
        self.streams = [self._request() for _ in range(STREAMS)]
        self.cache: list[Any] = []

    def _request(self) -> Request:
        made = Request(self.random.randint(10, MOST_TOKENS))
        if self.load.kept:
            made.me = [bytes(BODY_BYTES)]
            made.me.append(made if self.load.cycles else made.me)
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
        if self.load.kept:
            request.tokens.append(made)
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
        self.cache.extend([number] for number in range(self.load.growth))
        if self.load.cycles:
            self.run.tasks += 1
            await asyncio.create_task(self._fails(self.streams[steps % STREAMS]))
        hole, own = spin_until(began + STEP_SECONDS * self.load.busy)
        self.run.holes_ms.append(hole * 1e3)
        self.run.own_holes_ms.append(own * 1e3)

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
            self.run.due.extend((int(due * 1e9), int(now * 1e9)))
            await self._step(steps)
            steps += 1
            due += STEP_SECONDS if self.load.paced else 0.0
            if clock() - due > BEHIND or not 0 < self.load.busy < 1:
                due = max(due, clock())
            if clock() >= remember:
                self.run.rss.append((clock() - start, resident()))
                remember += RSS_EVERY

    def drop(self) -> None:
        """All streams end, and no other begins."""
        self.streams.clear()
        self.ends = Request(0), Request(0)


def spin_until(end: float) -> tuple[float, float]:
    """What it does between the tokens. The longest time between two looks at the clock; at the thread's; seconds."""
    longest = longest_own = 0.0
    before, before_own = time.perf_counter(), time.thread_time()
    while before < end:
        json.dumps([1, 2, 3])
        now, own = time.perf_counter(), time.thread_time()
        longest, longest_own = max(longest, now - before), max(longest_own, own - before_own)
        before, before_own = now, own
    return longest, longest_own


def resident() -> int:
    """Bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def excess_ms(due: list[tuple[int, int]], pauses: list[tuple[int, int, int]]) -> tuple[list[float], list[float]]:
    """Of each step, what of its lateness lies in pauses: the part of a collection after the step was due. And without
    what the machine took from the pause."""
    found, own, first = [], [], 0
    for wanted, began in due:
        while first < len(pauses) and pauses[first][1] <= wanted:
            first += 1
        at, total, less = first, 0, 0
        while at < len(pauses) and pauses[at][0] < began:
            start, stop, taken = pauses[at]
            part = max(0, min(stop, began) - max(start, wanted))
            total += part
            less += max(0, part - taken)
            at += 1
        found.append(total / 1e6)
        own.append(less / 1e6)
    return found, own


def delay_ms(due: list[tuple[int, int]], pauses: list[tuple[int, int, int]]) -> list[float]:
    """Of each step but the last, by how much its pauses delayed the tokens of the next: what the step took beyond its
    time, at most the pauses in it. Unlike the excess, also where the loop fell so far behind that its steps are due
    anew."""
    found, first = [], 0
    for (_, began), (_, ended) in itertools.pairwise(due):
        while first < len(pauses) and pauses[first][1] <= began:
            first += 1
        inside = 0
        for start, stop, _ in itertools.takewhile(lambda pause, ended=ended: pause[0] < ended, pauses[first:]):  # type: ignore[misc]
            inside += min(stop, ended) - max(start, began)
        found.append(max(0, min(inside, ended - began - int(STEP_SECONDS * 1e9))) / 1e6)
    return found


def longest_turn_ms(due: list[tuple[int, int]]) -> float:
    """From the beginning of a step to that of the next."""
    return max(((later[1] - one[1]) / 1e6 for one, later in itertools.pairwise(due)), default=0.0)


class Pauses:
    """Of this process, read before its ring is full. Kept where the collector does not see them: that is measured."""

    def __init__(self, watch: tailwatch.Watch) -> None:
        self._records = snapshots.Records(watch.core.address)
        self._cursor = self._records.pauses(0, before_ns=time.monotonic_ns())[1]
        self._times = array("q")
        self._own_ms = numbers()
        self.lost = 0

    def read(self) -> None:
        """Those that have ended."""
        some, self._cursor, lost = self._records.pauses(self._cursor, before_ns=time.monotonic_ns())
        for each in some:
            length = each.stop_ns - each.start_ns
            taken = max(0, length - round(each.cpu * 1e9)) if each.cpu else 0  # 0: not measured
            self._times.extend((each.start_ns, each.stop_ns, taken))
            if each.cause == "gc_own" and each.cpu:
                self._own_ms.append(each.cpu * 1e3)
        self.lost += lost

    def found(self) -> list[tuple[int, int, int]]:
        """When each began and ended, in that order, and how long its thread had no processor meanwhile."""
        return sorted(zip(self._times[::3], self._times[1::3], self._times[2::3], strict=True))

    def own_ms(self) -> dict[str, float]:
        """What the policy's own pauses took of their threads' CPU; its slices, but for those made on request."""
        ordered = sorted(self._own_ms) or [0.0]
        places = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        found = {name: ordered[min(int(place * len(ordered)), len(ordered) - 1)] for name, place in places.items()}
        return {"count": len(self._own_ms), **found}

    async def keep_reading(self) -> None:
        """Twice a second."""
        while True:
            await asyncio.sleep(0.5)
            self.read()


def compute() -> None:
    """A thread that has work all the time and shares the interpreter every switch interval."""
    while True:
        json.dumps(list(range(100)))


def begin(policy: str) -> tailwatch.Watch:
    """The policy, with the long-lived heap as it is now."""
    left_alone = policy in (DISABLED, "observe")
    watch = tailwatch.install(role="engine", gc="observe" if left_alone else policy)
    if policy == DISABLED:
        gc.collect()
        gc.freeze()
        gc.disable()
    elif not left_alone:
        for _ in range(WARM_REQUESTS):  # the policy freezes when it has seen them, and not again
            use_the_loop()
    return watch


def use_the_loop() -> None:
    """A process that serves is known by its requests, and that it is idle by their end."""
    with tailwatch.stream(model="m"):
        pass


async def serve(server: Server, pauses: Pauses, seconds: float) -> int:
    """All of it. Tracked objects that are left in the end."""
    use_the_loop()
    reader = asyncio.create_task(pauses.keep_reading())
    await asyncio.sleep(IDLE_SECONDS)
    await server.serve(seconds)
    server.drop()
    use_the_loop()
    await asyncio.sleep(SETTLE_SECONDS)
    reader.cancel()
    return len(gc.get_objects())


def collected_ms(server: Server) -> float:
    """CPU that one collection of nothing but a request takes, the median of some: of the largest that the load has."""
    found = []
    gc.disable()
    for _ in range(REQUESTS_COLLECTED):
        gc.collect(1)
        server.streams = [server._request()]
        server.streams[0].left = MOST_TOKENS + 1
        for step in range(MOST_TOKENS):
            server._token(0, step + 1)
        server._end(server.streams.pop())
        began = time.thread_time()
        gc.collect(0)
        found.append((time.thread_time() - began) * 1e3)
    return sorted(found)[len(found) // 2]


def main(policy: str, load: str, seconds: float, seed: int, objects: int) -> dict[str, Any]:
    """One run. objects: of the heap that lives as long as the server."""
    still = not LOADS[load].kept and not LOADS[load].host_froze
    kept = heap(objects // 50 if still else objects)
    if LOADS[load].host_froze:
        gc.collect()
        gc.freeze()
    for _ in range(LOADS[load].threads):
        threading.Thread(target=compute, daemon=True).start()
    watch = begin(policy)
    frozen = gc.get_freeze_count()
    live = heap(LIVE)
    base = len(gc.get_objects())
    server = Server(LOADS[load], seed)
    pauses = Pauses(watch)
    before, cpu = watch.snapshot().paused, time.process_time()
    left = asyncio.run(serve(server, pauses, seconds))
    pauses.read()
    run = server.run
    due = list(zip(run.due[::2], run.due[1::2], strict=True))
    excess, own_excess = excess_ms(due, pauses.found())
    delay = delay_ms(due, pauses.found())
    found = {
        "policy": policy,
        "load": load,
        "seconds": seconds,
        "python": sys.version.split()[0],
        "late_ms": list(run.late_ms),
        "excess_ms": excess,
        "own_excess_ms": own_excess,
        "delay_ms": delay,
        "pauses_lost": pauses.lost,
        "own_ms": pauses.own_ms(),
        "longest_turn_ms": longest_turn_ms(due),
        "holes_ms": list(run.holes_ms),
        "own_holes_ms": list(run.own_holes_ms),
        "rss": run.rss,
        "steps": len(run.late_ms),
        "requests": run.requests,
        "tokens": run.tokens,
        "tasks": run.tasks,
        "new_objects_per_second": run.tokens * TOKEN_OBJECTS / run.rss[-1][0] if run.rss else 0.0,
        "frozen": frozen,
        "live_unfrozen": base,
        "left": left,
        "cpu_seconds": time.process_time() - cpu,
        "paused": {cause: after - before.get(cause, 0.0) for cause, after in watch.snapshot().paused.items()},
        "status": asdict(tailwatch.gc_status()),
        "things": [len(kept), len(live)],
    }
    tailwatch.uninstall()
    return found | {"request_collected_ms": collected_ms(server)}


def tracked_in(value: Any) -> int:
    """Itself and what it holds, where the collector has it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return int(gc.is_tracked(value)) + sum(map(tracked_in, inner))


TOKEN_OBJECTS = tracked_in(token(1))

if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))))
