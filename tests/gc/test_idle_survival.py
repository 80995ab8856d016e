"""What the slicer must bear: no memory, tuples that are being built, wide objects, strange freezes and forks."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailwatch import _hot, snapshots

from .slicing import SMALL, alive, begin, core, end, old, rounds

WIDE = 1024  # references of one object that a walk follows, as csrc/python/gc/traverse.h has it
REFCOUNT = ctypes.c_uint32 if sys.version_info >= (3, 12) else ctypes.c_ssize_t


class Node:
    """Of a cycle."""

    def __init__(self, **more: Any) -> None:
        self.me = [self]
        self.__dict__.update(more)


@pytest.fixture
def slicer() -> Iterator[_hot.Slicer]:
    """One over a heap that is frozen."""
    policy = begin()
    yield policy.slicer
    end(policy)


WITHOUT_MEMORY = """
import ctypes, gc, resource, sys, weakref
from tailwatch import _hot, snapshots
from tailwatch.gc.idle import IdleGC

class Node:
    def __init__(self):
        self.me = [self]

malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
gc.disable()
policy = IdleGC(_hot.Core("api", 1, (0,) * 5, 0, lambda scope: "", lambda sent, stream: sent), sys.exit)
policy.prepare()
gc.collect(), policy.freeze(gc.freeze), gc.collect()
slicer = policy.slicer
keep = [Node() for _ in range(20000)]
nodes = [Node() for _ in range(20000)]
kept, gone = [[weakref.ref(each) for each in group] for group in (keep, nodes)]
gc.collect(0), gc.collect(1)
del nodes
slicer.slice(2000)
slicer.forget()  # and with it all marks
taken, size = [0] * 1_000_000, 1 << 16
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
n = 0
while size >= 32:
    block = malloc(size)
    if block is None:
        size //= 2
    else:
        taken[n] = block
        n += 1
failed = 0
for _ in range(300):
    try:
        slicer.slice(2000)
    except MemoryError:
        failed += 1
without = sum(each() is None for each in gone)
for i in range(n):
    free(taken[i])
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
rounds = slicer.counts()["cycles"]
while slicer.counts()["cycles"] < rounds + 3:
    slicer.round()
    slicer.slice(20000)
print(without < 20000, sum(each() is None for each in gone), sum(each() is None for each in kept))
"""


@pytest.mark.skipif(
    hasattr(sys, "gettotalrefcount") or "PYTHONMALLOC" in os.environ,
    reason="needs a release build of CPython and its own allocator: unset PYTHONMALLOC",
)
def test_without_memory_it_frees_less_and_nothing_else() -> None:
    """Not one more byte for marks: no harm is done; once there is memory again all that is dead dies."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "True 20000 0\n"), done.stderr[-2000:]


@pytest.mark.parametrize("number", [200, 10_000])
def test_what_is_being_built_has_no_other_holder(slicer: _hot.Slicer, number: int) -> None:
    """C code makes a tuple longer, or fills a frozen set, only while it alone holds it."""
    api = ctypes.pythonapi
    new, resize = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t)(("PyTuple_New", api)), api._PyTuple_Resize
    new_set = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("PyFrozenSet_New", api))
    resize.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
    let_go = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", api))
    before = [Node() for _ in range(200)]
    sets = {turn for turn in range(number) if turn % 5 == 0 and number < 1000}
    built = [new_set(None) if turn in sets else new(2) for turn in range(number)]
    nodes = [Node() for _ in range(200)]
    gone, kept = old(nodes), old(before)
    nodes.clear()
    references = [REFCOUNT.from_address(address) for address in built]  # nothing in Python holds them
    for _ in range(400):
        slicer.slice(SMALL)
        assert {each.value for each in references} == {1}
    for turn in range(number):
        if turn not in sets:
            tuple_ = ctypes.c_void_p(built[turn])
            assert resize(ctypes.byref(tuple_), 3) == 0
            built[turn] = tuple_.value
    for each in built:
        let_go(each)
    rounds(slicer, 1)
    assert (alive(gone), alive(kept)) == (0, 200)


@pytest.mark.parametrize("kind", [tuple, frozenset])
def test_tuples_in_use_do_not_stop_a_round(slicer: _hot.Slicer, kind: Callable[..., Any]) -> None:
    """However many stand in a row: once something old refers to one it may be held."""
    nodes = [Node() for _ in range(500)]
    parts = [object.__new__(Node) for _ in range(40_000)]
    many: list[Any] = []
    for part in parts:
        many.append(kind([part]))
    gone = old(nodes)
    nodes.clear()
    rounds(slicer, 1, SMALL)
    assert alive(gone) == 0
    assert len(many) == 40_000


def test_iterators_that_use_their_tuple_again(slicer: _hot.Slicer) -> None:
    """zip(), enumerate() and dict.items() give a new one where the last is held; what they give is right."""
    things = [Node() for _ in range(3000)]
    by_number = dict(enumerate(things))
    iterators = [zip(things, things, strict=True), enumerate(things), iter(by_number.items())]
    old(things)
    for turn in range(len(things)):
        given = [next(iterator) for iterator in iterators]
        assert given == [(things[turn], things[turn]), (turn, things[turn]), (turn, things[turn])]
        del given
        if turn % 10 == 0:
            slicer.slice(SMALL)


def test_tuples_grow_between_slices(slicer: _hot.Slicer) -> None:
    """tuple(iterator) makes longer what slices meet meanwhile, at every depth."""

    def grow(depth: int) -> Iterator[Any]:
        for turn in range(12):
            slicer.slice(SMALL)
            if turn == 6 and depth > 0:
                gc.collect(0), gc.collect(1)
                yield tuple(grow(depth - 1))
            yield [turn]

    made = tuple(grow(40))
    for depth in range(40, 0, -1):
        assert [each for each in made if isinstance(each, list)] == [[turn] for turn in range(12)], depth
        made = next(each for each in made if isinstance(each, tuple))


def looks_of_the_longest(slicer: _hot.Slicer, number: int) -> int:
    """The most that one slice of so many whole rounds looked at."""
    begun, most = slicer.counts(), 0
    while slicer.counts()["cycles"] - begun["cycles"] <= number:
        before = slicer.counts()["looks"]
        slicer.round()
        slicer.slice(SMALL)
        most = max(most, slicer.counts()["looks"] - before)
    return most


@pytest.mark.parametrize("shape", ["list", "dict", "tuple", "set"])
def test_a_wide_object_lives_and_makes_no_slice_long(slicer: _hot.Slicer, shape: str) -> None:
    """What it holds lives; what is taken out of it dies; no slice goes through all of it."""
    held = [Node() for _ in range(60_000)]
    wide: Any = (
        dict.fromkeys(held, None) if shape == "dict" else {"list": list, "tuple": tuple, "set": set}[shape](held)
    )
    hub = Node(wide=wide)
    doomed = [Node(hub=hub) for _ in range(2000)]
    gone, kept = old(doomed), old(held)
    if shape == "list":
        wide[30_000:30_000], wide[:0] = doomed[:1000], doomed[1000:]
        rounds(slicer, 1)
        assert alive(gone) == 2000
        del wide[31_000:32_000], wide[:1000]
    held.clear(), doomed.clear()
    assert looks_of_the_longest(slicer, 2) < SMALL + 3 * WIDE
    assert (alive(gone), alive(kept)) == (0, 60_000)
    assert all(ref() in hub.__dict__["wide"] for ref in kept[::10_000])
    del hub, wide
    rounds(slicer, 1)
    gc.collect()
    assert alive(kept) == 0


def test_a_dead_wide_object_dies(slicer: _hot.Slicer) -> None:
    """With what it holds, where that does not hold it; where it does, at the next whole pass at the latest."""
    owner, ring = Node(parts=[Node() for _ in range(60_000)]), Node()
    ring.__dict__["parts"] = [Node(ring=ring) for _ in range(60_000)]
    gone, parts = old([owner, ring]), old([*owner.__dict__["parts"], *ring.__dict__["parts"]])
    del owner, ring
    rounds(slicer, 4)
    assert gone[0]() is None
    assert alive(parts[:60_000]) == 0
    slicer.whole()
    assert alive(gone) == alive(parts) == 0


def test_many_wide_ones_in_one_cycle_make_no_slice_long(slicer: _hot.Slicer) -> None:
    """It closes beyond the references that are followed: it is left to a full collection, and not looked at again."""
    living = [[number] for number in range(10_000)]
    first = Node()
    first.__dict__["parts"] = [[first, *living] for _ in range(50)]
    gone = old([first])
    del first
    before = slicer.counts()["looks"]
    most = looks_of_the_longest(slicer, 2)
    assert most < 2 * SMALL + 3 * WIDE < (slicer.counts()["looks"] - before) / 20
    assert len(living) == 10_000
    slicer.whole()
    assert alive(gone) == 0


def test_a_neighbour_that_is_no_container_keeps_nothing_alive(slicer: _hot.Slicer) -> None:
    """Objects and what stands beside them in the same block of memory: living strings between dead cycles."""

    class Plain:
        pass

    texts, plains = [], []
    for number in range(20_000):
        plains.append(Plain())
        texts.append(f"{number:07d}")
    for plain in plains:
        plain.__dict__["me"] = plain
    holder = {"texts": texts}
    gone = old(plains)
    del plain
    plains.clear()
    rounds(slicer, 1)
    assert alive(gone) == 0
    assert len(holder["texts"]) == 20_000


def test_addresses_that_are_used_again_within_a_round(slicer: _hot.Slicer) -> None:
    """What was walked dies between slices, and others come to stand there: containers or not, tracked or not, dead or
    alive. Nothing that lives is harmed, and what is dead dies a round later at the latest."""
    nodes = [Node(number=number) for number in range(3000)]
    old(nodes)
    kept: list[Any] = []
    gone: list[weakref.ref[Any]] = []
    for turn in range(3000):
        nodes[turn].__dict__.clear()  # dies by its count
        nodes[turn] = None  # type: ignore[call-overload]
        kept.append((Node(number=turn), f"{turn:07d}", {"untracked": turn}, (turn, float(turn)), bytearray(turn % 90)))
        gone.append(weakref.ref(Node(number=turn)))
        if turn % 30 == 0:
            slicer.slice(SMALL)
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 0
    for turn, (node, text, untracked, pair, filled) in enumerate(kept):
        assert node.me == [node]
        assert node.number == turn == int(text) == untracked["untracked"] == pair[0]
        assert len(filled) == turn % 90


def test_a_freeze_past_the_hook(slicer: _hot.Slicer) -> None:
    """By code that had gc.freeze before it was watched: the walk does not go on in what is frozen now."""
    nodes = [Node() for _ in range(3000)]
    gone = old(nodes)
    nodes.clear()
    slicer.slice(SMALL)
    gc.freeze()
    frozen = gc.get_freeze_count()
    rounds(slicer, 2, SMALL)
    assert gc.get_freeze_count() >= frozen - 10
    gc.unfreeze()
    slicer.round()
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 0


def test_a_slice_makes_one_collection(slicer: _hot.Slicer) -> None:
    """Its own: nothing that it does beside sets the interpreter's off, which would find the lists taken apart."""
    nodes = [Node() for _ in range(2000)]
    gone = old(nodes)
    nodes.clear()
    begun: list[int] = []
    thresholds, callback = gc.get_threshold(), lambda phase, info: begun.append(info["generation"])
    gc.set_threshold(1, 1, 1)
    gc.callbacks.append(callback)
    try:
        while alive(gone) > 0:
            gc.enable()
            done = slicer.slice(SMALL)
            gc.disable()
            assert done is not None
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*thresholds)
    assert len(begun) > 0


FORKS = """
import gc, os, sys, threading, traceback, weakref
from tailwatch import _hot, snapshots
from tailwatch.gc.idle import IdleGC

class Node:
    def __init__(self):
        self.me = [self]

def works(what):
    nodes = [Node() for _ in range(500)]
    gone = [weakref.ref(node) for node in nodes]
    gc.collect(0), gc.collect(1)
    del nodes
    rounds = slicer.counts()["cycles"]
    while slicer.counts()["cycles"] < rounds + 2:
        slicer.round()
        assert slicer.slice(2000) is not None, what
    assert not any(each() for each in gone), what

def fork(then):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            policy.after_fork()
            then()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        return 0
    assert os.waitpid(child, 0)[1] == 0
    return child

class Forks(Node):
    def __del__(self):
        children.append(fork(lambda: None))

class Waits(Node):
    def __del__(self):
        if armed:
            waits.set(), forked.wait(60)

def fork_from_another_thread():
    waits.wait(60)
    if fork(lambda: works("in a child that another thread forked")) == 0:
        os._exit(0)
    forked.set()

gc.disable()
policy = IdleGC(_hot.Core("api", 1, (0,) * 5, 0, lambda scope: "", lambda sent, stream: sent), sys.exit)
policy.prepare()
gc.collect(), policy.freeze(gc.freeze), gc.collect()
slicer = policy.slicer
children = []
Forks()
works("around a fork")
assert len(children) == 1
if children == [0]:
    works("in a child that was forked by a finalizer")
    os._exit(0)

armed, waits, forked = False, threading.Event(), threading.Event()
many = [Waits() for _ in range(3000)]
for one, other in zip(many, many[1:]):
    other.me.append(one)
gone = [weakref.ref(each) for each in many]
gc.collect(0), gc.collect(1)
del many, one, other
while slicer.counts()["held"] < 500:
    slicer.round()
    slicer.slice(2000)
for each in gone:
    if (node := each()) is not None:
        node.me.clear()
del node
assert sum(each() is not None for each in gone) > 100  # the dead that are put in order, which nothing else holds now
armed = True
thread = threading.Thread(target=fork_from_another_thread)
thread.start()
slicer.whole()
thread.join()
assert forked.is_set()
works("around a fork of another thread")
print("fine")
"""


def test_a_fork_in_the_midst_of_a_slice() -> None:
    """By a finalizer that the slice runs, or by another thread meanwhile: slices go on, in the child as well."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]


def test_its_memory_is_counted() -> None:
    """tailwatch_memory_bytes has what the slicer keeps, beside the segment."""
    of = core()
    policy = begin(of)
    try:
        kept = [[] for _ in range(20_000)]  # type: ignore[var-annotated]
        before = snapshots.take([of.address]).processes[0].bytes - policy.slicer.bytes
        policy.slicer.forget()
        without = policy.slicer.bytes
        policy.freeze(gc.freeze)
        assert policy.slicer.bytes > without + 10_000
        assert snapshots.take([of.address]).processes[0].bytes == before + policy.slicer.bytes
        rounds(policy.slicer, 1)
        assert snapshots.take([of.address]).processes[0].bytes == before + policy.slicer.bytes
        assert len(kept) == 20_000
    finally:
        end(policy)
