"""The dead: put in order, held meanwhile, and taken part by part."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch import _hot

from .slicing import ASKED, LARGE, LONG_NS, OVERDUE, SMALL, alive, begin, beside_collections, end, old, rounds

MANY = 3_000


class Node:
    """Of a cycle, with something that hangs on it, and others that it holds."""

    def __init__(self, content: int = 3) -> None:
        self.me = [self]
        self.content = [{"part": [number]} for number in range(content)]
        self.holds: list[Any] = []


@pytest.fixture
def slicer() -> Iterator[_hot.Slicer]:
    """One over a heap that is frozen."""
    policy = begin()
    yield policy.slicer
    end(policy)


@pytest.fixture
def hooked() -> Iterator[_hot.Slicer]:
    """One that is called for collections, as it is where the policy is on."""
    yield from beside_collections()


def tangle(count: int = MANY) -> list[Node]:
    """Each held by the next one, which is newer."""
    nodes = [Node() for _ in range(count)]
    for one, other in itertools.pairwise(nodes):
        other.holds.append(one)
    return nodes


def until_held(slicer: _hot.Slicer, least: int, reason: int = ASKED, most_ns: int = 0) -> None:
    """Slices, until so many of the dead are held."""
    slicer.round()
    for _ in range(10_000):
        slicer.slice(SMALL, None, reason, most_ns)
        if slicer.counts()["held"] >= least:
            return
    pytest.fail("nothing is put in order")


def test_a_tangle_dies_in_one_round(slicer: _hot.Slicer) -> None:
    """Which ends with nothing held."""
    nodes = tangle()
    gone = old(nodes)
    nodes.clear()
    rounds(slicer, 0, SMALL)
    assert alive(gone) == 0
    assert slicer.counts()["held"] == 0


def test_our_own_whole_pass_frees_what_is_held(slicer: _hot.Slicer) -> None:
    """As a memory limit asks for it."""
    gone = old(nodes := tangle())
    nodes.clear()
    until_held(slicer, 500)
    slicer.whole()
    assert alive(gone) == 0


def test_a_finalizer_that_collects_finds_nothing_held(hooked: _hot.Slicer) -> None:
    """From within a slice: all that is dead goes with that collection."""
    ended: list[int] = []
    gone: list[weakref.ref[Any]] = []

    class Collects(Node):
        def __del__(self) -> None:
            gc.collect()
            ended.append(alive(gone))

    nodes = tangle()
    head = Collects()
    head.me.clear()  # it dies by its count
    head.holds.append(nodes[-1])
    holder = Node()
    holder.holds.append(head)
    gone += old([*nodes, holder])
    nodes.clear()
    del head, holder
    rounds(hooked, 3, SMALL)
    assert len(ended) == 1
    assert alive(gone) == 0


def test_slices_of_the_young_count_only_these(slicer: _hot.Slicer) -> None:
    """After one that took parts: what that one freed is not counted again."""
    nodes = tangle()
    old(nodes)
    nodes.clear()
    rounds(slicer, 0, SMALL)
    freed = slicer.counts()["freed"]
    for _ in range(50):
        [Node(0) for _ in range(10)]
        slicer.slice(0)
    assert slicer.counts()["freed"] - freed <= 50 * 10 * 6


@pytest.mark.parametrize("slices", [1, 5, 40, 80, 120, 150, 180, 185])
def test_a_whole_collection_frees_what_is_held(hooked: _hot.Slicer, slices: int) -> None:
    """After a collection that was asked for everything dead is gone, wherever the round is."""
    gone = old(nodes := tangle())
    nodes.clear()
    hooked.round()
    for _ in range(slices):
        hooked.slice(SMALL)
    gc.collect()
    assert alive(gone) == 0
    assert hooked.counts()["held"] == 0


@pytest.mark.parametrize("how", ["forget", "off"])
def test_what_is_given_up_is_held_no_longer(slicer: _hot.Slicer, how: str) -> None:
    """As many references as before, once the round is given up."""
    gone = old(nodes := tangle())
    before = {id(each): sys.getrefcount(each) for each in nodes}
    del nodes[:]
    until_held(slicer, 500)
    if how == "off":
        slicer.on = False
    else:
        getattr(slicer, how)()
    assert slicer.counts()["held"] == 0
    found = [node for each in gone if (node := each()) is not None]
    del node
    assert len(found) > MANY / 2
    assert {id(each): sys.getrefcount(each) for each in found}.items() <= before.items()


def test_what_comes_back_lives(slicer: _hot.Slicer) -> None:
    """A weak reference brings one back while it is held, and it is changed: what it leads to lives, the rest dies."""
    gone = old(nodes := tangle())
    nodes.clear()
    until_held(slicer, 500)
    back = gone[1000]()
    assert back is not None
    back.content.append({"new": [back]})
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 1001, "it, and the thousand that it holds"
    assert [len(gone[i]().content) for i in (0, 999, 1000)] == [3, 3, 4]  # type: ignore[union-attr]
    back.holds.clear()
    del back
    rounds(slicer, 3, SMALL)
    assert alive(gone) == 0


def test_what_is_cut_loose_in_the_midst(slicer: _hot.Slicer) -> None:
    """What the search is to go on with loses all that held it."""
    gone = old(nodes := tangle())
    nodes.clear()
    until_held(slicer, 100)
    for each in gone[::7]:
        if (node := each()) is not None:
            node.holds.clear()
            node.content.clear()
            node.me.clear()
    del node
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 0


def test_finalizers_that_do_what_they_like(slicer: _hot.Slicer) -> None:
    """Giving up the round, collecting, slicing, from within a finalizer."""
    ends: list[Callable[[], object]] = [slicer.abandon, gc.collect, slicer.sync_frozen]
    ends += [lambda: slicer.slice(SMALL), lambda: old(tangle(20))]
    doings = itertools.cycle(ends)
    ended = []

    class Loud(Node):
        def __del__(self) -> None:
            ended.append(1)
            if len(ended) % 50 == 0:
                next(doings)()

    nodes: list[Node] = [Loud() for _ in range(MANY)]
    for one, other in itertools.pairwise(nodes):
        other.holds.append(one)
    gone = old(nodes)
    nodes.clear()
    del one, other
    rounds(slicer, 8, SMALL)
    gc.collect()
    assert alive(gone) == 0
    assert len(ended) == MANY


def test_holders_end_before_what_they_hold(slicer: _hot.Slicer) -> None:
    """As by their counts."""
    order: list[int] = []

    class Numbered(Node):
        number = 0

        def __del__(self) -> None:
            order.append(self.number)

    nodes = [Numbered() for _ in range(MANY)]
    for number, node in enumerate(nodes):
        node.number = number
    for one, other in itertools.pairwise(nodes):
        other.holds.append(one)
    old(nodes)
    nodes.clear()
    del one, other, node
    rounds(slicer, 1, SMALL)
    assert order == sorted(order, reverse=True)


def test_a_part_that_is_too_large_is_left_to_a_whole_pass(slicer: _hot.Slicer) -> None:
    """5000 in one cycle, beside a tangle: the tangle dies, the cycle at the next whole collection."""
    ring = [[] for _ in range(5_000)]  # type: list[list[Any]]
    for one, other in itertools.pairwise(ring):
        one.append(other)
    ring[-1].append(ring[0])
    watched = Node()
    ring[0].append(watched)
    gone, ring_gone = old(nodes := tangle()), weakref.ref(watched)
    nodes.clear()
    ring.clear()
    del one, other, watched
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 0
    assert slicer.counts()["held"] == 0
    gc.collect()
    assert ring_gone() is None


def slices_of_a_round(slicer: _hot.Slicer) -> dict[str, int]:
    """Of one round: by how much a slice changes what is held, and what is in order, and moves, at most."""
    most = {"held": 0, "parts": 0, "moved": 0}
    begun = slicer.counts()["cycles"]
    slicer.round()
    for _ in range(100_000):
        before = slicer.counts()
        slicer.slice(SMALL)
        after = slicer.counts()
        most = {name: max(each, abs(after[name] - before[name])) for name, each in most.items()}
        if after["cycles"] > begun:
            return most
    pytest.fail("the round does not end")


def test_a_large_part_makes_no_slice_long(slicer: _hot.Slicer) -> None:
    """50 000 in one cycle, beside a tangle: found, put in order and given up in small steps."""
    ring = [[] for _ in range(50_000)]  # type: list[list[Any]]
    for one, other in itertools.pairwise(ring):
        one.append(other)
    ring[-1].append(ring[0])
    gone = old(nodes := tangle())
    nodes.clear()
    ring.clear()
    del one, other
    most = slices_of_a_round(slicer)
    assert alive(gone) == 0
    assert slicer.counts()["held"] == 0
    assert 0 < most["held"] < 3 * SMALL
    assert 0 < most["parts"] < 3 * SMALL


def hung_on(top: Node, wide: bool) -> list[weakref.ref[Any]]:
    """40 000 objects that only it holds: in a tree of lists, or in one chain."""
    if wide:
        top.content = [[[number] for number in range(200)] for _ in range(200)]
    else:
        for _ in range(40_000):
            top.holds = [top.holds]
    return old([top])


def freed_by_slices(slicer: _hot.Slicer, budget: int, most_ns: int) -> tuple[int, int]:
    """In the round that is under way, until nothing is held any more: by all of its slices, and by one at most."""
    begun, before, most = slicer.counts()["cycles"], slicer.counts()["freed"], 0
    while slicer.counts()["cycles"] == begun:
        freed = slicer.counts()["freed"]
        slicer.slice(budget, None, ASKED, most_ns)
        most = max(most, slicer.counts()["freed"] - freed)
    return slicer.counts()["freed"] - before, most


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "deep"])
@pytest.mark.parametrize(("budget", "most_ns", "bound"), [(SMALL, 0, SMALL // 10), (LARGE, 1, 64 // 10)])
def test_what_a_cycle_alone_holds_does_not_end_with_it(
    slicer: _hot.Slicer, wide: bool, budget: int, most_ns: int, bound: int
) -> None:
    """A slice is over after so many looks, ten for each, or when the clock was read after 64, the cycle aside."""
    gone = hung_on(Node(0), wide)
    slicer.round()
    freed, most = freed_by_slices(slicer, budget, most_ns)
    assert alive(gone) == 0
    assert freed > 40_000
    assert 0 < most <= bound + 5


def test_what_is_given_up_ends_in_slices(slicer: _hot.Slicer) -> None:
    """One after the other, too, and they are due for it."""
    gone = hung_on(Node(0), wide=True)
    until_held(slicer, 100)
    freed = slicer.counts()["freed"]
    slicer.abandon()
    assert not slicer.midway and slicer.counts()["held"] >= 100
    slicer.on = True
    assert slicer.due
    while slicer.counts()["held"] > 0:
        slicer.slice(SMALL)
    slicer.on = False
    assert alive(gone) == 0
    assert slicer.counts()["freed"] - freed > 39_000


def test_a_slice_that_only_collects_lets_go_of_nothing(slicer: _hot.Slicer) -> None:
    """What was moved by the one before holds it still: it would end with that, and at once."""
    ring = [Node(0) for _ in range(300)]
    for one, other in itertools.pairwise([*ring, ring[0]]):
        one.holds += [other, *range(1_000)]  # to be looked at for longer than a slice may be that collects as well
    gone = hung_on(ring[0], wide=True)
    del ring, one, other
    slicer.round()
    before = slicer.counts()["freed"]
    for _ in range(1_000):  # until one has left what it moved to the next
        slicer.slice(LARGE, None, OVERDUE, LONG_NS)
        if slicer.counts()["uncollected"] > 0:
            break
    assert slicer.counts()["uncollected"] > 0
    slicer.slice(LARGE)
    freed_by_slices(slicer, LARGE, 0)
    assert alive(gone) == 0
    assert slicer.counts()["freed"] - before > 40_000


@pytest.mark.parametrize("gives_up", ["off", "abandon", "collect"])
def test_a_slice_in_which_the_cycle_is_given_up_begins_no_other(hooked: _hot.Slicer, gives_up: str) -> None:
    """By a finalizer of what it lets go of."""
    ended: list[int] = []

    class Ends(Node):
        def __del__(self) -> None:
            ended.append(1)
            if gives_up == "off":
                hooked.on = False
            elif gives_up == "abandon":
                hooked.abandon()
            else:
                gc.collect()

    top = Node(0)
    top.holds.append(Ends(0))  # newer than what leads to it, as the search comes by the oldest first
    top.holds[0].me.clear()
    old([top])
    del top
    hooked.round()
    while not ended:
        hooked.slice(LARGE)
    assert not hooked.midway
    hooked.on = True


def test_what_is_let_go_of_is_not_taken_off_the_young(slicer: _hot.Slicer) -> None:
    """The collector counts a deallocation against the young, of an old object, too: they would seem to be few."""
    top = Node(0)
    top.content = [[number] for number in range(1_000)]
    old([top])
    del top
    until_held(slicer, 500, OVERDUE, LONG_NS)
    kept = [{number} for number in range(300)]  # the interpreter keeps none to use again, as it does lists
    before = slicer.counts()["young"]
    assert before >= len(kept)
    while slicer.counts()["held"] > 0:
        slicer.slice(SMALL, None, OVERDUE, LONG_NS)
    assert slicer.counts()["young"] >= before
    slicer.slice(SMALL)
    assert slicer.counts()["young"] < len(kept)


@pytest.mark.parametrize("most_ns", [0, 1])
def test_a_cycle_that_hangs_on_one_that_ends_by_its_count_dies_with_it(slicer: _hot.Slicer, most_ns: int) -> None:
    """Whether what is between them ends in the slice that comes upon the next, or only then."""
    nodes = [Node(0) for _ in range(MANY)]
    for one, other in itertools.pairwise(nodes):
        between = [one]
        other.holds += [between, [between]]
    gone = old(nodes)
    nodes.clear()
    del one, other, between
    rounds(slicer, 0, SMALL, most_ns=most_ns)
    assert alive(gone) == 0
    assert slicer.counts()["held"] == 0


def test_its_memory_is_counted(slicer: _hot.Slicer) -> None:
    """What is held takes room, which is counted."""
    old(nodes := tangle())
    nodes.clear()
    before = slicer.bytes
    until_held(slicer, 2_000)
    assert slicer.bytes >= before + 2_000 * 8


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([SMALL, 5_000, 50_000]), edges=st.integers(1, 4))
def test_any_graph(seed: int, budget: int, edges: int) -> None:
    """Edges at random, a tenth of the nodes alive: what they lead to lives, and the rest dies."""
    rng, made = random.Random(seed), begin()
    slicer = made.slicer
    try:
        nodes = [Node(1) for _ in range(1_500)]
        for at, node in enumerate(nodes):
            node.holds = [nodes[rng.randrange(at + 1)] for _ in range(rng.randrange(edges + 1))]
            if rng.random() < 0.02:
                node.holds.append(nodes[rng.randrange(len(nodes))])
        kept = rng.sample(nodes, 3)
        reached: dict[int, Node] = {}
        ahead = list(kept)
        while ahead:
            node = ahead.pop()
            if id(node) not in reached:
                reached[id(node)] = node
                ahead += node.holds
        lives = len(reached)
        gone = old(nodes)
        nodes.clear()
        reached.clear()
        del node
        rounds(slicer, 3, SMALL)
        for _ in range(3):
            slicer.round()
            slicer.slice(budget)
        gc.collect()
        assert alive(gone) == lives
        assert all(len(each.content) == 1 and each.me[0] is each for each in kept)
    finally:
        end(made)
