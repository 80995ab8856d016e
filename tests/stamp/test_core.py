"""tailwatch._hot by itself: what it takes, what it refuses, and that it leaks nothing."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tailwatch import _hot, snapshots

SLO = (0, 0, 0, 0, 990_000)


def make_core(role: str = "api", sets: int = 4, slo: tuple[int, ...] = SLO, slow_ns: int = 0) -> _hot.Core:
    return _hot.Core(role, sets, slo, slow_ns, lambda scope: "/", lambda awaitable, stream: awaitable)  # type: ignore[arg-type]


def test_the_clock_is_the_monotonic_one() -> None:
    """now() is CLOCK_MONOTONIC in ns."""
    before = time.monotonic_ns()
    assert before <= _hot.now() <= time.monotonic_ns()


def test_a_tick_of_the_kernel_is_some_milliseconds() -> None:
    """Between 1 and 10 ms on every Linux there is."""
    assert 1_000_000 <= _hot.jiffy_ns() <= 10_000_000


@pytest.mark.parametrize("descriptor", [-1, 1_000_000])
def test_what_is_no_socket_has_no_wait(descriptor: int) -> None:
    """tcp_wait_ns() returns -1 for anything that is not an open TCP socket."""
    assert _hot.tcp_wait_ns(descriptor) == -1


def test_tcp_wait_needs_a_number() -> None:
    """Anything but a descriptor is a TypeError."""
    with pytest.raises(TypeError):
        _hot.tcp_wait_ns("0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        (("api", 4, SLO, 0, None), TypeError),
        ((1, 4, SLO, 0, None, None), TypeError),
        (("api", 0, SLO, 0, None, None), ValueError),
        (("api", 4097, SLO, 0, None, None), ValueError),
        (("api", 4, SLO[:4], 0, None, None), TypeError),
        (("api", 4, 5, 0, None, None), TypeError),
        (("api", 4, ("a",) * 5, 0, None, None), TypeError),
    ],
)
def test_a_core_refuses_nonsense(arguments: tuple[Any, ...], error: Any) -> None:
    """A bad argument is an ordinary exception."""
    with pytest.raises(error):
        _hot.Core(*arguments)


@pytest.mark.parametrize("sets", [2, 4096])
def test_memory_grows_with_the_label_sets_in_use(sets: int) -> None:
    """bytes is what the label sets in use take, however many there may be, up to that many."""
    core = make_core(sets=sets)
    assert core.bytes == snapshots.take([core.address]).processes[0].bytes == make_core(sets=1).bytes
    sizes = []
    for number in range(min(sets, 5)):
        core.stream(f"model {number}", "/", None, "", "").close()
        sizes.append(core.bytes)
    assert core.bytes == snapshots.take([core.address]).processes[0].bytes
    steps = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    assert steps == ([0] if sets == 2 else [steps[0]] * 4) and sizes[0] > make_core(sets=1).bytes
    assert core.reserved == make_core(sets=1).bytes + (sets - 1) * (sizes[0] - make_core(sets=1).bytes)


def test_streams_and_requests_in_flight_are_counted() -> None:
    """opened counts up, in_flight goes back when a stream ends."""
    core = make_core()
    streams = [core.stream("m", "r", None, "", "") for _ in range(3)]
    assert (core.opened, core.in_flight) == (3, 3)
    streams[0].close()
    streams[0].close()
    assert (core.opened, core.in_flight) == (3, 2)


@pytest.mark.parametrize(("method", "counters"), [("count_error", "errors"), ("count_drop", "drops")])
@pytest.mark.parametrize("index", [-1, None, 2**70, "x"], ids=["-1", "one too many", "2**70", "x"])
def test_counters_that_do_not_exist(method: str, counters: str, index: Any) -> None:
    """They are refused, and nothing is written; the last one that exists is counted."""
    core = make_core()
    names = list(getattr(snapshots.take([core.address]), counters))
    with pytest.raises((ValueError, OverflowError, TypeError)):
        getattr(core, method)(len(names) if index is None else index)
    assert not any(getattr(snapshots.take([core.address]), counters).values())
    getattr(core, method)(len(names) - 1)
    assert getattr(snapshots.take([core.address]), counters) == {**dict.fromkeys(names, 0), names[-1]: 1}


def test_configure_takes_effect_at_once() -> None:
    """Other bounds and another threshold, without another core."""
    core = make_core()
    core.configure((1_000_000, 0, 0, 0, 990_000), 5)
    assert snapshots.take([core.address]).slo.ttft == 0.001
    stream = core.stream("m", "r", 1000, "", "")
    stream.token(at=3_000_000)
    stream.close(at=3_000_000)
    assert snapshots.take([core.address]).requests["late"] == 1


def test_policy_passes_nest() -> None:
    """The outermost one is booked; an inner end returns None, an end too many too."""
    core = make_core()
    core.policy_begin()
    core.policy_begin()
    assert core.policy_end() is None
    assert core.paused_now()
    time.sleep(0.001)
    assert (core.policy_end() or 0) >= 1_000_000
    assert core.policy_end() is None
    assert not core.paused_now()
    assert snapshots.take([core.address]).gc.collections["gc_own"] == 1


def test_cancel_pause_books_nothing() -> None:
    """A collection whose end never comes is counted as lost and as an error, and nowhere else."""
    core = make_core()
    core.cancel_pause()
    core.watch_gc(0, [], core.gc_last)
    core.gc_first("start", {"generation": 2})
    assert core.paused_now()
    core.cancel_pause()
    seen = snapshots.take([core.address])
    assert not core.paused_now()
    assert (sum(seen.paused.values()), seen.processes[0].lost) == (0, 1)
    assert seen.errors == {**dict.fromkeys(seen.errors, 0), "gc_hook": 1}


def test_cancel_pause_leaves_a_collection_that_ends() -> None:
    """While the callable that closes it is in the list, an open collection goes on and is booked."""
    core = make_core()
    last = core.gc_last
    core.watch_gc(0, [core.gc_first, last], last)
    core.gc_first("start", {"generation": 1})
    core.cancel_pause()
    assert core.paused_now()
    last("stop", {"generation": 1})
    seen = snapshots.take([core.address])
    assert (core.paused_now(), seen.processes[0].lost, seen.gc.collections["gc1"]) == (False, 0, 1)


@pytest.mark.parametrize("collecting", [False, True])
def test_cancel_pause_leaves_a_policy_pass(collecting: bool) -> None:
    """A pass of ours goes on and is booked, also where a collection inside it lost its end."""
    core = make_core()
    core.watch_gc(0, [], core.gc_last)
    core.policy_begin()
    if collecting:
        core.gc_first("start", {"generation": 2})
    core.cancel_pause()
    assert core.paused_now()
    assert core.policy_end() is not None
    seen = snapshots.take([core.address])
    assert (core.paused_now(), seen.processes[0].lost) == (False, 0)
    assert {cause: n for cause, n in seen.gc.collections.items() if n} == {"gc_own": 1}
    assert seen.errors["gc_hook"] == collecting


def test_a_callback_that_takes_itself_out_at_the_stop() -> None:
    """The list skips our last callable then: the pause ends where the first saw it end, and charges no stream more."""
    core = make_core()
    first, last = core.gc_first, core.gc_last
    callbacks: list[Callable[[str, dict[str, int]], None]] = []
    core.watch_gc(0, callbacks, last)

    def once(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            callbacks.remove(once)

    callbacks += [first, once, last]
    stream = core.stream("m", "r", None, "", "")
    for _ in range(20):
        stream.token()
    began = _hot.now()
    for phase in ("start", "stop"):
        for callback in callbacks:  # as CPython walks it: by position
            callback(phase, {"generation": 2})
        if phase == "start":
            time.sleep(0.002)
    ended = _hot.now()
    assert callbacks == [first, last]
    assert core.paused_now()
    time.sleep(0.005)
    stream.token()
    overlap = stream.overlap_ns
    assert not core.paused_now()
    assert 2_000_000 <= overlap <= ended - began
    time.sleep(0.002)
    stream.token()
    assert stream.overlap_ns == overlap
    seen = snapshots.take([core.address])
    assert seen.paused["gc2"] * 1e9 == pytest.approx(overlap, abs=2)
    assert (seen.gc.collections["gc2"], seen.processes[0].lost, seen.errors["gc_hook"]) == (1, 0, 1)


def test_a_lost_stop_is_settled_by_the_next_start() -> None:
    """Without a stream that asks, the next collection closes the one before: both are booked, with one error."""
    core = make_core()
    last = core.gc_last
    core.watch_gc(0, [core.gc_first, print, last], last)
    began = _hot.now()
    core.gc_first("start", {"generation": 0})
    core.gc_first("stop", {"generation": 0})  # and the last one is skipped
    ended = _hot.now()
    time.sleep(0.005)
    core.gc_first("start", {"generation": 1})
    last("start", {"generation": 1})
    core.gc_first("stop", {"generation": 1})
    last("stop", {"generation": 1})
    seen = snapshots.take([core.address])
    assert (seen.gc.collections["gc0"], seen.gc.collections["gc1"], seen.errors["gc_hook"]) == (1, 1, 1)
    assert seen.paused["gc0"] * 1e9 <= ended - began + 1
    assert not core.paused_now()


def test_a_callback_that_takes_itself_out_of_a_real_collection() -> None:
    """CPython's own walk of gc.callbacks skips our last callable too: the pause is closed, and the next is whole."""
    core, before = make_core(), gc.callbacks[:]
    first, last = core.gc_first, core.gc_last

    def once(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(once)

    core.watch_gc(0, gc.callbacks, last)
    gc.disable()
    try:
        gc.callbacks[:] = [first, once, last]
        gc.collect(0)
        lost = core.paused_now()
        core.cancel_pause()
        closed = not core.paused_now()
        gc.collect(0)
    finally:
        gc.callbacks[:] = before
        gc.enable()
    seen = snapshots.take([core.address])
    assert (lost, closed, core.paused_now()) == (True, True, False)
    assert (seen.gc.collections["gc0"], seen.processes[0].lost, seen.errors["gc_hook"]) == (2, 0, 1)


def test_reset_forgets_and_inherited_streams_do_not_count() -> None:
    """What a fork child does: counters from zero, and what was open before writes nothing any more."""
    core = make_core()
    open_before, dropped = (core.stream("m", "r", None, "", "") for _ in range(2))
    open_before.token()
    core.policy_begin()
    core.reset()
    assert (core.opened, core.in_flight, core.paused_now()) == (0, 0, False)
    fresh = core.stream("new", "r", None, "", "")
    open_before.token()
    open_before.token(5, choice=1)
    open_before.usage(100)
    open_before.label("other", "r")
    open_before.record_send_wait(0, 10)
    open_before.close()
    del dropped
    fresh.token()
    fresh.close()
    seen = snapshots.take([core.address])
    assert (core.opened, core.in_flight) == (1, 0)
    assert (seen.tokens, sum(seen.requests.values()), seen.ttft.count, seen.itl.count) == (1, 1, 1, 0)
    assert seen.send_wait.count == 0
    assert seen.labels == [("new", "r")]
    assert not any(seen.drops.values())


def test_a_core_in_a_cycle_is_freed() -> None:
    """The callbacks it is given may refer to it: the collector takes all of it apart."""

    class Router:
        core: _hot.Core

        def __call__(self, scope: Any) -> str:
            return "/"

    router = Router()
    router.core = _hot.Core("api", 1, SLO, 0, router, router)
    router.core.watch_gc(0, gc.callbacks, router.core.gc_last)
    gone = weakref.ref(router)
    del router
    gc.collect()
    assert gone() is None


def test_streams_do_not_leak() -> None:
    """10^5 streams leave as many objects and references as there were."""
    core = make_core()
    for _ in range(100):
        core.stream("m", "r", None, "", "").close()
    before = sys.getrefcount(core), sys.getrefcount(_hot.Stream)
    for _ in range(100_000):
        stream = core.stream("m", "r", None, "id", "trace")
        stream.token()
        stream.token(2, choice=1)
        stream.close()
    del stream
    assert (sys.getrefcount(core), sys.getrefcount(_hot.Stream)) == before
    assert core.in_flight == 0


@pytest.mark.parametrize("name", ["Stream", "Send"])
def test_streams_are_made_by_a_core_only(name: str) -> None:
    """A stream without a core cannot be made from Python."""
    kind = getattr(_hot, name)
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(TypeError):
        object.__new__(kind)


def test_a_sub_interpreter_is_refused() -> None:
    """It has a collector of its own: the import raises instead of counting wrong."""
    script = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = '''
try:
    import tailwatch._hot
except ImportError as error:
    print(error, flush=True)
else:
    print("imported", flush=True)
'''
new = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create()
run = getattr(interpreters, "exec", None) or interpreters.run_string
run(new, code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd="/")
    assert "main interpreter only" in done.stdout or "loading in subinterpreters" in done.stdout, done
    assert done.returncode == 0


# ---- engines ----

NO_ENGINES: list[Any] = [
    -1,
    2**32,
    10**400,
    True,
    1.0,
    "a b",
    " 1",
    "1 ",
    "x" * 32,
    "\u0661",
    "\ud800",
    "-1",
    b"1",
    ["1"],
]


@pytest.mark.parametrize("engine", NO_ENGINES, ids=repr)
def test_what_is_no_engine_is_refused(engine: Any) -> None:
    """By bind() and by engine_id(), in words that define one; nothing is bound then."""
    stream = make_core().stream("m", "r", None, "", "")
    for refuse in (stream.bind, _hot.engine_id):
        with pytest.raises((ValueError, UnicodeError), match="engine: expected a number"):
            refuse(engine)


def test_an_engine_is_a_number_or_a_name() -> None:
    """Numbers however they are written; nothing is no engine; whatever a stream is in, bind() takes them."""
    assert _hot.engine_id(7) == _hot.engine_id("7") == _hot.engine_id("007") != _hot.engine_id("7a")
    assert _hot.engine_id(None) == _hot.engine_id("") == 0 != _hot.engine_id(0)
    stream = make_core().stream("m", "r", None, "", "")
    for engine in (0, "0", "prefill-1", None, ""):
        stream.bind(engine)
        stream.bind(engine, part=True)
        stream.token()
    stream.close()
    stream.bind(1)
    assert stream.tokens == 5
    with pytest.raises(TypeError):
        stream.bind()  # type: ignore[call-arg]
