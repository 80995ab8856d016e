"""The clock of an asyncio loop's handles: what ran is named, the request's own code is distinguished from others', and
the host is as without it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import io
import logging
import os
import re
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot

from ..support.waiting import until

SHORT = 0.001  # of a handle that no sample of the watchdog's can name
LONG = 0.012
Part = tuple[str, int, str, str, str]


@pytest.fixture
def watch() -> Iterator[tailwatch.Watch]:
    """Installed; undone at the end."""
    yield tailwatch.install(role="api", gc="off")
    assert tailwatch.uninstall() == []


def run(main: Callable[[], Any], loop: asyncio.AbstractEventLoop | None = None) -> Any:
    """In a loop that is new and closed afterwards, or in this one."""
    used = loop or asyncio.new_event_loop()
    try:
        return used.run_until_complete(main())
    finally:
        if loop is None:
            used.close()


def queue_of(loop: Any) -> Any:
    return loop._ready


def is_timed(loop: Any) -> bool:
    return type(queue_of(loop)) is not deque


def spin(seconds: float = SHORT) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Thing:
    def method(self) -> None:
        spin()

    async def step(self) -> None:
        spin()


async def woken(future: asyncio.Future[None]) -> None:
    await future
    spin()


def by_callback(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(spin)


def by_method(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(Thing().method)


def by_partial(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(functools.partial(functools.partial(spin, SHORT)))


def by_timer(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(0.001, spin)


def by_another_thread(loop: asyncio.AbstractEventLoop) -> None:
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(spin,))
    thread.start()
    thread.join()


kept: list[object] = []


def by_first_step(loop: asyncio.AbstractEventLoop) -> None:
    kept.append(loop.create_task(Thing().step()))


def by_later_step(loop: asyncio.AbstractEventLoop) -> None:
    future = loop.create_future()
    kept.append(loop.create_task(woken(future)))
    loop.call_soon(future.set_result, None)


def by_eager_task(loop: Any) -> None:
    future = loop.create_future()
    kept.append(asyncio.eager_task_factory(loop, woken(future)))  # type: ignore[attr-defined,unused-ignore]
    loop.call_soon(future.set_result, None)


WITH_EAGER = pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks from Python 3.12 on")
EAGER = pytest.param(by_eager_task, "woken", marks=WITH_EAGER)


@pytest.mark.parametrize(
    "start, name",
    [
        (by_callback, "spin"),
        (by_method, "Thing.method"),
        (by_partial, "spin"),
        (by_timer, "spin"),
        (by_another_thread, "spin"),
        (by_first_step, "Thing.step"),
        (by_later_step, "woken"),
        EAGER,
    ],
)
def test_what_ran_is_named_however_short(
    start: Callable[[asyncio.AbstractEventLoop], None], name: str, watch: tailwatch.Watch
) -> None:
    """By function, file and line, and for as long as it ran: measured, no sample is needed. Where it has a CPU: a short
    handle's time in the run queue is not separated from its neighbours'."""

    async def main() -> list[Part]:
        watch.host.use_loop()
        await asyncio.sleep(0.002)
        began = _hot.now()
        start(asyncio.get_running_loop())
        await asyncio.sleep(0.005)
        split = watch.core.split_host(began, _hot.now())
        assert split is not None
        return split[0]

    if sys.version_info < (3, 11):
        name = name.rpartition(".")[2]  # a code object has no qualified name
    expected = re.compile(rf"{name}  test_handles\.py:\d+$")

    def found() -> bool:
        parts = [part for part in run(main) if expected.match(part[3])]
        kept.clear()
        assert {(part[0], part[2]) for part in parts} <= {("callback", "measured")}
        return sum(part[1] for part in parts) / 1e9 == pytest.approx(SHORT, rel=0.2)

    until(found)


async def late_token(watch: tailwatch.Watch) -> list[tuple[str, float, str]]:
    """The causes of the one late token of a stream: another task ran while it was ready, then its own."""
    watch.host.use_loop()

    async def neighbour() -> None:
        await asyncio.sleep(0)
        spin(2 * LONG)

    outside = contextvars.copy_context()
    with tailwatch.stream(model="m") as stream:
        for _ in range(40):
            stream.token()
            await asyncio.sleep(0.002)
        stream.token()
        task = outside.run(asyncio.get_running_loop().create_task, neighbour())
        for _ in range(2):
            await asyncio.sleep(0)
        spin(LONG)
        stream.token()
        await task
    latest = max(tailwatch.why(), key=lambda late: late.gap)
    return [(part.cause, part.seconds, part.name) for part in latest.causes]


def test_own_code_is_distinguished_from_that_of_others(watch: tailwatch.Watch) -> None:
    """In any server: what ran in the task that sends is its own, another's has its name. In which of two handles a
    thread waited for a CPU is not known: both have a share of that."""
    causes = run(lambda: late_token(watch))
    sums: dict[str, float] = {}
    for cause, seconds, _ in causes:
        sums[cause] = sums.get(cause, 0) + seconds
    waited = sums.get("cpu", 0) / sum(sums.values())
    assert sums["own_code"] / sums["callback"] == pytest.approx(0.5, rel=0.2 + waited), causes
    assert sums["callback"] == pytest.approx(2 * LONG, rel=0.35)
    assert any(cause == "callback" and "neighbour" in name for cause, _, name in causes), causes


def test_earlier_steps_are_own_code(watch: tailwatch.Watch) -> None:
    """Of the task that runs, however often it gave way meanwhile."""

    async def other() -> None:
        for _ in range(2):
            spin(LONG)
            await asyncio.sleep(0)

    async def main() -> list[Part]:
        watch.host.use_loop()
        await asyncio.sleep(0)  # the handle that runs now is timed from the next one on
        task = asyncio.get_running_loop().create_task(other())
        began = _hot.now()
        for _ in range(3):
            spin(LONG)
            await asyncio.sleep(0)
        split = watch.core.split_host(began, _hot.now())
        await task
        assert split is not None
        return split[0]

    parts = run(main)
    sums = {cause: sum(part[1] for part in parts if part[0] == cause) / 1e9 for cause in ("own_code", "callback")}
    assert sums["own_code"] == pytest.approx(3 * LONG, rel=0.25), parts
    assert sums["callback"] == pytest.approx(2 * LONG, rel=0.25)


# ---- the host is as it was ----


class Tracked:
    """What a handle is given; its end is seen."""


class Described(str):
    """What a context holds; its end is seen."""


def masked(text: str) -> str:
    """Without addresses, times and numbers of tasks."""
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    return re.sub(r"\d+\.\d+ seconds|Task-\d+|when=[\d.]+", "-", text)


def behaviour(prepare: Callable[[asyncio.AbstractEventLoop], None], debug: bool) -> list[str]:
    """What a loop's host sees of its handles: order, errors and their tracebacks, contexts, ends of objects, logs."""
    seen: list[str] = []
    timers: list[str] = []
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("asyncio").addHandler(handler)
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    loop = asyncio.new_event_loop()
    loop.set_debug(debug)
    loop.slow_callback_duration = 0.005

    def fail() -> None:
        raise ValueError("planted")

    def report(_: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        seen.append(masked(f"{context['message']} {context.get('handle')!r}"))
        seen.append("".join(traceback.format_exception(type(error), error, error.__traceback__ if error else None)))

    def stack() -> None:
        seen.append(" < ".join(f"{frame.name}" for frame in traceback.extract_stack()))

    def warn() -> None:
        warnings.warn("planted", stacklevel=2)

    def note(what: str) -> None:
        seen.append(f"{what} {variable.get()}")

    async def child(what: str) -> str:
        variable.set(what)
        await asyncio.sleep(0)
        note(f"child {what}")
        return what

    async def main() -> None:
        prepare(loop)
        tracked = Tracked()
        weakref.finalize(tracked, seen.append, "ended")
        loop.call_soon(lambda _: seen.append("has it"), tracked)
        del tracked
        loop.call_soon(note, "after it")
        for call in (fail, stack, warn):
            loop.call_soon(call)
        context = contextvars.copy_context()
        context.run(variable.set, "own")
        loop.call_soon(note, "in a context", context=context)
        held = contextvars.copy_context()
        held.run(variable.set, Described())
        weakref.finalize(held[variable], seen.append, "what a context held ended")
        loop.call_soon(note, "in a context that ends", context=held)
        del held
        loop.call_soon(note, "cancelled").cancel()
        now = loop.time()
        for wait in (0.004, 0.002, 0.002):
            loop.call_at(now + wait, timers.append, f"timer {wait}")
        loop.call_later(0.001, note, "cancelled timer").cancel()
        loop.call_soon(time.sleep, 0.006)
        seen.extend(await asyncio.gather(child("a"), child("b")))
        failed = await asyncio.gather(asyncio.wait_for(loop.create_future(), 0.001), return_exceptions=True)
        seen.append(repr(failed))
        while len(timers) < 3:
            await asyncio.sleep(0.001)
        seen.append(repr(queue_of(loop)))
        seen.append(repr(queue_of(loop).copy() == queue_of(loop)))

    async def give() -> Tracked:
        result = Tracked()
        weakref.finalize(result, seen.append, "the result ended")
        return result

    try:
        loop.set_exception_handler(report)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop.run_until_complete(main())
            loop.run_until_complete(give())
        seen.extend(f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in caught)
        seen.append(f"{len(queue_of(loop))} left")
        loop.call_soon(note, "never")
        with pytest.raises(ZeroDivisionError):
            loop.run_until_complete(_divide())
        loop.close()
        with pytest.raises(RuntimeError) as closed:
            loop.call_soon(note, "closed")
        seen.append(str(closed.value))
        with pytest.raises(IndexError) as empty:
            queue_of(loop).popleft()
        seen.append(str(empty.value))
    finally:
        logging.getLogger("asyncio").removeHandler(handler)
    slow = [line for line in masked(log.getvalue()).splitlines() if "sleep(" in line]  # not what a busy machine slows
    return [*seen, *timers, "\n".join(slow)]


async def _divide() -> float:
    return 1 / 0


@pytest.mark.parametrize("debug", [False, True])
def test_the_host_is_as_without_it(debug: bool, watch: tailwatch.Watch) -> None:
    """Order, errors with their tracebacks, stacks, warnings' places, contexts, cancelled handles, ends of objects, the
    log of debug mode: equal, line by line."""
    timed: list[bool] = []

    def prepare(loop: asyncio.AbstractEventLoop) -> None:
        watch.host.use_loop()
        timed.append(is_timed(loop))

    plain = behaviour(lambda _: None, debug)
    assert behaviour(prepare, debug) == plain
    assert timed == [True]
    assert any("planted" in line and "_run" in line for line in plain)
    assert ("took" in plain[-1]) == debug


def test_an_interrupt_leaves_the_loop_as_it_does(watch: tailwatch.Watch) -> None:
    """KeyboardInterrupt and SystemExit pass through a handle and the loop, which goes on afterwards."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        watch.host.use_loop()
        loop.call_soon(_interrupt)
        await asyncio.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(main())
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()


def _interrupt() -> None:
    raise KeyboardInterrupt


# ---- it comes and goes ----


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_queue_is_given_back(elsewhere: bool) -> None:
    """At once, while handles wait in it, also by another thread."""
    watch = tailwatch.install(role="api", gc="off")
    seen: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watch.host.use_loop()
        queue = queue_of(loop)
        assert is_timed(loop) and isinstance(queue, deque)
        for number in range(3):
            loop.call_soon(seen.append, number)
        if elsewhere:
            await asyncio.to_thread(tailwatch.uninstall)
        else:
            assert tailwatch.uninstall() == []
        assert not is_timed(loop) and queue_of(loop) is queue
        await asyncio.sleep(0.001)
        assert seen == [0, 1, 2]

    run(main)


def test_the_queue_is_given_back_though_the_selector_was_wrapped() -> None:
    """By other code, after us: our select() stays inside its wrapper, the queue is as before."""
    watch = tailwatch.install(role="api", gc="off")
    loop: Any = asyncio.new_event_loop()

    async def main() -> None:
        watch.host.use_loop()
        assert is_timed(loop)
        inside = loop._selector.select
        loop._selector.select = lambda timeout: inside(timeout)
        assert "wrapped by other code" in " ".join(tailwatch.uninstall())
        assert not is_timed(loop)
        await asyncio.sleep(0.001)

    run(main, loop)
    loop.close()


def test_loops_come_and_go(watch: tailwatch.Watch) -> None:
    """Closed or only dropped: nothing of a loop is kept, its queue is a plain deque again."""

    async def main() -> tuple[Any, type]:
        watch.host.use_loop()
        loop = asyncio.get_running_loop()
        return queue_of(loop), type(queue_of(loop))

    queue, kind = run(main)
    assert type(queue) is deque
    gc.collect()
    before = sys.getrefcount(kind), sys.getrefcount(deque), sys.getrefcount(main.__code__)
    for _ in range(5):
        run(main)
        dropped = asyncio.new_event_loop()
        known = weakref.ref(dropped)
        dropped.run_until_complete(main())
        for held in (dropped._selector, dropped._ssock, dropped._csock):  # type: ignore[attr-defined]
            held.close()
        dropped._closed = True  # type: ignore[attr-defined]
        del dropped, held
        gc.collect()
        assert known() is None
    assert (sys.getrefcount(kind), sys.getrefcount(deque), sys.getrefcount(main.__code__)) == before


def test_several_loops_of_one_thread(watch: tailwatch.Watch) -> None:
    """Each queue is timed, by turns."""
    loops = [asyncio.new_event_loop() for _ in range(6)]

    async def main() -> bool:
        watch.host.use_loop()
        began = _hot.now()
        asyncio.get_running_loop().call_soon(spin)
        await asyncio.sleep(0.001)
        split = watch.core.split_host(began, _hot.now())
        return split is not None and any("spin" in part[3] for part in split[0])

    for _ in range(2):
        for loop in loops:
            until(lambda loop=loop: run(main, loop))  # type: ignore[misc]
    for loop in loops:
        loop.close()
        assert not is_timed(loop)


def test_a_queue_of_another_kind_is_left_alone(watch: tailwatch.Watch) -> None:
    """A loop of others may have one: it is not timed, and that is reported."""

    class Own(deque):  # type: ignore[type-arg]
        pass

    async def main() -> None:
        watch.host.use_loop()

    loop: Any = asyncio.new_event_loop()
    loop._ready = Own()
    run(main, loop)
    assert type(loop._ready) is Own
    assert watch.core.host_status()["sources"]["handle_clock"] == "absent"
    loop.close()


def test_types_without_a_sample_have_no_name(watch: tailwatch.Watch) -> None:
    """A subclass of Task, an object with __call__, a function of C: measured, not named."""

    class Callable_:
        def __call__(self) -> None:
            spin()

    class OwnTask(asyncio.Task):  # type: ignore[type-arg]
        pass

    async def main() -> list[Part]:
        watch.host.use_loop()
        await asyncio.sleep(0.002)
        began = _hot.now()
        loop = asyncio.get_running_loop()
        loop.call_soon(Callable_())
        loop.call_soon(time.sleep, SHORT)
        await OwnTask(Thing().step(), loop=loop)
        split = watch.core.split_host(began, _hot.now())
        assert split is not None
        return split[0]

    # On a machine so busy that one of them takes more than 4 ms, the watchdog samples it.
    until(lambda: not any("test_handles" in part[3] and "main" not in part[3] for part in run(main)))


def test_a_fork_child_goes_on_without_it(watch: tailwatch.Watch) -> None:
    """In the midst of a handle: what the child takes from the queue is recorded nowhere."""

    async def main() -> int:
        watch.host.use_loop()
        await asyncio.sleep(0.001)
        loop = asyncio.get_running_loop()
        loop.call_soon(spin)
        child = os.fork()
        if child == 0:
            taken = queue_of(loop).popleft()
            spin()
            os._exit(0 if "spin" in repr(taken) and watch.core.host_status()["tracks"] == 0 else 1)
        return child

    assert os.waitstatus_to_exitcode(os.waitpid(run(main), 0)[1]) == 0
