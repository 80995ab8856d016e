"""What the collector's policy did, and what others did to the collector: counted, in sentences, and in a group."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailwatch
from tailwatch import snapshots
from tailwatch.export.prometheus.render import render
from tailwatch.gc import interference
from tailwatch.gc.idle import SAFETY_NET, SLICE_REASONS
from tailwatch.runtime.session import Watch
from tailwatch.snapshots import serialization

from ..support.process import Python
from ..support.waiting import until_async

BOOKS_KNOWN = sys.version_info < (3, 14)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """A process under idle, its heap frozen; automatic collections come only where a test makes one."""
    thresholds = gc.get_threshold()  # those that a test sets are the host's: they stay
    gc.freeze()  # and before that, as by a server: no collection goes through the test run's own heap
    watch = tailwatch.install(gc="idle")
    tailwatch.freeze()
    yield watch
    tailwatch.uninstall()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_names_are_those_of_the_core() -> None:
    """What Python calls by number has the name that the core shows."""
    assert interference.POLICIES == snapshots.POLICIES
    assert interference.MODES == snapshots.POLICY_MODES
    assert interference.WHYS == snapshots.POLICY_WHYS
    assert interference.CALLS == snapshots.INTERFERENCES
    assert interference.MEMORY_LIMITS == snapshots.MEMORY_LIMITS
    assert SLICE_REASONS == snapshots.SLICE_REASONS


def test_slices_and_what_they_cost_are_reported(watch: Watch) -> None:
    """By what gave the moment; what they took, and were predicted to take; how large the heap is."""
    before = tailwatch.gc_status()
    for _ in range(3):
        watch.gc.idle_gc.slicer.slice(500)
    status = tailwatch.gc_status()
    assert status.slices["requested"] - before.slices["requested"] == 3
    assert status.moved > before.moved
    assert status.seconds > before.seconds and status.predicted_seconds > before.predicted_seconds
    own = watch.snapshot().processes[0].policy
    assert (own.kind, own.mode, own.why) == ("idle", "slices", "")
    assert own.frozen is not None and own.frozen > 1000
    assert own.unfrozen is not None and 0 <= own.unfrozen < 1000
    assert own.cost > 0 and own.freezes == status.freezes == 1
    (name,) = status.processes
    assert (name, status.processes[name].slices) == ("worker-0", own.slices)
    earlier = watch.snapshot()
    assert (watch.snapshot() - earlier).processes[0].policy.slices["requested"] == 0


def test_the_processor_time_of_slices_is_reported(watch: Watch) -> None:
    """Of a walk, which waits for nothing, it is what the walk took: of the same thread's clock, around it."""
    kept = [[number] for number in range(200_000)]
    gc.collect(0)
    before, began = watch.snapshot().gc.cpu["gc_own"], time.thread_time()
    for _ in range(50):
        watch.gc.idle_gc.slicer.slice(100_000)
    took = time.thread_time() - began
    assert 0.5 * took < watch.snapshot().gc.cpu["gc_own"] - before < 2 * took  # the daemon's may be among them
    assert len(kept) == 200_000


class Slow:
    """What ends takes its time."""

    seconds = 0.0

    def __init__(self) -> None:
        self.me = [self]

    def __del__(self) -> None:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:  # a sleep would let other threads in
            pass


def test_what_a_round_lets_go_of_is_no_callback_s_time(watch: Watch) -> None:
    """A whole collection by other code begins with that: in its pause, and not booked as others' callbacks."""
    slicer, interval = watch.gc.idle_gc.slicer, sys.getswitchinterval()
    many = [Slow() for _ in range(3_000)]
    for one, other in itertools.pairwise(many):
        other.me.append(one)
    del one, other
    gone = [weakref.ref(each) for each in many]
    gc.collect(0)
    gc.collect(1)

    def others(phase: str, info: dict[str, int]) -> None: ...

    before = watch.snapshot()
    gc.callbacks.insert(1, others)
    sys.setswitchinterval(1000)  # the daemon would end the round
    try:
        many.clear()
        while slicer.counts()["held"] < 500:
            slicer.round()
            slicer.slice(2_000)
        for each in gone:
            if (slow := each()) is not None:
                slow.me.clear()
        del slow
        left = sum(each() is not None for each in gone)
        assert left > 100  # the dead that are put in order: nothing else holds them now
        Slow.seconds = 0.2 / left
        gc.collect()
    finally:
        sys.setswitchinterval(interval)
        gc.callbacks.remove(others)
        Slow.seconds = 0.0
    found = (watch.snapshot() - before).gc
    assert found.max["gc2"] >= 0.2
    assert found.callbacks["gc2"] < 0.2  # which is what the finalizer takes at least


@pytest.mark.skipif(not BOOKS_KNOWN, reason="the collector's books are not known in this Python")
def test_collections_are_counted_apart(watch: Watch) -> None:
    """The interpreter's own and those that code called for, by whatever name it had for it."""
    from gc import collect as theirs

    before = watch.gc_status().collections
    gc.collect()
    theirs(0)
    theirs(1)
    with pytest.raises(ValueError, match="generation"):
        theirs(7)
    assert watch.gc_status().collections["external"] - before["external"] == 3
    assert watch.gc_status().collections["automatic"] == before["automatic"]
    gc.set_threshold(50)
    kept = [[number] for number in range(400)]
    gc.set_threshold(SAFETY_NET)
    after = watch.gc_status().collections
    assert after["automatic"] > before["automatic"] and len(kept) == 400
    assert after["external"] - before["external"] == 3 and after["unknown"] == 0


@pytest.mark.skipif(not BOOKS_KNOWN, reason="the collector's books are not known in this Python")
def test_automatic_collections_of_each_generation_are_the_interpreter_s() -> None:
    """Under any policy: the middle and the oldest come by count, too, and were not called for."""
    gc.freeze()  # what the test run has made: a full collection comes when a quarter of the oldest has been added
    watch = tailwatch.install(gc="observe")
    try:
        gc.collect()
        before = watch.snapshot()
        kept = [[number] for number in range(400_000)]
        window = watch.snapshot() - before
    finally:
        tailwatch.uninstall()
        gc.unfreeze()
    ended = sum(window.gc.collections.values())
    policy = window.processes[0].policy
    assert len(kept) == 400_000 and window.gc.collections["gc2"] > 0 and window.gc.collections["gc1"] > 0
    assert policy.collections["automatic"] == ended and policy.collections["external"] == 0
    assert policy.kind == "observe" and policy.slices == dict.fromkeys(SLICE_REASONS, 0)


def test_what_others_do_to_the_collector_is_counted_and_done(watch: Watch) -> None:
    """Each call goes through, and is reported; an error stays the caller's and is no interference."""
    assert tailwatch.gc_status().sentences == ()
    gc.disable()
    assert not gc.isenabled()
    gc.enable()
    gc.set_threshold(gc.get_threshold()[0], 12)
    assert gc.get_threshold()[1] == 12
    with pytest.raises(TypeError):
        gc.set_threshold("many")  # type: ignore[arg-type]
    status = tailwatch.gc_status()
    assert {name: n for name, n in status.interference.items() if n} == {"enable": 1, "disable": 1, "set_threshold": 1}
    assert sum("other code called" in sentence for sentence in status.sentences) == 3
    assert sum("the gc thresholds are" in sentence for sentence in status.sentences) == 1
    text = bytes(render(watch.snapshot(), version="", python="", slo="")).decode()
    assert 'tailwatch_gc_interference_total{process="worker-0",call="disable"} 1\n' in text


def test_ours_are_no_interference() -> None:
    """Install, freeze, a whole pass, uninstall: no other code did anything, and no collection is external."""
    watch = tailwatch.install(gc="idle")
    try:
        tailwatch.freeze()
        tailwatch.refreeze()
        watch.gc.idle_gc._whole_pass()
        status = tailwatch.gc_status()
    finally:
        tailwatch.uninstall()
        gc.unfreeze()
    assert status.sentences == () and not any(status.interference.values())
    assert status.collections["external"] == 0 and status.collections["request_end"] == 1
    assert status.full_seconds > 0 and status.freezes == 2


@pytest.mark.parametrize("collect", [True, False])
def test_whether_a_foreign_freeze_was_blind_is_reported(watch: Watch, collect: bool) -> None:
    """Right after a full collection it froze next to no garbage; else it is not known how much, and that is
    reported."""
    gc.collect(2 if collect else 0)
    gc.freeze()
    status = tailwatch.gc_status()
    assert status.interference["freeze"] == 1 and status.interference["freeze_blind"] == (not collect)
    (sentence,) = [each for each in status.sentences if "gc.freeze()" in each]
    assert ("almost no garbage" in sentence) is collect
    assert ("garbage may have been frozen" in sentence) is not collect


def test_many_objects_after_the_collection_make_it_blind(watch: Watch) -> None:
    """Objects that came since may be garbage."""
    gc.collect()
    kept = [[] for _ in range(5000)]  # type: ignore[var-annotated]
    gc.freeze()
    assert tailwatch.gc_status().interference["freeze_blind"] == 1 and len(kept) == 5000


def test_taking_our_callbacks_out_is_counted(watch: Watch) -> None:
    """And they come back."""
    gc.callbacks.clear()
    assert not watch.gc.verify()
    assert tailwatch.gc_status().interference["callbacks"] == 1
    assert len(gc.callbacks) == 2


def test_everything_is_given_back() -> None:
    """The functions of gc are the interpreter's again; their names and docstrings stay meanwhile."""
    names = ("enable", "disable", "set_threshold", "freeze", "unfreeze", "collect")
    before = [getattr(gc, name) for name in names]
    tailwatch.install(gc="observe")
    during = [(getattr(gc, name).__name__, getattr(gc, name).__doc__) for name in names]
    assert tailwatch.uninstall() == []
    assert [getattr(gc, name) for name in names] == before
    assert during == [(each.__name__, each.__doc__) for each in before]


def test_a_fork_child_keeps_its_policy_and_counts_from_zero(watch: Watch) -> None:
    """What it is stays, what was done is the parent's."""
    watch.gc.idle_gc.slicer.slice(100)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            policy = watch.snapshot().processes[0].policy
            facts = [
                policy.kind,
                policy.mode,
                sum(policy.slices.values()),
                sum(policy.collections.values()),
                policy.freezes,
            ]
            os.write(write, json.dumps(facts).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        facts = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert facts == ["idle", "slices", 0, 0, 0]


def test_a_saved_snapshot_keeps_its_policies(watch: Watch) -> None:
    """As JSON and back; one of an older version has none."""
    data = json.loads(json.dumps(watch.snapshot().as_dict()))
    policy = serialization.from_dict(data).processes[0].policy
    assert (policy.kind, policy.mode, policy.interference["freeze"]) == ("idle", "slices", 0)
    del data["processes"][0]["policy"]
    assert serialization.from_dict(data).processes[0].policy.kind == "unknown"


def test_off_is_reported_too() -> None:
    """Nothing is hooked, and that is what the metrics show."""
    watch = tailwatch.install(gc="off")
    try:
        assert watch.snapshot().processes[0].policy.kind == "off"
        assert tailwatch.gc_status().kind == "off"
    finally:
        tailwatch.uninstall()


OTHER = """
import sys, tailwatch
tailwatch.install(gc=sys.argv[1], role="engine", dir=sys.argv[2])
tailwatch.freeze()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_group_is_reported_by_process(tmp_path: Path) -> None:
    """The policy of each living process, and what its dead have done, as long as they count."""
    directory = str(tmp_path)
    with Python(OTHER, "freeze", directory) as other:
        assert other.read_line() == "ready"
        tailwatch.install(gc="observe", dir=directory)
        try:
            processes = tailwatch.gc_status().processes
            kinds = {name: policy.kind for name, policy in processes.items()}
            freezes = {name: policy.freezes for name, policy in processes.items()}
            other.finish()
            after = {process.name: process.policy for process in tailwatch.snapshot().processes}
            living = set(tailwatch.gc_status().processes)
        finally:
            tailwatch.uninstall()
    assert kinds == {"worker-0": "observe", "engine-0": "freeze"}
    assert freezes == {"worker-0": 0, "engine-0": 1}
    assert (after["engine-0"].kind, after["engine-0"].freezes) == ("unknown", 1)
    assert living == {"worker-0"}


def test_idle_slices_are_reported_as_such(watch: Watch) -> None:
    """A loop that waits gives the moment."""

    kept: list[list[int]] = []

    def slices() -> int:
        kept[:] = [[] for _ in range(900)]
        return tailwatch.gc_status().slices["idle"]

    async def wait() -> None:
        watch.gc.idle_gc.use_loop()
        await until_async(slices, "a slice while the loop waits")

    asyncio.run(wait())
