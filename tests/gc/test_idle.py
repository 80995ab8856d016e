"""The slicer frees what the collector would free, and nothing else; slices end where they must."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.gc.hook import GCHook
from tailwatch.gc.idle import SAFETY_NET, IdleGC
from tailwatch.runtime import install

from ..support.waiting import until_async
from .slicing import begin, core, end


class Node:
    """Of a cycle."""

    def __init__(self, **more: Any) -> None:
        self.me = self
        self.__dict__.update(more)


@pytest.fixture
def slicer() -> Iterator[_hot.Slicer]:
    """One that can read the lists, and a heap that is frozen; automatic collections are off."""
    policy = begin()
    yield policy.slicer
    end(policy)


def age(generations: int = 2) -> None:
    for generation in range(generations):
        gc.collect(generation)


def interference(hook: GCHook) -> list[str]:
    """Interference in sentences, as gc_status() has it."""
    return [*hook.idle_gc.interference(), *hook.interference.sentences()]


def slice_all(slicer: _hot.Slicer, budget: int = 500, slices: int = 200) -> int:
    """Objects freed by more slices than the old heap has."""
    freed = 0
    for _ in range(slices):
        done = slicer.slice(budget)
        assert done is not None
        freed += done[1]
    return freed


def test_old_cycles_die_and_living_ones_do_not(slicer: _hot.Slicer) -> None:
    """Of many aged cycles those that nothing holds are freed by slices, the others are untouched."""
    kept = [Node(number=number, parts=[{"a": [number]}]) for number in range(2000)]
    gone = [weakref.ref(kept.pop()) for _ in range(1000)]
    assert gone[0]() is not None
    age()
    slice_all(slicer)
    assert [each() for each in gone] == [None] * 1000
    assert all(node.me is node and node.parts[0]["a"] == [node.number] for node in kept)


@pytest.mark.parametrize("generations", [0, 1, 2])
def test_whatever_generation_they_are_in(slicer: _hot.Slicer, generations: int) -> None:
    """Young, middle and old."""
    gone = weakref.ref(Node())
    age(generations)
    slice_all(slicer, slices=20)
    assert gone() is None


def test_a_slice_moves_no_more_than_its_budget(slicer: _hot.Slicer) -> None:
    """A chain without an end is cut, and stays whole."""
    first: list[Any] = []
    chain = first
    for _ in range(5000):
        chain.append([])
        chain = chain[0]
    age()
    done = slicer.slice(100, [first])
    assert done is not None and done[0] <= 100 and done[1] == 0
    length = 0
    while first:
        first, length = first[0], length + 1
    assert length == 5000
    assert gc.is_tracked(first)


def test_everything_is_tracked_again(slicer: _hot.Slicer) -> None:
    """What was in the collector's lists is there after a slice, once each."""
    kept = [Node(parts=[[], {}, (1, [2])]) for _ in range(300)]
    age()
    before = sorted(map(id, gc.get_objects()))
    slicer.slice(100_000)
    after = sorted(map(id, gc.get_objects()))
    assert len(after) == len(set(after))
    assert set(before) - set(after) <= {id(before)}
    assert len(kept) == 300


def test_finalizers_run_once_as_with_the_collector(slicer: _hot.Slicer) -> None:
    """One that raises, one that brings its object back, one that starts a slice of its own."""
    ran: list[str] = []
    back: list[Any] = []

    class Raises(Node):
        def __del__(self) -> None:
            ran.append("raises")
            raise RuntimeError("as it should")

    class Returns(Node):
        def __del__(self) -> None:
            ran.append("returns")
            back.append(self)

    class Slices(Node):
        def __del__(self) -> None:
            ran.append(f"slices {slicer.slice(10)}")

    seen: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        Raises(), Returns(), Slices()
        age(0)
        slice_all(slicer, slices=20)
    finally:
        sys.unraisablehook = hook
    assert sorted(ran) == ["raises", "returns", "slices None"]
    assert [type(each.exc_value) for each in seen] == [RuntimeError]
    assert back[0].me is back[0]
    back.clear()
    slice_all(slicer, slices=20)
    assert ran.count("returns") == 1


def test_weak_references_are_called(slicer: _hot.Slicer) -> None:
    """A callback of a living one; a callback inside the dead cycle is not, as the collector has it."""
    called: list[str] = []
    node = Node()
    kept = weakref.ref(node, lambda ref: called.append("outside"))
    node.inside = weakref.ref(node, lambda ref: called.append("inside"))
    del node
    age()
    slice_all(slicer, slices=20)
    assert called == ["outside"] and kept() is None


def test_what_runs_is_left_alone(slicer: _hot.Slicer) -> None:
    """Generators, coroutines, tasks in flight, frames and tracebacks survive slices in their midst."""

    def numbers() -> Iterator[int]:
        own = [Node()]
        yield 1
        assert own[0].me is own[0]
        yield 2

    async def wait(turns: int) -> int:
        own = [Node()]
        for _ in range(turns):
            await asyncio.sleep(0)
        return len(own)

    async def all_of_them() -> list[int]:
        tasks = [asyncio.create_task(wait(20)) for _ in range(50)]
        for _ in range(10):
            await asyncio.sleep(0)
            slicer.slice(3000)
        return await asyncio.gather(*tasks)

    generator = numbers()
    assert next(generator) == 1
    age()
    slice_all(slicer, slices=20)
    assert next(generator) == 2
    assert asyncio.run(all_of_them()) == [1] * 50
    try:
        raise ValueError("kept")
    except ValueError as error:
        kept = error
    slice_all(slicer, slices=20)
    assert kept.__traceback__ is not None and kept.__traceback__.tb_frame.f_locals["kept"] is kept


def test_a_task_s_cycle_dies(slicer: _hot.Slicer) -> None:
    """An exception that holds its own traceback's frame, of a task that nothing holds any more."""
    gone: list[weakref.ref[Any]] = []

    async def fails() -> None:
        node = Node()
        gone.append(weakref.ref(node))
        try:
            raise ValueError("in a cycle")
        except ValueError as error:
            node.error = error

    async def run() -> None:
        for _ in range(20):
            await asyncio.create_task(fails())

    asyncio.run(run())
    age()
    slice_all(slicer, slices=50)
    assert [each() for each in gone] == [None] * 20


def test_types_and_modules_lead_nowhere(slicer: _hot.Slicer) -> None:
    """A closure from an object does not take in its class, its module, or what those hold."""
    kept = [sys, Node, Node()]
    age()
    done = slicer.slice(100_000, [kept])
    assert done is not None
    moved, _, _ = slicer.slice(0) or (None, None, None)
    assert moved == 0


def test_a_class_without_references_is_freed(slicer: _hot.Slicer) -> None:
    """No closure goes through it, but it comes up as an old object itself, beside what it holds."""
    made = type("Made", (Node,), {})
    gone = weakref.ref(made)
    made()
    del made
    age()
    slice_all(slicer, budget=5000, slices=20)
    assert gone() is None


def test_not_during_a_collection(slicer: _hot.Slicer) -> None:
    """Its lists are taken apart then: a slice in a callback, or on another thread, does nothing."""
    of = core()
    hook = GCHook(of, "observe")
    other = _hot.Slicer(of, gc.collect)
    done: list[Any] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        done.append(other.slice(1000))

    hook.attach()
    gc.callbacks.insert(1, callback)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(callback)
        hook.detach()
    assert done == [None, None]


def test_many_threads(slicer: _hot.Slicer) -> None:
    """Slices while others allocate cycles: all of those die, nothing else."""
    gone: list[weakref.ref[Any]] = []
    sliced = threading.Event()

    def allocate() -> None:
        for number in range(10_000):
            gone.append(weakref.ref(Node(parts=[[], {}])))
            if number == 5000:
                sliced.wait()  # none has ended before the first slice

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        slicer.slice(500)
        sliced.set()
    for thread in threads:
        thread.join()
    slice_all(slicer, budget=30_000, slices=100)
    assert sum(each() is not None for each in gone) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda slicer: slicer.slice(-1),
        lambda slicer: slicer.slice(10**9),
        lambda slicer: slicer.slice(1, ()),
        lambda slicer: slicer.slice(1, None, 99),
        lambda slicer: slicer.freeze(()),
        lambda slicer: slicer.locate([], [], [], 1),
        lambda slicer: _hot.Slicer(None, gc.collect),
    ],
)
def test_wrong_calls_raise(slicer: _hot.Slicer, call: Callable[[Any], object]) -> None:
    """And leave it as it was."""
    with pytest.raises((TypeError, ValueError, SystemError)):
        call(slicer)
    assert slicer.slice(10) is not None


def test_an_unknown_layout_is_not_used() -> None:
    """Other thresholds than the interpreter's, or an object that is in another list: no order, and no walk."""
    slicer = _hot.Slicer(core(), gc.collect)
    older: list[Any] = [[]]
    gc.collect(0), gc.collect(1)
    aged: list[Any] = [[]]
    gc.collect(0)
    assert not slicer.locate((1, 2, 3), aged, older, 1 << 20)
    assert not slicer.locate(gc.get_threshold(), older, aged, 1 << 20)
    assert not slicer.locate(gc.get_threshold(), aged, older, 0)
    assert not slicer.ordered
    assert slicer.locate(gc.get_threshold(), aged, older, 1 << 22) and slicer.ordered


def test_the_policy_engages_and_is_undone() -> None:
    """After the freeze the interpreter's own collections are far away; detaching brings back what was."""
    before = gc.get_threshold()
    hook = GCHook(core(), "idle", pytest.fail)
    hook.attach()
    assert gc.get_threshold() == before
    hook.freeze()
    assert gc.get_threshold()[0] == SAFETY_NET
    assert (hook.policy, hook.idle_gc.mode, interference(hook)) == ("idle", "slices", [])
    assert hook.idle_gc.heap()["frozen"] > 1000
    gc.set_threshold(5)
    assert [sentence for sentence in interference(hook) if "set_threshold" in sentence]
    gc.set_threshold(SAFETY_NET)
    assert hook.detach() == []
    assert gc.get_threshold() == before
    assert gc.isenabled()


def test_a_loop_s_waiting_is_used() -> None:
    """Cycles of finished work die while the loop waits, without a collection of the interpreter's own."""
    hook = GCHook(core(), "idle", pytest.fail)
    hook.attach()

    async def run() -> dict[str, int]:
        hook.freeze()
        hook.idle_gc.use_loop()
        gone = []
        for _ in range(100):
            gone += [weakref.ref(Node()) for _ in range(100)]
            await asyncio.sleep(0.002)

        def dead() -> bool:
            Node(parts=[[] for _ in range(800)])
            return all(each() is None for each in gone)

        await until_async(dead, "the end of all cycles")
        slices = hook.idle_gc.slicer.counts()
        assert hook.idle_gc.disengage() == []
        await asyncio.sleep(0.001)
        return slices

    slices = asyncio.run(run())
    hook.detach()
    assert slices["idle"] > 0


class Full:
    """A slicer without memory for what is frozen."""

    def __init__(self, real: _hot.Slicer) -> None:
        self.__dict__["real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.real, name, value)

    def freeze(self, call: Callable[[], object]) -> int:
        call()
        raise MemoryError


def test_without_memory_to_remember_it_makes_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's freeze goes through, closures are followed no more, and it is reported."""
    warnings: list[str] = []
    hook = GCHook(core(), "idle", warnings.append)
    hook.attach()
    try:
        hook.freeze()
        assert hook.idle_gc.slicer.on

        monkeypatch.setattr(hook.idle_gc, "slicer", Full(slicer := hook.idle_gc.slicer))
        gc.freeze()
        assert (hook.idle_gc.mode, hook.idle_gc.slicer.on) == ("full collections", False)
        assert gc.get_freeze_count() > 1000
        monkeypatch.setattr(hook.idle_gc, "slicer", slicer)
        assert [sentence for sentence in warnings if "out of memory" in sentence]
        gone = weakref.ref(Node())
        kept = [[] for _ in range(3000)]  # type: ignore[var-annotated]
        hook.idle_gc.on_idle()
        assert gone() is None and kept
    finally:
        hook.detach()
        gc.unfreeze()


def test_forced_slices_take_half_of_the_time_at_most(slicer: _hot.Slicer) -> None:
    """A loop that asks all the time still runs; a whole pass is made once."""
    selector = selectors.EpollSelector()
    wait = slicer.select(selector)
    age()
    old = [[] for _ in range(200_000)]  # type: ignore[var-annotated]
    gc.collect(0), gc.collect(1)
    slicer.on = True
    slicer.force = 1
    slicer.round()
    before = slicer.counts()["memory_limit"]
    for _ in range(3):
        wait(0)
    assert slicer.counts()["memory_limit"] - before <= 3
    slicer.force = 2
    for _ in range(3):
        wait(0)
    assert (slicer.force, slicer.counts()["collections"]) == (0, 1)
    slicer.on = False
    assert len(old) == 200_000


@pytest.mark.parametrize(("name", "value"), [("force", 3), ("force", -1), ("every", 0), ("every", 1 << 30)])
def test_bad_numbers_are_refused(slicer: _hot.Slicer, name: str, value: int) -> None:
    """And change nothing."""
    before = getattr(slicer, name)
    with pytest.raises(ValueError, match=name):
        setattr(slicer, name, value)
    assert getattr(slicer, name) == before


class Blind:
    """A slicer whose rounds find nothing: what a wrong idea of the collector's lists would make of it."""

    def __init__(self, real: _hot.Slicer) -> None:
        self.real = real
        self.on = False
        self.cycles = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def slice(self, budget: int, *seeds: Any) -> Any:
        self.cycles += not seeds
        return self.real.slice(budget, *seeds) if seeds else (0, 0, 0)

    def counts(self) -> dict[str, int]:
        return {**self.real.counts(), "cycles": self.cycles}


def test_a_round_that_finds_nothing_is_not_relied_upon() -> None:
    """Slices that are given where to look work; a whole round does not: whole passes instead, and it is reported."""
    warnings: list[str] = []
    hook = GCHook(core(), "idle", warnings.append)
    hook.attach()
    try:
        real = hook.idle_gc.slicer
        hook.idle_gc.slicer = Blind(real)  # type: ignore[assignment]
        hook.freeze()
        assert (hook.idle_gc.mode, hook.idle_gc.slicer.on) == ("full collections", False)
        assert [sentence for sentence in warnings if "self-test failed" in sentence]
    finally:
        hook.idle_gc.slicer = real
        hook.detach()
        gc.unfreeze()


def test_the_interpreter_s_collections_of_the_old_stay_away_while_slices_are_made() -> None:
    """Each of ours brings them nearer by its count: not while moments come, and as ever when none do for long."""
    before = gc.get_threshold()
    hook = GCHook(core(), "idle", pytest.fail)
    hook.attach()
    try:
        hook.freeze()
        idle_gc = hook.idle_gc
        assert gc.get_threshold()[1] - gc.get_count()[1] == before[1]
        for _ in range(3 * before[1]):
            idle_gc.slicer.slice(0, None, 0)
            gc.collect(0)
        idle_gc.turn(lambda: True)
        assert min(gc.get_threshold()[1:]) > 1_000_000
        assert interference(hook) == []
        collections = gc.get_stats()[1]["collections"], gc.get_stats()[2]["collections"]
        kept = [[] for _ in range(2 * SAFETY_NET)]  # type: ignore[var-annotated]
        assert (gc.get_stats()[1]["collections"], gc.get_stats()[2]["collections"]) == collections
        idle_gc._made_at -= 10.0  # no moment was given since
        idle_gc.turn(lambda: True)
        assert gc.get_threshold()[1] - gc.get_count()[1] == before[1]
        assert len(kept) == 2 * SAFETY_NET
    finally:
        assert hook.detach() == []
        gc.unfreeze()
    assert gc.get_threshold() == before


def test_changed_thresholds_are_reported_and_stay() -> None:
    """Each of the three, not the first alone."""
    before = gc.get_threshold()
    hook = GCHook(core(), "idle", pytest.fail)
    hook.attach()
    try:
        hook.freeze()
        gc.set_threshold(SAFETY_NET, 3, 3)
        assert [sentence for sentence in interference(hook) if "the gc thresholds are" in sentence]
        assert [sentence for sentence in hook.detach() if "not restored" in sentence]
        assert gc.get_threshold() == (SAFETY_NET, 3, 3)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@pytest.mark.parametrize("waits", [True, False])
def test_a_round_that_rests_for_long_holds_nothing(slicer: _hot.Slicer, waits: bool) -> None:
    """Outside loops: the daemon brings it to its end where nothing waits, and gives it up where something does."""
    policy = IdleGC(core(), pytest.fail)
    policy.slicer = slicer
    kept = [Node() for _ in range(5000)]
    age()
    slicer.on = True
    slicer.slice(2000)
    assert slicer.midway
    policy._made_at = time.monotonic() + 60
    policy.turn(lambda: not waits)
    assert slicer.midway
    rounds = slicer.counts()["cycles"]
    policy._made_at -= 120.0
    policy.turn(lambda: not waits)
    assert not slicer.midway
    assert slicer.counts()["cycles"] == rounds + (not waits)
    assert len(kept) == 5000
    slicer.on = False


FREEZE = gc.freeze  # as code has it that imported it before install()


def test_a_freeze_past_our_hook_is_seen() -> None:
    """By code that took gc.freeze before us: it is counted, and what it froze is known; nothing is seen twice."""
    hook = GCHook(core(), "idle", pytest.fail)
    hook.attach()
    try:
        hook.freeze()
        hook.look_for_freeze()
        assert interference(hook) == []
        theirs = [Node() for _ in range(3000)]
        age()
        hook.idle_gc.slicer.slice(2000)
        frozen = hook.idle_gc.slicer.frozen
        FREEZE()
        hook.look_for_freeze()
        hook.look_for_freeze()
        assert hook.interference.calls["freeze"] == 1 and not hook.idle_gc.slicer.midway
        assert hook.idle_gc.slicer.frozen - frozen >= 3000
        assert (hook.idle_gc.slicer.slice(100_000, list(theirs)) or (9,))[0] == 0
        gc.collect()
        hook.look_for_freeze()  # 3.12 puts what is immortal to the frozen as it collects
        assert hook.interference.calls["freeze"] == 1
        gone = [weakref.ref(Node()) for _ in range(500)]
        age()
        slice_all(hook.idle_gc.slicer, budget=20_000, slices=50)
        assert not any(each() for each in gone)
    finally:
        hook.detach()
        gc.unfreeze()


def test_a_policy_adopted_after_the_freeze_is_engaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A door installed with freeze, and it froze; the code then asks for idle: at once where nothing waits, else
    when the last stream has ended."""
    monkeypatch.setenv("TAILWATCH_GC", "freeze")
    for busy in (False, True):
        install.autoinstall_process("worker")
        tailwatch.freeze()
        context = tailwatch.stream(model="m") if busy else contextlib.nullcontext()
        try:
            with context:
                watch = tailwatch.install(gc="idle")
                assert watch.gc.idle_gc.engaged is not busy
            assert watch.gc.idle_gc.engaged
            assert tailwatch.gc_status().mode == "slices" and tailwatch.gc_status().frozen > 1000
            assert gc.get_threshold()[0] == SAFETY_NET
        finally:
            tailwatch.uninstall()


@pytest.mark.parametrize("inside", ["collection", "slice"])
def test_a_freeze_of_ours_inside_a_pass_is_not_one_of_others(inside: str) -> None:
    """The last stream ends in a finalizer, or on another thread in a callback: what we freeze there is known."""
    hook = GCHook(core(), "idle", pytest.fail)
    hook.attach()
    froze: list[object] = []

    def freeze(*_: object) -> None:
        if not froze:
            froze.append(hook.freeze())
            froze.append(hook.idle_gc.slicer.midway)

    kept = [Node() for _ in range(3000)]
    try:
        hook.freeze()
        theirs = [Node() for _ in range(3000)]
        age()
        if inside == "collection":
            gc.callbacks.insert(1, freeze)
            gc.collect(1)
            gc.callbacks.remove(freeze)
        else:
            node = Node()
            weakref.finalize(node, freeze)
            del node
            age()
            slice_all(hook.idle_gc.slicer, budget=20_000, slices=50)
        assert froze[1:] == [False]
        hook.look_for_freeze()
        assert interference(hook) == [] and not hook.host_froze
        assert (hook.idle_gc.slicer.slice(100_000, list(theirs)) or (9,))[0] == 0
        gone = [weakref.ref(Node()) for _ in range(500)]
        age()
        slice_all(hook.idle_gc.slicer, budget=20_000, slices=50)
        assert not any(each() for each in gone)
        assert len(kept) == 3000
    finally:
        assert hook.detach() == []
