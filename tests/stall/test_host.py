"""The clocks of loops and the watchdog: which loop is followed, when, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextvars
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch._cold import ffi
from tailwatch.errors import OptionError
from tailwatch.stall.host import context_place

from ..support.waiting import until
from .test_planted import LOOPS

WATCHDOG = "tailwatch-watch"


def threads() -> list[str]:
    """Names of this process's threads, those without Python too."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except OSError:  # it has ended meanwhile
            continue
    return names


def descriptors() -> list[str]:
    """What this process has open of /proc."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [path for path in found if "/task/" in path or "memfd:tailwatch" in path]


@pytest.fixture
def install() -> Iterator[Callable[..., tailwatch.Watch]]:
    """install(), undone at the end."""
    yield lambda **options: tailwatch.install(role="api", gc="off", **options)
    tailwatch.uninstall()


def new_loop(kind: Any) -> asyncio.AbstractEventLoop:
    if kind == "asyncio":
        return asyncio.new_event_loop()
    import uvloop  # type: ignore[import-not-found,unused-ignore]

    return uvloop.new_event_loop()  # type: ignore[no-any-return,unused-ignore]


async def wait_a_little(watch: tailwatch.Watch) -> Any:
    watch.host.use_loop()
    began = _hot.now()
    await asyncio.sleep(0.02)
    return watch.core.split_host(began, _hot.now())


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_is_followed_until_it_is_given_back(kind: str, install: Callable[..., tailwatch.Watch]) -> None:
    """Waiting for events is no part of what its thread did."""
    watch = install()
    loop = new_loop(kind)
    until(lambda: loop.run_until_complete(wait_a_little(watch))[1] >= 15_000_000)
    assert watch.core.host_status()["tracks"] == 1
    assert watch.core.host_status()["sources"]["loop_clock"] == "known"
    assert tailwatch.uninstall() == []
    assert watch.core.host_status()["tracks"] == 0
    assert "select" not in vars(getattr(loop, "_selector", type("", (), {})()))
    loop.close()


def test_stacks_are_read_in_every_version_with_a_gil(install: Callable[..., tailwatch.Watch]) -> None:
    """Checked against the calling thread's own frames; the holder of the interpreter lock too."""
    watch = install()
    sources = watch.core.host_status()["sources"]
    assert sources["stacks"] == "known"
    (function, file, _, _), *_ = watch.core.own_frames()[0]
    assert function.endswith("test_stacks_are_read_in_every_version_with_a_gil")
    assert file == "test_host.py"
    assert watch.core.own_frames()[1] is True


def test_the_context_of_a_thread_is_found(install: Callable[..., tailwatch.Watch]) -> None:
    """In the state of the thread that runs in it, and of no other."""
    watch = install()
    context = contextvars.copy_context()
    place = context_place(watch.core)
    assert place > 0 and context.run(watch.core.state_words)[place] == id(context)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(context.run, watch.core.state_words).result()[place] == id(context)
        assert pool.submit(watch.core.state_words).result()[place] != id(context)


def test_no_place_of_contexts_is_taken_that_does_not_exist(install: Callable[..., tailwatch.Watch]) -> None:
    """It would be read in each slow gap."""
    watch = install()
    for place in (-1, len(watch.core.state_words())):
        with pytest.raises(ValueError, match="expected 0 to"):
            watch.core.contexts_at(place)


@pytest.mark.parametrize("mode, clock, stacks", [("off", "off", "off"), ("clock", "known", "off")])
def test_what_is_switched_off(mode: str, clock: str, stacks: str, install: Callable[..., tailwatch.Watch]) -> None:
    """No watchdog; with "off" no clock either."""
    watch = install(stalls=mode)
    loop = asyncio.new_event_loop()
    split = loop.run_until_complete(wait_a_little(watch))
    loop.close()
    assert (split is None) == (mode == "off")
    status = watch.core.host_status()
    assert (status["sources"]["loop_clock"], status["sources"]["stacks"]) == (clock, stacks)
    assert not status["watches"]
    assert WATCHDOG not in threads()


def test_a_bad_mode_is_refused() -> None:
    with pytest.raises(OptionError, match="stalls='all': expected one of 'auto', 'clock', 'off'"):
        tailwatch.install(role="api", stalls="all")


def test_nothing_is_left(install: Callable[..., tailwatch.Watch]) -> None:
    """No thread, no descriptor."""
    assert descriptors() == []
    watch = install()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_a_little(watch))
    assert WATCHDOG in threads()
    assert len(descriptors()) >= 2
    tailwatch.uninstall()
    loop.close()
    until(lambda: WATCHDOG not in threads())
    assert descriptors() == []


def test_the_watchdog_sleeps_while_no_stream_is_in_flight(install: Callable[..., tailwatch.Watch]) -> None:
    """It wakes with the first one, and not again after the last."""
    watch = install()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_a_little(watch))
    turns = lambda: watch.core.host_status()["watchdog_wakeups"]  # noqa: E731
    until(lambda: _stays(turns))
    before = turns()
    with tailwatch.stream(model="m"):
        until(lambda: turns() > before + 3)
    loop.close()


def _stays(value: Callable[[], int]) -> bool:
    before = value()
    time.sleep(0.2)
    return value() == before


def test_loops_of_several_threads(install: Callable[..., tailwatch.Watch]) -> None:
    """Each has a track of its own; those that find none are counted."""
    watch = install()
    barrier = threading.Barrier(6)
    loops: list[asyncio.AbstractEventLoop] = []

    async def stay() -> None:
        watch.host.use_loop()
        await asyncio.to_thread(barrier.wait)
        await asyncio.to_thread(barrier.wait)

    def run() -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        loop.run_until_complete(stay())
        loop.close()

    running = [threading.Thread(target=run) for _ in range(5)]
    for thread in running:
        thread.start()
    barrier.wait()
    status = watch.core.host_status()
    barrier.wait()
    for thread in running:
        thread.join()
    assert (status["tracks"], status["tracks_refused"]) == (4, 1)
    loops.clear()


class Stepping(threading.Thread):
    """Engine steps, one after the other, until it is over."""

    def __init__(self, watch: tailwatch.Watch) -> None:
        super().__init__()
        self.watch, self.stepped, self.over = watch, threading.Event(), threading.Event()
        self.split: Any = "not asked"
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.001):
            with self.watch.core.step("s"):  # also after uninstall()
                self.split = self.watch.core.split_host(_hot.now() - 1000, _hot.now())
            self.stepped.set()

    def end(self) -> None:
        """Until the kernel's thread has ended, too."""
        self.over.set()
        self.join()
        until(lambda: not os.path.exists(f"/proc/self/task/{self.native_id}"))


def watched() -> set[int | None]:
    """Threads other than this one whose system calls the watchdog can see."""
    found = [re.search(r"/task/(\d+)/syscall", path) for path in descriptors()]
    return {int(each[1]) for each in found if each} - {threading.get_native_id()}


def test_threads_with_steps_are_watched_beside_a_loop(install: Callable[..., tailwatch.Watch]) -> None:
    """Two of them, as they come; one that has ended gives its place to another. They have no loop."""
    watch = install()
    loop = new_loop("asyncio")
    loop.run_until_complete(wait_a_little(watch))
    steps = [Stepping(watch) for _ in range(3)]
    try:
        for thread in steps:
            assert thread.stepped.wait(30)
        first = watched()
        assert len(first) == 2 and first < {thread.native_id for thread in steps}
        assert all(thread.split is None for thread in steps)
        assert watch.core.host_status()["tracks"] == 1
        gone = next(thread for thread in steps if thread.native_id in first)
        gone.end()
        steps.append(Stepping(watch))
        living = {thread.native_id for thread in steps if thread is not gone}
        until(lambda: len(watched()) == 2 and watched() < living, "another thread has the place")
        assert tailwatch.uninstall() == []
        assert descriptors() == [] and WATCHDOG not in threads()
    finally:
        for thread in steps:
            thread.end()
    loop.close()


def test_threads_with_steps_are_watched_while_a_stream_waits(install: Callable[..., tailwatch.Watch]) -> None:
    """Without a loop; no watchdog is started for steps alone."""
    watch = install()
    thread = Stepping(watch)
    try:
        assert thread.stepped.wait(30)
        assert watched() == set() and WATCHDOG not in threads()
        with tailwatch.stream(model="m"):
            until(lambda: watched() == {thread.native_id})
            assert WATCHDOG in threads()
    finally:
        thread.end()


@pytest.mark.parametrize("mode", ["clock", "off"])
def test_steps_are_not_watched_where_that_is_switched_off(
    mode: Literal["clock", "off"], install: Callable[..., tailwatch.Watch]
) -> None:
    """As loops are not."""
    thread = Stepping(install(stalls=mode))
    with tailwatch.stream(model="m"):
        assert thread.stepped.wait(30)
        assert watched() == set() and WATCHDOG not in threads()
    thread.end()


def test_a_fork_child_follows_its_own(install: Callable[..., tailwatch.Watch]) -> None:
    """The parent's loop, watchdog and descriptors are none of its; its parent's go on."""
    watch = install()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_a_little(watch))
    child = os.fork()
    if child == 0:
        own = asyncio.new_event_loop()
        done = watch.core.host_status()["tracks"] == 0 and descriptors() == [] and WATCHDOG not in threads()
        parts = own.run_until_complete(wait_a_little(watch))
        os._exit(0 if done and parts is not None and watch.core.host_status()["watches"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.run_until_complete(wait_a_little(watch)) is not None
    loop.close()


def test_signals_are_handled_while_the_loop_waits(install: Callable[..., tailwatch.Watch]) -> None:
    """As select.epoll.poll() does: the handler runs, and the rest is waited for; its error ends the wait."""
    watch = install()
    loop = asyncio.new_event_loop()
    seen: list[float] = []

    async def wait() -> None:
        watch.host.use_loop()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        await asyncio.sleep(0.1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(time.monotonic()))
    try:
        began = time.monotonic()
        loop.run_until_complete(wait())
        assert time.monotonic() - began >= 0.1
        assert len(seen) == 1 and seen[0] - began < 0.1
        signal.signal(signal.SIGALRM, interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(wait())
    finally:
        signal.signal(signal.SIGALRM, before)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_thread_with_steps_reads_its_counters(install: Callable[..., tailwatch.Watch]) -> None:
    segment = ffi.cast("const tw_segment *", install().core.address)

    def points() -> int:
        with tailwatch.step("decode"):
            time.sleep(0.002)  # a point is taken once a millisecond at most
        return sum(track.point_head for track in segment.host.track if track.step_limit_ns)

    with tailwatch.stream(model="m"):
        until(lambda: points() > 2, "points of a track of steps")


def wait_for_turns(core: Any, count: int) -> None:
    """Of the watchdog, of 2 ms or more."""
    end = core.host_status()["watchdog_wakeups"] + count
    until(lambda: core.host_status()["watchdog_wakeups"] >= end, "turns of the watchdog")


def test_each_kind_of_step_has_a_limit_of_its_own(install: Callable[..., tailwatch.Watch]) -> None:
    core = install().core
    segment = ffi.cast("const tw_segment *", core.address)

    def limit_in(name: str, lasts: int) -> int:
        with tailwatch.step(name):
            wait_for_turns(core, lasts)
            return max(track.step_limit_ns for track in segment.host.track)

    with tailwatch.stream(model="m"):
        until(lambda: limit_in("run", 10) > 2 * limit_in("process", 0), "two limits")


@pytest.fixture
def samples(install: Callable[..., tailwatch.Watch]) -> Callable[[], int]:
    """samples(): that the watchdog takes in ten of its turns from now on; it comes to rest before."""
    core = install().core
    segment = ffi.cast("const tw_segment *", core.address)

    def taken_after(turns: int) -> int:
        wait_for_turns(core, turns)
        return int(segment.host.samples)

    return lambda: -taken_after(2) + taken_after(10)


def end_step(waiting: int | None) -> None:
    with tailwatch.step("run", waiting=waiting):
        pass


@pytest.mark.parametrize("waiting", [1, None])
def test_after_a_step_that_may_have_left_work_a_thread_is_looked_at(
    waiting: int | None, samples: Callable[[], int]
) -> None:
    """Its loop may wait for the interpreter lock there. After a second without that it is idle."""
    with tailwatch.stream(model="m"):
        until(lambda: (end_step(waiting), samples())[1] > 0, "samples after a step")
        until(lambda: samples() == 0, "an idle thread is not looked at")


def test_after_a_step_that_left_no_work_a_thread_is_idle(samples: Callable[[], int]) -> None:
    with tailwatch.stream(model="m"):
        end_step(1)
        until(lambda: samples() > 0, "the thread is followed")
        for _ in range(5):
            end_step(0)
            assert samples() == 0


def test_the_time_after_a_step_has_a_limit_of_its_own(install: Callable[..., tailwatch.Watch]) -> None:
    """Learned from how long it usually is."""
    core = install().core
    segment = ffi.cast("const tw_segment *", core.address)

    def limits() -> tuple[int, int]:
        with tailwatch.step("run", waiting=1):
            inside = max(track.step_limit_ns for track in segment.host.track)
        wait_for_turns(core, 10)
        return inside, max(track.step_limit_ns for track in segment.host.track)

    with tailwatch.stream(model="m"):
        until(lambda: 2 * limits()[0] < limits()[1], "two limits")
