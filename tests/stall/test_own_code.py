"""What a request that is stamped by hand runs before its first token is its own code, on asyncio and uvloop. Of uvloop
the handles are timed while a request waits for its first token, and the host is as without that."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import itertools
import os
import sys
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.gc import idle_hooks

from ..support.waiting import until
from .test_planted import HAS_UVLOOP, LOOPS

WORK, ENGINE, SHORT = 0.08, 0.03, 0.001  # seconds
PACE = 0.002  # from one token to the next
OTHERS = ("callback", "cpu", "gil")  # of a handle beside a thread

needs_uvloop = pytest.mark.skipif(not HAS_UVLOOP, reason="pip install uvloop")
numbers = itertools.count(1)


@pytest.fixture
def watch() -> Iterator[tailwatch.Watch]:
    """Installed; undone at the end."""
    yield tailwatch.install(role="api", gc="off", slo="ttft<=20ms")
    assert tailwatch.uninstall() == []


def new_loop(kind: Any = "uvloop") -> Any:
    if kind == "asyncio":
        return asyncio.new_event_loop()
    return importlib.import_module("uvloop").new_event_loop()


def run(main: Callable[[], Awaitable[Any]], kind: Any = "uvloop") -> Any:
    """In a loop that is new, and closed afterwards."""
    loop = new_loop(kind)
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def spin(seconds: float = WORK) -> None:
    until_then = time.thread_time() + seconds
    while time.thread_time() < until_then:
        pass


class Seen(NamedTuple):
    """A first token: its TTFT, and by cause what it was charged to; seconds. names: of its own code."""

    ttft: float
    causes: dict[str, float]
    names: str

    def of(self, *causes: str) -> float:
        """Charged to them."""
        return sum(self.causes.get(cause, 0.0) for cause in causes)


async def handler() -> None:
    """In the block itself."""
    spin()


async def child() -> None:
    """In a task that the block starts."""
    await asyncio.get_running_loop().create_task(handler())


async def steps() -> None:
    """In several steps of its task."""
    for _ in range(4):
        spin(WORK / 4)
        await asyncio.sleep(0)


async def thread() -> None:
    """In no handle of the loop."""
    await asyncio.to_thread(time.sleep, WORK)


async def neighbour(begin: asyncio.Event) -> None:
    """A task of no request that works once it may."""
    await begin.wait()
    spin()


async def first_token(watch: tailwatch.Watch, work: Callable[[], Awaitable[None]] | None) -> Seen:
    """A request by hand that works, waits for its engine (a timer) and has a token. work None: it has none, and as its
    engine (a thread) is ready a task of no request runs."""
    watch.host.use_loop()
    begin = asyncio.Event()
    other = asyncio.get_running_loop().create_task(neighbour(begin))
    await asyncio.sleep(0)  # handles are timed from the next one on
    name = f"request-{next(numbers)}"
    with tailwatch.stream(model="m", request_id=name) as stream:
        if work is None:
            begin.set()
            await asyncio.to_thread(time.sleep, ENGINE)
        else:
            await work()
            await asyncio.sleep(ENGINE)
        stream.token()
    begin.set()
    await other
    late = next(each for each in tailwatch.why() if each.request_id == name and each.phase == "ttft")
    causes: dict[str, float] = {}
    for part in late.causes:
        causes[part.cause] = causes.get(part.cause, 0.0) + part.seconds
    assert sum(causes.values()) == pytest.approx(late.gap, abs=1e-8)
    return Seen(late.gap, causes, " ".join(part.name for part in late.causes if part.cause == "own_code"))


def settle(kind: Any, watch: tailwatch.Watch, work: Any, holds: Callable[[Seen], bool]) -> None:
    """One of a few holds: other work of the machine splits a handle's time."""
    tried = []
    for _ in range(8):
        tried.append(run(lambda: first_token(watch, work), kind))
        if holds(tried[-1]):
            return
    raise AssertionError(tried)


@pytest.mark.parametrize("work", [handler, child, steps])
@pytest.mark.parametrize("kind", LOOPS)
def test_own_code_of_a_request_by_hand_is_named(kind: Any, work: Any, watch: tailwatch.Watch) -> None:
    """In the block, in a task that it starts, in several steps: for as long as it ran. Its wait stays upstream."""

    def holds(seen: Seen) -> bool:
        own = seen.of("own_code") == pytest.approx(WORK, rel=0.1, abs=0.005)
        return own and seen.of("upstream") >= 0.9 * ENGINE and "spin" in seen.names

    settle(kind, watch, work, holds)


@pytest.mark.parametrize("kind", LOOPS)
def test_what_a_thread_does_is_not_its_own(kind: Any, watch: tailwatch.Watch) -> None:
    """No handle of the loop ran meanwhile: upstream."""
    seen = run(lambda: first_token(watch, thread), kind)
    assert seen.of("own_code") < 0.1 * WORK
    assert seen.of("upstream") + seen.of(*OTHERS) >= 0.9 * (WORK + ENGINE)


@pytest.mark.parametrize("kind", LOOPS)
def test_of_two_streams_in_one_task_the_later_one_ran_it(kind: Any, watch: tailwatch.Watch) -> None:
    """In the handle in which both are opened."""

    async def both() -> None:
        watch.host.use_loop()
        await asyncio.sleep(0)  # handles are timed from the next one on
        with (
            tailwatch.stream(model="m", request_id="earlier") as earlier,
            tailwatch.stream(model="m", request_id="later") as later,
        ):
            spin()
            await asyncio.sleep(ENGINE)
            later.token()
            earlier.token()

    run(both, kind)
    own = {each.request_id: sum(c.seconds for c in each.causes if c.cause == "own_code") for each in tailwatch.why()}
    assert own["earlier"] < 0.1 * WORK < 0.5 * WORK < own["later"]


def test_a_block_that_is_dropped_keeps_no_stream(watch: tailwatch.Watch) -> None:
    """The context in which it was entered has forgotten it."""
    context = contextvars.copy_context()
    stream = context.run(lambda: tailwatch.stream().__enter__())
    assert tailwatch.snapshot().in_flight == 1
    del stream
    assert tailwatch.snapshot().in_flight == 0 and len(list(context)) > 0


@pytest.mark.parametrize("kind", LOOPS)
def test_what_others_run_is_not_its_own(kind: Any, watch: tailwatch.Watch) -> None:
    """While its token becomes ready: the other code of the loop, not upstream."""

    def holds(seen: Seen) -> bool:
        ran = seen.of("callback") >= 0.7 * WORK and seen.of(*OTHERS) >= 0.9 * WORK
        return ran and seen.of("own_code", "upstream") < 0.1 * WORK

    settle(kind, watch, None, holds)


async def late_between_tokens(watch: tailwatch.Watch) -> list[dict[str, float]]:
    """A stream that works before one of its later tokens, and waits for another task before the next one: the causes of
    both."""
    watch.host.use_loop()
    begin = asyncio.Event()
    other = asyncio.get_running_loop().create_task(neighbour(begin))
    name = f"request-{next(numbers)}"
    with tailwatch.stream(model="m", request_id=name) as stream:
        for number in range(30):
            await asyncio.sleep(PACE)
            if number == 20:
                spin()
            elif number == 25:
                begin.set()
                await other
            stream.token()
    found: list[dict[str, float]] = []
    late = [each for each in tailwatch.why() if each.request_id == name and each.gap > WORK]
    for each in sorted(late, key=lambda each: each.token):
        found.append(
            {cause: sum(c.seconds for c in each.causes if c.cause == cause) for cause in ("own_code", *OTHERS)}
        )
    return found


@pytest.mark.parametrize("kind", LOOPS)
def test_own_code_between_tokens_is_separated(kind: Any, watch: tailwatch.Watch) -> None:
    """From what another task ran: on uvloop by the context of the samples."""

    def holds() -> bool:
        late = run(lambda: late_between_tokens(watch), kind)
        if len(late) != 2:
            return False
        own, others = late
        apart = own["callback"] < 0.2 * WORK and others["own_code"] < 0.2 * WORK
        return apart and own["own_code"] >= 0.7 * WORK and others["callback"] >= 0.7 * WORK

    until(holds)


# ---- uvloop as a host ----


@needs_uvloop
def test_handles_of_uvloop_are_timed_while_a_request_waits(watch: tailwatch.Watch) -> None:
    """However short, by function, file and line; without such a request nothing is noted."""

    async def names(waits: bool) -> str:
        watch.host.use_loop()
        await asyncio.sleep(0.002)
        stream = tailwatch.stream(model="m").__enter__() if waits else None
        began = _hot.now()
        asyncio.get_running_loop().call_soon(spin, SHORT)
        await asyncio.sleep(0.005)
        split = watch.core.split_host(began, _hot.now())
        if stream is not None:
            stream.close()
        assert split is not None
        return " ".join(part[3] for part in split[0])

    handle = f"spin  test_own_code.py:{spin.__code__.co_firstlineno}"  # a sample has the line that it found
    assert handle not in run(lambda: names(False))
    until(lambda: handle in run(lambda: names(True)))
    assert watch.core.host_status()["sources"]["handle_clock"] == "known"


def behaviour(prepare: Callable[[], None]) -> list[str]:
    """What the host of a loop sees of its handles: order, errors with their tracebacks, contexts, ends of objects."""
    seen: list[str] = []
    timers: list[str] = []  # apart: when they come depends on the machine
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    loop = new_loop()

    class Tracked:
        """Its end is seen."""

    def tracked(what: str) -> Tracked:
        made = Tracked()
        weakref.finalize(made, seen.append, f"{what} ended")
        return made

    def fail() -> None:
        raise ValueError("planted")

    def report(_: object, context: dict[str, Any]) -> None:
        error = context["exception"]
        seen.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))

    def note(what: str) -> None:
        seen.append(f"{what} {variable.get()}")

    async def step(what: str) -> Tracked:
        variable.set(what)
        await asyncio.sleep(0)
        note(what)
        return tracked(f"the result of {what}")

    async def main() -> None:
        prepare()
        loop.call_soon(lambda _: seen.append("has it"), tracked("an argument"))
        loop.call_soon(note, "after it")
        loop.call_soon(fail)
        context = contextvars.copy_context()
        context.run(variable.set, "own")
        loop.call_soon(note, "in a context", context=context)
        loop.call_soon(note, "cancelled").cancel()
        loop.call_later(0.001, timers.append, "by a timer")
        loop.call_soon_threadsafe(note, "as from a thread")
        await asyncio.gather(step("a"), step("b"))
        await asyncio.sleep(0.005)
        seen.append(repr(await asyncio.gather(asyncio.wait_for(loop.create_future(), 0.001), return_exceptions=True)))

    async def interrupted() -> None:
        loop.call_soon(_interrupt)
        await asyncio.sleep(0.01)

    loop.set_exception_handler(report)
    loop.run_until_complete(main())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(interrupted())
    loop.run_until_complete(step("after an interrupt"))
    loop.run_until_complete(asyncio.sleep(0.02))  # what was interrupted has ended
    loop.call_soon(note, "never")
    loop.close()
    return [*seen, *timers]


def _interrupt() -> None:
    raise KeyboardInterrupt


@needs_uvloop
@pytest.mark.parametrize("waits", [False, True])
def test_the_host_is_as_without_it(waits: bool, watch: tailwatch.Watch) -> None:
    """Line by line, whether handles are timed or not."""
    timed: list[bool] = []

    def prepare() -> None:
        watch.host.use_loop()
        timed.append(idle_hooks._uv_queue(asyncio.get_running_loop()) is None)

    plain = behaviour(lambda: None)
    stream = tailwatch.stream(model="m").__enter__() if waits else None
    assert behaviour(prepare) == plain
    if stream is not None:
        stream.close()
    assert timed == [True]
    assert any("planted" in line for line in plain) and plain[-1] == "by a timer"


@needs_uvloop
@pytest.mark.parametrize("waits", [False, True])
def test_the_queue_is_given_back(waits: bool) -> None:
    """At once, while handles wait in it."""
    watch = tailwatch.install(role="api", gc="off")
    seen: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        queue: Any = idle_hooks._uv_queue(loop)
        plain = type(queue)
        watch.host.use_loop()
        await asyncio.sleep(0)
        assert type(queue) is not plain and isinstance(queue, plain)
        if waits:
            tailwatch.stream(model="m").__enter__()
        for number in range(3):
            loop.call_soon(seen.append, number)
        assert tailwatch.uninstall() == []
        assert type(queue) is plain and len(queue) >= 3
        await asyncio.sleep(0)
        assert seen == [0, 1, 2]

    run(main)


@needs_uvloop
def test_loops_come_and_go(watch: tailwatch.Watch) -> None:
    """Nothing of a loop that was closed is kept."""

    async def main() -> tuple[Any, type]:
        queue = idle_hooks._uv_queue(asyncio.get_running_loop())
        watch.host.use_loop()
        with tailwatch.stream(model="m"):
            await asyncio.sleep(0.001)
        return queue, type(queue)

    def once() -> tuple[type, type]:
        queue, kind = run(main)
        return kind, type(queue)

    kind, plain = once()
    assert kind is not plain
    gc.collect()
    before = sys.getrefcount(kind), sys.getrefcount(plain), sys.getrefcount(main.__code__)
    for _ in range(5):
        assert once() == (kind, plain)
        gc.collect()
    assert (sys.getrefcount(kind), sys.getrefcount(plain), sys.getrefcount(main.__code__)) == before


@needs_uvloop
def test_a_fork_child_goes_on_without_it(watch: tailwatch.Watch) -> None:
    """In the midst of a handle that is timed: what the child takes from the queue is recorded nowhere."""

    async def main() -> int:
        queue: Any = idle_hooks._uv_queue(asyncio.get_running_loop())
        watch.host.use_loop()
        await asyncio.sleep(0.001)
        stream = tailwatch.stream(model="m").__enter__()
        asyncio.get_running_loop().call_soon(spin)
        child = os.fork()
        if child == 0:
            taken = [queue.popleft() for _ in range(len(queue))]
            spin(0.01)
            os._exit(0 if "spin" in repr(taken) and watch.core.host_status()["tracks"] == 0 else 1)
        stream.close()
        return child

    assert os.waitstatus_to_exitcode(os.waitpid(run(main), 0)[1]) == 0
