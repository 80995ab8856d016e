"""The dead that hold each other across chunks: put in order, held meanwhile, and taken part by part."""

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

from .slicing import SMALL, alive, begin, beside_collections, end, old, rounds

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
    """Each held by the next one, which is newer: from the oldest on no chunk is whole."""
    nodes = [Node() for _ in range(count)]
    for one, other in itertools.pairwise(nodes):
        other.holds.append(one)
    return nodes


def until_held(slicer: _hot.Slicer, least: int) -> None:
    """Slices, until so many of the dead are held."""
    slicer.round()
    for _ in range(10_000):
        slicer.slice(SMALL)
        if slicer.counts()["held"] >= least:
            return
    pytest.fail("nothing is put in order")


def test_a_tangle_dies_in_one_round(slicer: _hot.Slicer) -> None:
    """Chunks fail, and the round goes on with an order; the next one begins with it; nothing is held between them."""
    nodes = tangle()
    gone = old(nodes)
    nodes.clear()
    rounds(slicer, 0, SMALL)
    assert alive(gone) == 0
    assert slicer.counts()["tangled"] > 0
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


def test_chunks_are_tried_again(slicer: _hot.Slicer) -> None:
    """Where nothing is tangled any more, nothing is held after some rounds."""
    nodes = tangle()
    nodes.clear()
    gc.collect(0)
    rounds(slicer, 0, SMALL)
    nodes = tangle()
    old(nodes)
    nodes.clear()
    rounds(slicer, 1, SMALL)
    rounds(slicer, 12, SMALL)
    assert slicer.counts()["tangled"] == 0


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


@pytest.mark.parametrize("how", ["abandon", "forget", "off"])
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


def test_a_part_that_alone_holds_many_is_left_to_a_whole_pass(slicer: _hot.Slicer) -> None:
    """A cycle of three hundred, each with two hundred objects that go along."""
    ring = [Node(0) for _ in range(300)]
    for one, other in itertools.pairwise(ring):
        one.holds.append(other)
    ring[-1].holds.append(ring[0])
    for node in ring:
        node.content = [{"part": []} for _ in range(100)]
    gone, ring_gone = old(nodes := tangle()), old(ring)
    nodes.clear()
    ring.clear()
    del one, other, node
    most = slices_of_a_round(slicer)
    assert alive(gone) == 0
    assert most["moved"] < 20_000
    gc.collect()
    assert alive(ring_gone) == 0


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
