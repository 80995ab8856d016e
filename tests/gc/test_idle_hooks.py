"""Loops that wait run slices: they answer as soon, wait as long, and are restored whole."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.gc.idle_hooks import idle_slots_of

from ..support.process import Script
from ..support.waiting import until, until_async
from .leaves_loops import installed
from .slicing import begin, end

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
OLD = 200_000  # objects: some hundreds of slices


@pytest.fixture
def slicer() -> Iterator[_hot.Slicer]:
    """One that can read the lists, with an old heap to go through; automatic collections are off."""
    policy = begin()
    old = [[] for _ in range(OLD)]  # type: ignore[var-annotated]
    gc.collect()
    while not policy.slicer.counts()["cycles"]:  # it has counted how many there are
        policy.slicer.slice(100_000)
    policy.slicer.on = True
    yield policy.slicer
    policy.slicer.on = False
    end(policy)
    assert len(old) == OLD


def new_uvloop() -> Any:
    """The name of the module is not known to the type checker where it is not installed."""
    uvloop = importlib.import_module("uvloop")
    return uvloop.new_event_loop()


LOOPS = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(new_uvloop, id="uvloop", marks=pytest.mark.skipif(not HAS_UVLOOP, reason="pip install uvloop")),
]
New = Callable[[], Any]


def slices_of(slicer: _hot.Slicer) -> int:
    return slicer.counts()["idle"]


class Registers(asyncio.Protocol):
    """Has another socket watched as its own is read: uvloop calls it while it asks for events, and waits after it."""

    def __init__(self, slicer: _hot.Slicer, other: socket.socket) -> None:
        self.slicer = slicer
        self.other = other
        self.slices = 0  # before
        self.loop = asyncio.get_running_loop()
        self.between: asyncio.Future[int] = self.loop.create_future()

    def data_received(self, data: bytes) -> None:
        self.slicer.round()
        self.slices = slices_of(self.slicer)
        self.loop.add_reader(self.other, self.seen)

    def seen(self) -> None:
        self.loop.remove_reader(self.other)
        self.between.set_result(slices_of(self.slicer) - self.slices)


async def slices_between(slicer: _hot.Slicer) -> int:
    """Made between a socket's registration, with bytes in it, and its answer."""
    (first, one), (second, other) = socket.socketpair(), socket.socketpair()
    other.send(b"x")
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_accepted_socket(lambda: Registers(slicer, second), first)
    await asyncio.sleep(0.02)
    one.send(b"x")
    between = await protocol.between
    transport.close()
    await asyncio.sleep(0.05)
    for each in (first, one, second, other):
        each.close()
    return between


@pytest.mark.parametrize("new", LOOPS)
def test_a_socket_registered_just_now_is_answered_within_a_slice(slicer: _hot.Slicer, new: New) -> None:
    """libuv passes it to the kernel only as the wait begins: the slicer may not go on for long before that."""
    loop = new()

    async def serve() -> list[int]:
        moments = idle_slots_of(loop, slicer)
        for _ in range(20):
            await asyncio.sleep(0.02)  # long waits: many slices fit into the next one
        between = [await slices_between(slicer) for _ in range(5)]
        assert slices_of(slicer) > 20, "there was nothing to do"
        assert moments.restore() is None
        return between

    assert max(loop.run_until_complete(serve())) <= 1
    loop.close()


class Recorded(selectors.EpollSelector):
    """One that records with which timeouts it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.timeouts.append(timeout)
        return super().select(timeout)


def test_a_wait_ends_when_it_would_have(slicer: _hot.Slicer) -> None:
    """epoll counts in milliseconds, and rounds up: what is left after a slice is waited for to the nanosecond. A wait
    too long by the rounding would be so each time, one that the machine delays is not."""
    selector = Recorded()
    wait = slicer.select(selector)
    late: list[float] = []
    swept = 0
    while len(late) < 60 or (min(late) >= 0.0002 and len(late) < 5000):
        slicer.round()
        before, selector.timeouts[:] = slices_of(slicer), []
        began = time.monotonic()
        assert wait(0.0031) == []
        late.append(time.monotonic() - began - 0.0031)
        if slices_of(slicer) > before:
            swept += 1
            assert selector.timeouts == [0]
    assert swept > 0
    assert 0 <= min(late) < 0.0002
    selector.close()


def test_the_young_do_not_pile_up_where_slices_were_delayed(slicer: _hot.Slicer) -> None:
    """As many old objects die as new ones come, and slices took long for a while: those after that are small again."""
    selector = selectors.EpollSelector()
    wait = slicer.select(selector)
    delayed = True

    def unlisted(phase: str, info: dict[str, int]) -> None:
        until = time.thread_time() + 0.01
        while delayed and time.thread_time() < until:
            pass

    kept = [[] for _ in range(60_000)]  # type: list[list[Any]]
    gc.collect()
    gc.callbacks.append(unlisted)
    young = []
    try:
        for turn in range(150):
            delayed = turn < 60
            kept.extend([] for _ in range(600))
            del kept[:600]
            young.append(len(gc.get_objects(generation=0)))
            wait(0.003)
    finally:
        gc.callbacks.remove(unlisted)
    assert max(young[65:]) < 8_000
    selector.close()


@pytest.mark.parametrize("timeout", [None, -1.0, 0, 0.0, 1e-9, 0.001])
def test_a_selector_is_asked_as_it_would_have_been(slicer: _hot.Slicer, timeout: float | None) -> None:
    """Where there is nothing to do; by position and by name."""
    slicer.on = False
    selector = Recorded()
    ready, other = socket.socketpair()
    selector.register(ready, selectors.EVENT_READ)
    other.send(b"x")
    wait = slicer.select(selector)
    for found in (wait(timeout), wait(timeout=timeout)):
        ((key, events),) = found
        assert key.fileobj is ready and events == selectors.EVENT_READ
    assert selector.timeouts == [timeout, timeout]
    with pytest.raises(TypeError):
        wait(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        wait("soon")  # type: ignore[arg-type]
    selector.close()
    ready.close()
    other.close()


def test_an_earlier_select_is_passed_through_and_put_back(slicer: _hot.Slicer) -> None:
    """One that was put there before us is called, and is there again afterwards."""
    loop = asyncio.new_event_loop()
    selector: Any = loop._selector  # type: ignore[attr-defined]
    asked = []
    theirs = selector.select

    def counted(timeout: float | None = None) -> Any:
        asked.append(timeout)
        return theirs(timeout)

    selector.select = counted
    moments = idle_slots_of(loop, slicer)
    loop.call_soon(loop.stop)
    loop.run_forever()  # one turn, with one wait
    assert asked
    assert moments.restore() is None
    assert selector.select is counted
    loop.close()


class Engine(threading.Thread):
    """Works in the interpreter until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            sum(range(100))

    def waited(self) -> float:
        """Seconds for which it could run and had no processor."""
        with open(f"/proc/self/task/{self.native_id}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9


@pytest.mark.parametrize("new", LOOPS)
def test_while_a_thread_works_a_loop_that_waits_is_not_idle(slicer: _hot.Slicer, new: New) -> None:
    """An engine in a thread of its own has the interpreter first: slices of a wait in a row would all be its delay."""
    loop, engine = new(), Engine()

    async def serve() -> None:
        moments = idle_slots_of(loop, slicer)
        engine.start()
        slicer.round()
        before, waited = slices_of(slicer), engine.waited()
        await asyncio.sleep(0.3)
        beside, waited = slices_of(slicer) - before, engine.waited() - waited
        engine.stopped = True
        await asyncio.to_thread(engine.join)
        assert beside <= 5 + waited / 0.001  # it cannot take the interpreter while others have the processor
        slicer.round()
        before = slices_of(slicer)
        await until_async(lambda: slices_of(slicer) - before > 20, "slices without the engine")
        assert moments.restore() is None

    loop.run_until_complete(serve())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


# ---- given back ----


@pytest.fixture(scope="module")
def leaves() -> Iterator[Script]:
    """A process of its own: there a whole collection is over some thousand objects."""
    with Script(Path(__file__).with_name("leaves_loops.py")) as child:
        yield child


@pytest.mark.parametrize("where", ["stopped", "inside", "elsewhere", "closed", "gone"])
@pytest.mark.parametrize("new", LOOPS)
def test_nothing_of_ours_stays_in_a_loop(leaves: Script, new: New, where: str) -> None:
    """Whether it is stopped, runs where uninstall() is called or in a thread of its own that waits for ever, was
    closed, or is no more: its selector, its close(), and nothing is held that would be garbage without it."""
    kind = "asyncio" if new is asyncio.new_event_loop else "uvloop"
    left = leaves.ask(f"{kind} {where}")
    assert (left["report"], left["attributes"]) == ([], [])
    assert left["after"] == left["before"] == []


def test_a_wrapper_around_ours_stays_and_is_reported() -> None:
    """A select() put around ours stays: ours inside only passes on."""
    loop: Any = asyncio.new_event_loop()
    watch = tailwatch.install(gc="idle")
    installed(loop, watch)
    ours = loop._selector.select
    loop._selector.select = lambda timeout=None: ours(timeout)
    (sentence,) = tailwatch.uninstall()
    assert "wrapped by other code" in sentence
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()


# ---- moments that are not used ----


@pytest.mark.parametrize("new", LOOPS)
def test_the_end_of_a_request_delays_no_callback_of_its_loop(new: New) -> None:
    """The loop's next wait is used, after what is ready to run."""
    loop = new()
    watch: Any = tailwatch.install(gc="idle")

    async def serve() -> list[int]:
        tailwatch.freeze()
        idle_gc = watch.gc.idle_gc
        made, kept = [], []
        for _ in range(20):
            with tailwatch.stream(model="m") as stream:
                stream.token()
                kept += [[[number]] for number in range(500)]
                before = sum(idle_gc.slicer.counts()[name] for name in ("idle", "request_end"))
            made.append(sum(idle_gc.slicer.counts()[name] for name in ("idle", "request_end")) - before)
            await asyncio.sleep(0.01)
        assert idle_gc.slicer.counts()["idle"] + idle_gc.slicer.counts()["overdue"] > 0
        return made

    try:
        assert loop.run_until_complete(serve()) == [0] * 20
    finally:
        tailwatch.uninstall()
        loop.close()


def test_the_daemon_wakes_a_loop_that_has_long_begun_to_wait() -> None:
    """What other threads made old meanwhile is swept as it waits again."""
    loop = asyncio.new_event_loop()
    watch: Any = tailwatch.install(gc="idle")
    installed(loop, watch)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        idle_gc = watch.gc.idle_gc
        until(loop.is_running)
        before = idle_gc.slicer.counts()
        kept: list[list[int]] = []

        def slices() -> int:
            """For either reason: with so many young objects the first is overdue, and may leave nothing for another."""
            kept[:] = [[number] for number in range(5000)]
            idle_gc.on_idle(daemon=True)
            made = idle_gc.slicer.counts()
            return sum(made[reason] - before[reason] for reason in ("idle", "overdue"))

        until(slices, "a slice while the loop waits")
    finally:
        tailwatch.uninstall()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
