"""The collector's hook: brackets, what is booked where, and the freeze policy."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.gc import hook as hooks_gc
from tailwatch.gc.hook import WARM_PATIENCE_SECONDS, WARM_REQUESTS, Freeze, GCHook

MS = 1_000_000


def make_core() -> _hot.Core:
    return _hot.Core("api", 4, (0, 0, 0, 0, 990_000), 0, lambda scope: "/", lambda awaitable, stream: awaitable)


def taken(core: _hot.Core) -> snapshots.Snapshot:
    return snapshots.take([core.address])


def stamp_requests(core: _hot.Core, count: int) -> None:
    for _ in range(count):
        core.stream("m", "r", None, "", "").close()


def collection(core: _hot.Core, generation: int, collected: int = 0, uncollectable: int = 0) -> None:
    """What the interpreter calls for one collection."""
    found = {"generation": generation, "collected": collected, "uncollectable": uncollectable}
    for phase in ("start", "stop"):
        core.gc_first(phase, found)
        core.gc_last(phase, found)


def foreign(phase: str, info: dict[str, int]) -> None:
    """Another's callback."""


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """No collection but those of the test; afterwards everything is as it was."""
    callbacks, freeze, unfreeze = list(gc.callbacks), gc.freeze, gc.unfreeze
    gc.disable()
    yield
    assert (gc.freeze, gc.unfreeze) == (freeze, unfreeze)
    assert gc.callbacks == callbacks
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def patch(collector: None) -> Iterator[pytest.MonkeyPatch]:
    """Undone before the collector is looked at."""
    with pytest.MonkeyPatch.context() as patched:
        yield patched


@pytest.fixture
def core() -> _hot.Core:
    return make_core()


@pytest.fixture
def hook(core: _hot.Core) -> Iterator[GCHook]:
    """Attached, looking only."""
    made = GCHook(core, "observe")
    made.attach()
    yield made
    made.detach()


@pytest.fixture
def other() -> Iterator[Callable[..., None]]:
    """Another's callback, in the list."""
    gc.callbacks.append(foreign)
    yield foreign
    while foreign in gc.callbacks:
        gc.callbacks.remove(foreign)


@pytest.fixture
def calls(patch: pytest.MonkeyPatch) -> list[str]:
    """Calls of gc.collect, freeze and unfreeze, which do nothing."""
    seen: list[str] = []

    def recorder(name: str) -> Callable[[], int]:
        return lambda: seen.append(name) or 0

    for name in ("collect", "freeze", "unfreeze"):
        patch.setattr(gc, name, recorder(name))
    return seen


# ---- brackets ----


def test_ours_stand_first_and_last(core: _hot.Core, other: Callable[..., None]) -> None:
    """attach() puts one callable of ours before and one behind all others; detach() takes both out."""
    before = list(gc.callbacks)
    hook = GCHook(core, "observe")
    hook.attach()
    assert gc.callbacks == [core.gc_first, *before, core.gc_last]
    assert hook.detach() == []
    assert gc.callbacks == before


def test_a_second_attach_changes_nothing(hook: GCHook) -> None:
    """Attached twice it stands in the list once, and one detach() undoes it."""
    once, freeze = list(gc.callbacks), gc.freeze
    hook.attach()
    assert (gc.callbacks, gc.freeze) == (once, freeze)


@pytest.mark.parametrize(
    ("meddle", "intact"),
    [
        (lambda callbacks: callbacks.clear(), False),
        (lambda callbacks: callbacks.__setitem__(slice(None), [foreign]), False),
        (lambda callbacks: callbacks.pop(0), False),
        (lambda callbacks: callbacks.pop(), False),
        (lambda callbacks: callbacks.append(foreign), True),
        (lambda callbacks: callbacks.insert(0, foreign), True),
        (lambda callbacks: callbacks.reverse(), True),
    ],
    ids=["cleared", "replaced", "first gone", "last gone", "appended", "inserted", "reversed"],
)
def test_verify_puts_the_brackets_back(hook: GCHook, core: _hot.Core, meddle: Callable[..., Any], intact: bool) -> None:
    """Whatever was done to the list: ours stand at its ends again, others stay; False only where ours were gone."""
    before = list(gc.callbacks)
    meddle(gc.callbacks)
    others = [each for each in gc.callbacks if each not in (core.gc_first, core.gc_last)]
    try:
        assert hook.verify() is intact
        assert gc.callbacks == [core.gc_first, *others, core.gc_last]
        assert hook.verify() is True
    finally:
        gc.callbacks[:] = before


def test_the_list_itself_counts_not_its_name(hook: GCHook, core: _hot.Core, patch: pytest.MonkeyPatch) -> None:
    """Another list under the name gc.callbacks does not mislead verify() or detach(): the collector has its own."""
    real = gc.callbacks
    patch.setattr(gc, "callbacks", [])
    assert hook.verify() is True
    assert gc.callbacks == []
    hook.detach()
    assert core.gc_first not in real and core.gc_last not in real


def test_a_foreign_callback_that_raises_changes_nothing(
    hook: GCHook, core: _hot.Core, patch: pytest.MonkeyPatch
) -> None:
    """The collection is booked, and the error goes where the interpreter sends it."""
    errors: list[BaseException] = []
    patch.setattr(sys, "unraisablehook", lambda failed: errors.append(failed.exc_value))

    def raising(phase: str, info: dict[str, int]) -> None:
        raise RuntimeError(phase)

    gc.callbacks.insert(1, raising)
    gc.collect(1)
    gc.callbacks.remove(raising)
    assert [str(error) for error in errors] == ["start", "stop"]
    assert taken(core).gc.collections["gc1"] == 1
    assert not core.paused_now()


# ---- a stop that never comes ----


def clear_at_start(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        gc.callbacks.clear()


@pytest.fixture
def lost(hook: GCHook, core: _hot.Core) -> Iterator[_hot.Stream]:
    """A stream with one token, and a pause opened since whose end was taken out of the list."""
    before = list(gc.callbacks)
    stream = core.stream("m", "r", None, "", "")
    stream.token()
    gc.callbacks.insert(1, clear_at_start)
    gc.collect(0)
    assert core.paused_now()
    yield stream
    gc.callbacks[:] = before


def test_a_pause_that_cannot_be_closed_charges_no_stream(lost: _hot.Stream, core: _hot.Core) -> None:
    """The next stamp sees it, forgets it, counts it once and books nothing."""
    time.sleep(0.001)
    lost.token()
    lost.token()
    seen = taken(core)
    assert not core.paused_now()
    assert (lost.overlap_ns, lost.delay_ns) == (0, 0)
    assert sum(seen.paused.values()) == sum(seen.gc.collections.values()) == 0
    assert (seen.errors["gc_hook"], seen.processes[0].lost) == (1, 1)


def test_verify_forgets_a_lost_pause(lost: _hot.Stream, hook: GCHook, core: _hot.Core) -> None:
    """With the brackets back, the next collection is booked alone."""
    assert hook.verify() is False
    assert not core.paused_now()
    gc.collect(0)
    assert taken(core).gc.collections["gc0"] == 1
    assert taken(core).processes[0].lost == 1


def test_the_next_collection_forgets_a_lost_pause(lost: _hot.Stream, hook: GCHook, core: _hot.Core) -> None:
    """A second start without a stop between them: the first pause is counted as lost, the second is booked."""
    gc.callbacks[:] = [core.gc_first, core.gc_last]
    gc.collect(1)
    seen = taken(core)
    assert (seen.gc.collections["gc0"], seen.gc.collections["gc1"]) == (0, 1)
    assert (seen.errors["gc_hook"], seen.processes[0].lost) == (1, 1)


@pytest.mark.parametrize("stamped", [True, False], ids=["stamp in between", "no stamp"])
def test_a_lost_stop_inside_the_freeze(hook: GCHook, core: _hot.Core, stamped: bool) -> None:
    """A collection that loses its end inside our own pass does not keep the pass open."""
    before = list(gc.callbacks)
    stream = core.stream("m", "r", None, "", "")
    core.policy_begin()
    gc.callbacks.insert(1, clear_at_start)
    gc.collect(0)
    if stamped:
        stream.token()
        assert core.paused_now()
    gc.callbacks[:] = before if stamped else []
    assert isinstance(core.policy_end(), int)
    gc.callbacks[:] = before
    seen = taken(core)
    assert not core.paused_now()
    assert {cause: n for cause, n in seen.gc.collections.items() if n} == {"gc_own": 1}
    assert (seen.errors["gc_hook"], seen.processes[0].lost) == (1, 0)


@pytest.mark.parametrize("where", ["finalizer", "callback"])
def test_detach_inside_a_collection(core: _hot.Core, where: str) -> None:
    """uninstall() from within a collection: it is forgotten, and the rest of it changes nothing."""
    hook = GCHook(core, "observe")
    hook.attach()
    if where == "finalizer":
        Finalizer(lambda: hook.detach() and None)
        gc.collect(0)
    else:

        def detaching(phase: str, info: dict[str, int]) -> None:
            hook.detach()

        gc.callbacks.insert(1, detaching)
        gc.collect(0)
        gc.callbacks.remove(detaching)
    assert not core.paused_now()
    assert sum(taken(core).gc.collections.values()) == 0
    assert core.gc_first not in gc.callbacks and core.gc_last not in gc.callbacks


def test_a_stop_without_a_start_is_ignored(core: _hot.Core) -> None:
    """Callables of ours that join in the middle of a collection book nothing."""
    core.gc_first("stop", {"generation": 2})
    core.gc_last("stop", {"generation": 2})
    assert sum(taken(core).gc.collections.values()) == 0


@pytest.mark.parametrize("arguments", [(), ("start",), ("start", {}, 1), (1, {}), ("start", []), (None, None)])
def test_what_is_no_collection_is_ignored(core: _hot.Core, arguments: tuple[Any, ...]) -> None:
    """Called with anything else our callables return None and open nothing."""
    assert core.gc_first(*arguments) is None
    assert core.gc_last(*arguments) is None
    assert not core.paused_now()


# ---- what is booked where ----


@pytest.mark.parametrize(
    ("mode", "causes"),
    [
        (0, ["gc0", "gc1", "gc2"]),
        (1, ["gc0", "gc_increment", "gc_full"]),
        (2, ["gc_full", "gc_full", "gc_full"]),
    ],
    ids=["generational", "incremental", "whole heap"],
)
@pytest.mark.parametrize("generation", [0, 1, 2])
def test_generations_become_causes(core: _hot.Core, mode: int, causes: list[str], generation: int) -> None:
    """Each collector's generations are booked under the cause that they are there, and only there."""
    core.watch_gc(mode, gc.callbacks, core.gc_last)
    collection(core, generation)
    assert {cause: n for cause, n in taken(core).gc.collections.items() if n} == {causes[generation]: 1}


@pytest.mark.parametrize("mode", [-1, 3])
def test_an_unknown_mode_is_refused(core: _hot.Core, mode: int) -> None:
    """watch_gc() takes 0 to 2, and a list."""
    with pytest.raises(ValueError, match="mode from 0 to 2"):
        core.watch_gc(mode, gc.callbacks, core.gc_last)
    with pytest.raises(ValueError, match=r"the list gc\.callbacks"):
        core.watch_gc(0, (), core.gc_last)  # type: ignore[arg-type]


def test_what_a_collection_found_is_summed(core: _hot.Core) -> None:
    """Collected and uncollectable objects are counted under the generation's cause."""
    collection(core, 2, collected=7, uncollectable=2)
    collection(core, 2, collected=5)
    seen = taken(core).gc
    assert (seen.collected["gc2"], seen.uncollectable["gc2"], seen.collections["gc2"]) == (12, 2, 2)


@pytest.mark.parametrize("nonsense", ["many", -3, None, 1.5, 2**80])
def test_a_nonsensical_count_is_no_count(core: _hot.Core, nonsense: Any) -> None:
    """What is no number of objects adds none, and leaves no exception behind."""
    collection(core, 2, collected=nonsense, uncollectable=nonsense)
    seen = taken(core).gc
    assert (seen.collected["gc2"], seen.uncollectable["gc2"], seen.collections["gc2"]) == (0, 0, 1)


def test_real_collections_are_counted_as_the_interpreter_counts(hook: GCHook, core: _hot.Core) -> None:
    """Collected objects are exactly what gc.collect() returns; generation 0 has no CPU time, the others have."""
    found = {}
    for generation in (0, 1, 2):
        for _ in range(100):
            cycle: list[Any] = []
            cycle.append(cycle)
        del cycle
        found[generation] = gc.collect(generation)
    seen = taken(core)
    for generation in (0, 1, 2):
        assert seen.gc.collected[f"gc{generation}"] == found[generation] >= 100
        assert seen.gc.collections[f"gc{generation}"] == seen.gc.pauses[generation].count == 1
    assert seen.gc.cpu["gc0"] == 0
    assert 0 < seen.gc.cpu["gc2"] <= seen.paused["gc2"] * 1.5


def test_slow_callbacks_of_others_are_counted_apart(hook: GCHook, core: _hot.Core) -> None:
    """What others' callbacks take at both edges is part of the pause, and shown."""

    def slow(phase: str, info: dict[str, int]) -> None:
        time.sleep(0.005)

    gc.callbacks.insert(1, slow)
    gc.collect(0)
    gc.callbacks.remove(slow)
    seen = taken(core)
    assert 0.010 <= seen.gc.callbacks["gc0"] <= seen.paused["gc0"]
    added = []
    for _ in range(5):
        before = taken(core).gc.callbacks["gc0"]
        gc.collect(0)
        added.append(taken(core).gc.callbacks["gc0"] - before)
    assert min(added) < 0.005


def test_an_inner_edge_that_was_not_seen_counts_as_nothing(hook: GCHook, core: _hot.Core) -> None:
    """A callback that hides ours during the start does not turn the time of others into nonsense."""

    def hiding(phase: str, info: dict[str, int]) -> None:
        gc.callbacks[:] = [core.gc_first, hiding] if phase == "start" else [core.gc_first, hiding, core.gc_last]

    before = list(gc.callbacks)
    collection(core, 0)
    gc.callbacks.insert(1, hiding)
    gc.collect(0)
    gc.callbacks[:] = before
    seen = taken(core)
    assert seen.gc.collections["gc0"] == 2
    assert seen.gc.callbacks["gc0"] <= seen.paused["gc0"]


# ---- stamps inside a pause ----


class Finalizer:
    """Garbage whose end runs code inside the collection."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.me = self

    def __del__(self) -> None:
        self.run()


def test_two_stamps_inside_one_open_pause_are_both_charged(hook: GCHook, core: _hot.Core) -> None:
    """A finalizer sleeps, stamps, sleeps, stamps: each gap is charged with its own part of the pause."""
    stream = core.stream("m", "r", None, "", "")
    charged = []

    def stamp() -> None:
        time.sleep(0.002)
        stream.token()
        charged.append(stream.overlap_ns)

    def run() -> None:
        stamp()
        stamp()

    stream.token()
    Finalizer(run)
    gc.collect(0)
    stream.token()
    pauses, _, _ = snapshots.Records(core.address).pauses(0, before_ns=_hot.now())
    assert charged[0] >= 2 * MS
    assert charged[1] - charged[0] >= 2 * MS
    assert (len(pauses), pauses[0].streams) == (1, 3)
    assert stream.overlap_ns == pytest.approx(pauses[0].seconds * 1e9, abs=MS)
    assert pauses[0].overlap * 1e9 == pytest.approx(stream.overlap_ns, abs=2)


def test_a_stream_of_another_thread_is_charged_too(hook: GCHook, core: _hot.Core) -> None:
    """While a finalizer lets other threads run, their stamps see the open pause."""
    stream = core.stream("m", "r", None, "", "")
    stream.token()
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        assert go.wait(30)
        stream.token()
        done.set()

    def run() -> None:
        time.sleep(0.002)
        go.set()
        assert done.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    Finalizer(run)
    gc.collect(0)
    thread.join()
    assert stream.overlap_ns >= 2 * MS
    assert taken(core).overlap_by_phase["itl"]["gc0"] * 1e9 == pytest.approx(stream.overlap_ns, abs=2)


def test_a_stamp_while_others_callbacks_end_a_collection(hook: GCHook, core: _hot.Core) -> None:
    """Another's callback lets a thread run at the stop: the pause is still open, and its end is not lost."""
    stream = core.stream("m", "r", None, "", "")
    stream.token()

    def slow(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            time.sleep(0.002)
            thread = threading.Thread(target=stream.token)
            thread.start()
            thread.join()
            time.sleep(0.002)

    gc.callbacks.insert(1, slow)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(slow)
    stream.token()
    seen = taken(core)
    pauses, _, _ = snapshots.Records(core.address).pauses(0, before_ns=_hot.now())
    assert seen.errors["gc_hook"] == 0
    assert [pause.streams for pause in pauses] == [2]
    assert pauses[0].callbacks >= 0.004
    assert stream.overlap_ns == pytest.approx(pauses[0].seconds * 1e9, abs=MS)


# ---- the freeze ----


def test_freeze_is_one_pause_of_our_own(hook: GCHook, core: _hot.Core) -> None:
    """Both collections inside it are booked as policy and nowhere else, with what they freed."""
    cycle: list[Any] = []
    cycle.append(cycle)
    del cycle
    done = hook.freeze()
    seen = taken(core)
    assert {cause: n for cause, n in seen.gc.collections.items() if n} == {"gc_own": 1}
    assert {cause for cause, seconds in seen.paused.items() if seconds} == {"gc_own"}
    assert seen.gc.collected["gc_own"] == done.collected >= 1
    pauses, _, _ = snapshots.Records(core.address).pauses(0, before_ns=_hot.now())
    assert [pause.collected for pause in pauses if pause.cause == "gc_own"] == [done.collected]
    assert done.seconds == pytest.approx(seen.paused["gc_own"], abs=1e-8)
    assert (done.unfrozen, done.reason) == (False, "requested")
    assert gc.get_freeze_count() > 0
    assert hook.external_freezes == 0


def test_detach_thaws_what_is_ours_alone(hook: GCHook) -> None:
    """After uninstall nothing is frozen any more."""
    hook.freeze()
    assert hook.detach() == []
    assert gc.get_freeze_count() == 0


def test_the_freeze_collects_before_and_after(calls: list[str], core: _hot.Core) -> None:
    """Collect, freeze, collect; refreeze() unfreezes first."""
    hook = GCHook(core, "freeze")
    hook.attach()
    assert hook.freeze().unfrozen is False
    assert calls == ["collect", "freeze", "collect"]
    calls.clear()
    assert hook.refreeze().unfrozen is True
    assert calls == ["unfreeze", "collect", "freeze", "collect"]
    hook.detach()


def test_the_freezes_of_others_are_seen_and_never_undone(calls: list[str], core: _hot.Core) -> None:
    """They are counted, they happen, and detach() returns why it leaves the heap frozen."""
    freeze = gc.freeze
    hook = GCHook(core, "freeze")
    hook.attach()
    hook.freeze()
    calls.clear()
    gc.freeze()
    gc.unfreeze()
    assert calls == ["freeze", "unfreeze"]
    assert (hook.external_freezes, hook.external_unfreezes) == (1, 1)
    (sentence,) = hook.detach()
    assert "stays frozen" in sentence
    assert calls == ["freeze", "unfreeze"]
    assert gc.freeze is freeze


def test_what_was_frozen_before_stays_frozen(calls: list[str], core: _hot.Core, patch: pytest.MonkeyPatch) -> None:
    """A heap that others had frozen before install() is not thawed by uninstall()."""
    patch.setattr(gc, "get_freeze_count", lambda: 50_000)
    hook = GCHook(core, "freeze")
    hook.attach()
    hook.freeze()
    assert "stays frozen" in hook.detach()[0]
    assert "unfreeze" not in calls


def test_what_the_interpreter_froze_itself_is_nobodys(
    calls: list[str], core: _hot.Core, patch: pytest.MonkeyPatch
) -> None:
    """CPython 3.12 starts with a few hundred frozen objects: uninstall() thaws all the same, and reports no freeze."""
    patch.setattr(gc, "get_freeze_count", lambda: 375)
    hook = GCHook(core, "freeze")
    hook.attach()
    hook.freeze()
    assert hook.detach() == []
    assert calls[-1] == "unfreeze"


def test_a_bare_interpreter_has_frozen_less_than_a_heap() -> None:
    """What this version freezes at start is below the bound from which a freeze counts as external."""
    bare = subprocess.run([sys.executable, "-c", "import gc; print(gc.get_freeze_count())"], capture_output=True)
    assert int(bare.stdout) < hooks_gc.INTERPRETER_FROZEN


def test_a_freeze_without_the_hook_is_reported(calls: list[str], core: _hot.Core) -> None:
    """With gc="off" other code is not watched, so the heap is left as it is, and that is reported."""
    hook = GCHook(core, "off")
    hook.freeze()
    assert "stays frozen" in hook.detach()[0]
    assert calls == ["collect", "freeze", "collect"]
    assert hook.detach() == []


def test_a_wrapper_around_ours_stays(core: _hot.Core, patch: pytest.MonkeyPatch) -> None:
    """Code that wrapped gc.freeze after us keeps its wrapper; ours inside it lets everything through."""
    frozen: list[str] = []
    patch.setattr(gc, "freeze", lambda: frozen.append("freeze"))
    hook = GCHook(core, "observe")
    hook.attach()
    ours = gc.freeze
    patch.setattr(gc, "freeze", lambda: ours())
    theirs = gc.freeze
    (sentence,) = hook.detach()
    assert sentence.startswith("gc.freeze was wrapped ")
    assert gc.freeze is theirs
    gc.freeze()
    assert frozen == ["freeze"]


def test_the_watched_functions_look_like_the_originals(hook: GCHook) -> None:
    """Name and documentation of gc.freeze and gc.unfreeze stay."""
    assert (gc.freeze.__name__, gc.unfreeze.__name__) == ("freeze", "unfreeze")
    assert (gc.freeze.__doc__ or "").startswith("Freeze all current tracked objects")


# ---- when it freezes ----


class Recorded(GCHook):
    """Records when it would have frozen."""

    def __init__(self, core: _hot.Core, policy: str = "freeze") -> None:
        super().__init__(core, policy)
        self.reasons: list[str] = []

    def freeze(self, *, reason: str = "requested") -> Freeze:
        self.reasons.append(reason)
        return Freeze(0.0, 0, False, reason)


@pytest.fixture
def recorded(core: _hot.Core) -> Iterator[Recorded]:
    made = Recorded(core)
    made.attach()
    yield made
    made.detach()


def test_it_freezes_at_start_up_and_once_after_warm_up(recorded: Recorded, core: _hot.Core) -> None:
    """Once before traffic, and once more at the first idle moment after 32 requests."""
    recorded.on_startup()
    recorded.on_startup()
    stamp_requests(core, WARM_REQUESTS - 1)
    recorded.on_idle()
    assert recorded.reasons == ["start-up"]
    assert recorded.waiting
    stamp_requests(core, 1)
    recorded.on_idle()
    recorded.on_idle()
    assert recorded.reasons == ["start-up", "warm-up"]
    assert not recorded.waiting


def test_without_a_start_up_the_first_idle_moment_serves(recorded: Recorded, core: _hot.Core) -> None:
    """A process that never reports its start freezes when its first request has ended."""
    stamp_requests(core, 1)
    recorded.on_idle()
    stamp_requests(core, WARM_REQUESTS)
    recorded.on_idle()
    assert recorded.reasons == ["first idle moment", "warm-up"]


def test_a_late_first_idle_moment_is_the_warm_up_too(recorded: Recorded, core: _hot.Core) -> None:
    """Where no idle moment came before 32 requests, one freeze does both."""
    stamp_requests(core, WARM_REQUESTS)
    recorded.on_idle()
    recorded.on_idle()
    assert recorded.reasons == ["first idle moment"]
    assert not recorded.waiting


def test_inside_a_collection_nothing_is_frozen(recorded: Recorded) -> None:
    """The last stream ends on another thread, or in a finalizer: gc.collect() does nothing there, so garbage would be
    frozen. The next moment without streams is used."""

    def idle(*_: object) -> None:
        recorded.on_idle(WARM_REQUESTS)

    gc.callbacks.insert(1, idle)
    gc.collect(0)
    gc.callbacks.remove(idle)
    assert recorded.reasons == [] and recorded.waiting
    recorded.on_idle(WARM_REQUESTS)
    assert recorded.reasons == ["first idle moment"]


def test_a_freeze_that_outlives_its_hook_freezes_nothing(core: _hot.Core, patch: pytest.MonkeyPatch) -> None:
    """It runs on the daemon's thread in an engine: uninstall() may come while it still collects, and waits for so long
    only."""
    hook = GCHook(core, "freeze")
    hook.attach()
    patch.setattr(gc, "collect", lambda: len(hook.detach()))
    hook.on_idle(WARM_REQUESTS)
    assert gc.get_freeze_count() < 1000


def test_an_app_that_comes_later_has_its_own_start_up(recorded: Recorded, core: _hot.Core) -> None:
    """What was frozen before, while other processes of the group served, was not yet what it loads."""
    recorded.on_idle(WARM_REQUESTS)
    assert not recorded.waiting
    recorded.start_over()
    recorded.on_startup()
    stamp_requests(core, WARM_REQUESTS)
    recorded.on_idle()
    assert recorded.reasons == ["first idle moment", "start-up", "warm-up"]


def test_it_is_waited_for_until_the_last_freeze_is_over(core: _hot.Core) -> None:
    """Another thread may look in the middle of it: a collection runs finalizers, and they hand over the GIL."""
    hook = GCHook(core, "freeze")
    hook.attach()
    stamp_requests(core, WARM_REQUESTS)
    seen: list[bool] = []

    def look(phase: str, info: dict[str, int]) -> None:
        seen.append(hook.waiting)

    gc.callbacks.append(look)
    try:
        hook.on_idle()
        assert not hook.waiting
    finally:
        gc.callbacks.remove(look)
        hook.detach()
    assert len(seen) >= 4 and all(seen)


@pytest.mark.parametrize("policy", ["observe", "off"])
def test_other_policies_never_freeze(core: _hot.Core, policy: str) -> None:
    """Only gc="freeze" does."""
    hook = Recorded(core, policy)
    hook.attach()
    hook.on_startup()
    stamp_requests(core, WARM_REQUESTS)
    hook.on_idle()
    hook.detach()
    assert (hook.reasons, hook.waiting) == ([], False)


def test_it_gives_up_ten_minutes_after_warm_up(recorded: Recorded, core: _hot.Core, patch: pytest.MonkeyPatch) -> None:
    """Patience counts from the 32nd request, not from install(); once spent, no idle moment serves any more."""
    clock = SimpleNamespace(now=0.0)
    patch.setattr(hooks_gc, "time", SimpleNamespace(monotonic=lambda: clock.now))
    recorded.on_startup()
    clock.now = 10 * WARM_PATIENCE_SECONDS  # a long night without requests
    recorded.expire()
    stamp_requests(core, WARM_REQUESTS)
    recorded.expire()
    clock.now += WARM_PATIENCE_SECONDS
    recorded.expire()
    assert not recorded.state.gave_up
    clock.now += 1
    recorded.expire()
    assert recorded.state.gave_up
    recorded.on_idle()
    assert recorded.reasons == ["start-up"]
    assert recorded.waiting


def test_a_freeze_that_was_done_is_not_given_up(recorded: Recorded, core: _hot.Core, patch: pytest.MonkeyPatch) -> None:
    """Once the warm-up freeze is done, time does not matter."""
    clock = SimpleNamespace(now=0.0)
    patch.setattr(hooks_gc, "time", SimpleNamespace(monotonic=lambda: clock.now))
    recorded.on_startup()
    stamp_requests(core, WARM_REQUESTS)
    recorded.expire()
    recorded.on_idle()
    clock.now = 10 * WARM_PATIENCE_SECONDS
    recorded.expire()
    assert not recorded.state.gave_up


# ---- the end of the interpreter ----

FINALISATION = """
import atexit, gc, sys
import tailwatch
watch = tailwatch.install(gc="observe")

class Node:
    def __init__(self):
        self.me = self
    def __del__(self):
        stream.token()

stream = watch.core.stream("m", "r", None, "", "")
held = [Node() for _ in range(1000)]
core, address = watch.core, watch.core.address
atexit.register(gc.collect)
if "teardown" in sys.argv:
    watch._daemon.stop()
    for name in [name for name in sys.modules if name.startswith("tailwatch")]:
        module = sys.modules.pop(name)
        module.__dict__.clear()
    del tailwatch, watch
    gc.collect()
if "thread" in sys.argv:
    import threading
    def churn():
        while True:
            a = []; a.append(a)
            gc.collect(0)
    threading.Thread(target=churn, daemon=True).start()
print("end")
"""


@pytest.mark.parametrize("how", ["plain", "teardown", "thread"])
def test_the_callbacks_survive_the_end_of_the_interpreter(how: str) -> None:
    """Collections during finalisation call ours when everything around them is gone: nothing is printed, no crash."""
    command = [sys.executable, "-X", "faulthandler", "-c", FINALISATION, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="until the counts of 3.14's collector can be read")
def test_the_unfrozen_heap_is_true_after_the_freeze_of_other_code_and_under_load() -> None:
    """The interpreter's books go on counting what other code froze, and what grew old and died: ours do not. What they
    can no longer know is not published, until the daemon has counted."""
    core = make_core()

    def published() -> int | None:
        return snapshots.take([core.address]).processes[0].policy.unfrozen

    hook = GCHook(core, "observe")
    hook.attach()
    kept = [[number] for number in range(50_000)]
    try:
        gc.collect()
        gc.freeze()
        assert (core.unfrozen or 0) < 1_000 and (published() or 0) < 1_000
        for _ in range(20):
            load = [[number] for number in range(2_000)]
            gc.collect(1)
            del load
        assert core.unfrozen is not None and core.unfrozen > 30_000  # by the books: they grew old
        assert published() is None
        core.count_heap()
        found = len(gc.get_objects())
        assert abs(core.unfrozen - found) < 1_000 and core.unfrozen == published()
        gc.unfreeze()
        gc.collect()
        assert core.unfrozen > 50_000
    finally:
        hook.detach()
    assert len(kept) == 50_000


def test_the_unfrozen_heap_is_what_a_full_collection_would_look_at() -> None:
    """By the collector's own books: near the objects that gc.get_objects() finds, and near none after a freeze."""
    core = make_core()
    assert core.unfrozen is None  # the collector is not watched
    hook = GCHook(core, "observe")
    hook.attach()
    kept = [[number] for number in range(50_000)]
    gc.collect()
    try:
        books, found = core.unfrozen, len(gc.get_objects())
        assert sys.version_info >= (3, 14) or (books is not None and abs(books - found) < 5_000)
        hook.freeze()
        assert sys.version_info >= (3, 14) or (core.unfrozen or 0) < 5_000
    finally:
        hook.detach()
    assert len(kept) == 50_000
