"""Rounds of the slicer: what was dead as one began dies in it, however it hangs together, and nothing that lives."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailwatch import _hot

from .slicing import ASKED, LARGE, LONG_NS, OVERDUE, SMALL, alive, begin, beside_collections, end, old, rounds


class Node:
    """Of a cycle, with something that hangs on it."""

    def __init__(self, content: int = 0, **more: Any) -> None:
        self.me = [self]
        self.content = [{"part": [number]} for number in range(content)]
        self.__dict__.update(more)


@pytest.fixture
def slicer() -> Iterator[_hot.Slicer]:
    """One over a heap that is frozen."""
    policy = begin()
    yield policy.slicer
    end(policy)


@pytest.fixture
def hooked() -> Iterator[_hot.Slicer]:
    """The same, which sees collections that are not its own."""
    yield from beside_collections()


@pytest.mark.parametrize("budget", [SMALL, LARGE])
@pytest.mark.parametrize("content", [0, 20, 300])
@pytest.mark.parametrize("newer_holds", [True, False])
def test_a_chain_of_the_dead_dies_from_its_end(
    slicer: _hot.Slicer, budget: int, content: int, newer_holds: bool
) -> None:
    """Each a cycle, each held by the next, whichever way the ages go: one round."""
    nodes = [Node(content) for _ in range(40)]
    for one, other in itertools.pairwise(nodes):
        if newer_holds:
            other.__dict__["holds"] = one
        else:
            one.__dict__["holds"] = other
    gone = old(nodes)
    nodes.clear()
    del one, other
    rounds(slicer, 2, budget)
    assert alive(gone) == 0


def test_a_slice_is_over_when_its_time_is(slicer: _hot.Slicer) -> None:
    """However many looks it was given: the clock is read each few hundred."""
    kept = [Node(10) for _ in range(1000)]
    old(kept)
    for _ in range(60):
        before = slicer.counts()["looks"]
        slicer.slice(LARGE, None, ASKED, 1)
        assert 0 < slicer.counts()["looks"] - before < 1000 + len(kept)
    slicer.slice(LARGE)
    assert slicer.counts()["looks"] - before > 10_000


def left_for_the_next(slicer: _hot.Slicer) -> int:
    """A slice that leaves what it moved to the next one, as it takes too long to find it. How many objects that is."""
    first = Node()
    first.__dict__["parts"] = [[{"back": first} for _ in range(1000)] for _ in range(60)]
    found = [first]
    del first
    old(found)
    slicer.forget()  # none stands where a frozen one has died
    assert slicer.slice(LARGE, found, OVERDUE, LONG_NS) is not None
    left = slicer.counts()["uncollected"]
    assert left > 60_000 and not found
    return left


def test_what_a_long_walk_found_is_collected_by_the_next_slice(slicer: _hot.Slicer) -> None:
    """So that no slice takes both times."""
    slicer.on = True
    before = slicer.counts()["freed"]
    left = left_for_the_next(slicer)
    assert slicer.counts()["freed"] - before < left and slicer.due
    moved, freed, _ = slicer.slice(LARGE, None, OVERDUE, LONG_NS) or (0, 0, 0)
    assert moved == left <= freed
    assert slicer.counts()["uncollected"] == 0
    slicer.on = False


def test_a_slice_without_a_limit_of_time_collects_what_it_found(slicer: _hot.Slicer) -> None:
    """And what the one before left."""
    left = left_for_the_next(slicer)
    moved, freed, _ = slicer.slice(SMALL) or (0, 0, 0)
    assert moved >= left and freed >= left
    assert slicer.counts()["uncollected"] == 0


@pytest.mark.parametrize("generation", [0, 2])
def test_what_waits_for_the_next_slice_dies_in_any_collection(hooked: _hot.Slicer, generation: int) -> None:
    """It is young."""
    left = left_for_the_next(hooked)
    assert gc.collect(generation) >= left
    assert hooked.counts()["uncollected"] == 0


def test_where_no_stream_waits_it_is_collected_at_once(slicer: _hot.Slicer) -> None:
    """In a server without an event loop, too, whatever the dead cost before."""
    left = left_for_the_next(slicer)
    slicer.on = True
    slicer.run_idle()
    assert slicer.counts()["uncollected"] == 0 and slicer.counts()["freed"] >= left
    slicer.on = False


def off(slicer: _hot.Slicer) -> None:
    """As uninstall() does."""
    slicer.on = True
    slicer.on = False


@pytest.mark.parametrize("ends", [off, lambda slicer: slicer.freeze(gc.freeze)], ids=["off", "freeze"])
def test_nothing_waits_after_what_makes_it_moot(slicer: _hot.Slicer, ends: Callable[[_hot.Slicer], object]) -> None:
    """A freeze takes it, or no slice comes any more."""
    left_for_the_next(slicer)
    ends(slicer)
    assert slicer.counts()["uncollected"] == 0


def test_slices_without_time_get_through_a_round(slicer: _hot.Slicer) -> None:
    """What lives is followed in as many walks as it takes, and what is dead dies."""
    kept = Node(held=[Node(10, before=[]) for _ in range(300)])
    nodes = [Node(10, hub=kept) for _ in range(300)]
    gone, living = old(nodes), old(kept.__dict__["held"])
    nodes.clear()
    rounds(slicer, 1, LARGE, most_ns=1)
    assert (alive(gone), alive(living)) == (0, 300)


def test_a_long_chain_that_refers_backwards_is_not_taken_for_dead(slicer: _hot.Slicer) -> None:
    """Only its newest is held, and no slice has time for more than a part of it. A collection puts what it finds behind
    what led to it: so the links are made when all are old."""
    chain: list[list[Any]] = [[] for _ in range(14_000)]
    old([])
    for one, other in itertools.pairwise(chain):
        other.append(one)
    del chain[:-1], one, other
    rounds(slicer, 1, LARGE)
    moved = slicer.counts()["moved"]
    rounds(slicer, 2, SMALL)
    assert slicer.counts()["moved"] - moved < 1000
    del chain


def test_a_living_hub_keeps_nothing_dead(slicer: _hot.Slicer) -> None:
    """All the dead refer to one that lives, which refers to all that live."""
    hub = Node(kept=[Node(10) for _ in range(300)])
    nodes = [Node(10, hub=hub) for _ in range(300)]
    gone, kept = old(nodes), old(hub.__dict__["kept"])
    nodes.clear()
    rounds(slicer, 1, SMALL)
    assert (alive(gone), alive(kept)) == (0, 300)


def test_a_list_that_all_hang_in(slicer: _hot.Slicer) -> None:
    """Taken out of the middle of a doubly linked list, each with its links as they were."""
    nodes = [Node(5) for _ in range(200)]
    for one, other in itertools.pairwise(nodes):
        one.__dict__["after"], other.__dict__["before"] = other, one
    gone = old(nodes)
    for place in [*range(150, 40, -2), *range(41, 150, 2)]:
        node = nodes[place]
        before, after = node.__dict__["before"], node.__dict__["after"]
        before.__dict__["after"], after.__dict__["before"] = after, before
    dead = {id(nodes[place]) for place in [*range(150, 40, -2), *range(41, 150, 2)]}
    nodes = [node for node in nodes if id(node) not in dead]
    del node, before, after, one, other
    rounds(slicer, 3, SMALL)
    assert alive(gone) == len(nodes) == 200 - len(dead)


def test_a_cycle_larger_than_a_slice(slicer: _hot.Slicer) -> None:
    """Whose parts refer back: it is left by slices that are too small for it, and dies in one that is not."""
    first = Node()
    first.__dict__["parts"] = [[{"back": first} for _ in range(1000)] for _ in range(3)]
    gone = old([first])
    del first
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 1
    rounds(slicer, 2, LARGE)
    assert alive(gone) == 0


def test_what_changes_meanwhile_is_not_taken_for_dead(slicer: _hot.Slicer) -> None:
    """The living are handed from one holder to another between slices, and die in the end."""
    holders: list[dict[str, Any]] = [{"has": Node(3)} for _ in range(400)]
    gone = old([each["has"] for each in holders])
    for turn in range(400):
        holders[turn]["has"], holders[-turn - 1]["has"] = holders[-turn - 1]["has"], holders[turn]["has"]
        slicer.slice(SMALL)
    assert alive(gone) == 400
    holders.clear()
    rounds(slicer, 1)
    assert alive(gone) == 0


def test_a_round_meets_collections_of_others(slicer: _hot.Slicer) -> None:
    """Full and young ones between its slices, which put the lists in another order."""
    nodes = [Node(4) for _ in range(500)]
    keep = [Node(4) for _ in range(500)]
    gone, kept = old(nodes), old(keep)
    nodes.clear()
    for turn in range(60):
        slicer.slice(SMALL)
        gc.collect(turn % 2)
    rounds(slicer, 1)
    assert (alive(gone), alive(kept)) == (0, 500)


@pytest.mark.parametrize("disturb", [gc.freeze, gc.collect])
def test_an_external_freeze_inside_a_cycle(slicer: _hot.Slicer, disturb: Callable[[], object]) -> None:
    """A freeze by others, as the hook reports it: the round begins again, and what is new is swept."""
    keep = [Node(4) for _ in range(500)]
    kept = old(keep)
    slicer.slice(SMALL)
    slicer.freeze(gc.freeze)
    disturb()
    nodes = [Node(4) for _ in range(100)]
    gone = old(nodes)
    nodes.clear()
    rounds(slicer, 2)
    assert (alive(gone), alive(kept)) == (0, 500)


def test_all_that_is_frozen_is_known(slicer: _hot.Slicer) -> None:
    """Where addresses of the frozen that died are those of others, frozen later; and after forget()."""
    doomed, kept = [Node() for _ in range(3_000)], [Node() for _ in range(3_000)]
    slicer.freeze(gc.freeze)
    for node in doomed:
        node.__dict__.clear()
    doomed.clear()
    known = slicer.frozen
    kept += [Node() for _ in range(6_000)]  # some of them where one of the frozen was
    old(kept)
    assert slicer.freeze(gc.freeze) >= 12_000
    assert slicer.frozen >= known + 3_000
    assert slicer.sync_frozen() == 0
    slicer.forget()
    assert slicer.sync_frozen() >= 18_000
    assert gc.get_freeze_count() - 1_000 < slicer.frozen <= gc.get_freeze_count()  # 3.12: without the immortal ones
    assert len(kept) == 9_000


def test_an_unfreeze_past_the_hook(slicer: _hot.Slicer) -> None:
    """Past our hook: what was known is forgotten, and what is frozen next is known."""
    kept = [Node() for _ in range(3_000)]
    slicer.freeze(gc.freeze)
    gc.unfreeze()
    assert (slicer.sync_frozen(), slicer.frozen) == (0, 0)
    assert gc.get_freeze_count() < 1_000
    gc.freeze()
    assert slicer.sync_frozen() >= 6_000
    assert slicer.sync_frozen() == 0
    gc.unfreeze()
    gc.freeze()
    slicer.sync_frozen()
    nodes = [Node(4) for _ in range(100)]
    gone, living = old(nodes), old(kept)
    nodes.clear()
    rounds(slicer, 1)
    assert (alive(gone), alive(living)) == (0, 3_000)


def test_addresses_of_the_frozen_are_those_of_others_once_they_died(slicer: _hot.Slicer) -> None:
    """Even where what refers to them comes first, and nothing else stands near: one round."""
    doomed = [Node() for _ in range(20_000)]
    gc.collect()
    slicer.freeze(gc.freeze)
    for node in doomed:
        node.__dict__.clear()
    doomed.clear()
    nodes = [Node() for _ in range(20_000)]
    for one, other in zip(nodes, reversed(nodes), strict=True):
        one.__dict__["other"] = other
    gone = old(nodes)
    nodes.clear()
    del one, other
    rounds(slicer, 0)
    assert alive(gone) == 0


def test_nothing_is_held_where_a_cycle_rests(slicer: _hot.Slicer) -> None:
    """None dies later than it would."""
    nodes = [Node(2) for _ in range(2000)]
    gone = old(nodes)
    slicer.slice(SMALL)
    assert slicer.midway
    for node in nodes:
        node.__dict__.clear()
    del node
    nodes.clear()
    assert alive(gone) == 0


def test_finalizers_that_do_as_they_like(slicer: _hot.Slicer) -> None:
    """They resurrect, collect, slice and make more: each runs once, what came back lives, what did not is gone."""
    back: list[Any] = []
    ran: list[int] = []

    class Wild(Node):
        def __del__(self) -> None:
            number: int = self.number  # type: ignore[attr-defined]
            ran.append(number)
            if number % 4 == 0:
                back.append(self)
            elif number % 4 == 1:
                gc.collect(number % 3)
            elif number % 4 == 2:
                assert slicer.slice(SMALL) is None, "not while a slice is made"
                ran.append(-1)
            self.more = Node(2)

    nodes = [Wild(3, number=number) for number in range(100)]
    gone = old(nodes)
    nodes.clear()
    rounds(slicer, 3)
    assert sorted(number for number in ran if number >= 0) == list(range(100))
    assert ran.count(-1) == 25
    assert len(back) == 25
    assert all(each.me == [each] and len(each.content) == 3 for each in back)
    rounds(slicer, 2)
    del gone


def test_many_requests_return_to_the_base(slicer: _hot.Slicer) -> None:
    """Requests with cycles, as many slices as their backlog asks for; in the end the heap is as before."""
    rounds(slicer, 1)
    base = len(gc.get_objects())
    most = 0
    for turn in range(300):
        for _ in range(100):
            Node(3)
        slicer.slice(20_000)
        if turn % 10 == 0:
            most = max(most, len(gc.get_objects()))
    rounds(slicer, 1)
    assert len(gc.get_objects()) - base < 100
    assert most - base < 60_000


def go_on(slicer: _hot.Slicer, name: str, number: int) -> int:
    """So many rounds of a kind more. Looks that the last of them took."""
    for _ in range(number):
        begun, looks = slicer.counts()[name], slicer.counts()["looks"]
        for _ in range(10_000):
            slicer.slice(LARGE)
            if slicer.counts()[name] > begun:
                break
        else:
            pytest.fail(f"no more {name}")
    return slicer.counts()["looks"] - looks


@pytest.fixture
def tenured(slicer: _hot.Slicer) -> Iterator[list[Any]]:
    """30 000 objects that short rounds leave out."""
    kept: list[Any] = [[number] for number in range(30_000)]
    old([])
    go_on(slicer, "cycles", 1)
    go_on(slicer, "short_cycles", 1)
    yield kept


def test_a_short_round_finds_what_grew_old_lately_and_leaves_the_rest_out(
    slicer: _hot.Slicer, tenured: list[Any]
) -> None:
    """The dead of lately die in it, what lives does not, and nothing looks at the tenured or the frozen."""
    frozen, living = slicer.frozen, Node(20)
    for _ in range(20):
        gone = old([Node(20) for _ in range(30)])
        if go_on(slicer, "short_cycles", 2) > 20_000:
            pytest.fail("a short round went through the tenured")
        assert alive(gone) == 0
    assert living.me == [living]
    assert slicer.sync_frozen() == 0 and frozen - 100 < slicer.frozen <= frozen


def test_the_tenured_die_in_a_whole_round(slicer: _hot.Slicer, tenured: list[Any]) -> None:
    """One that short rounds have left behind, and what it holds that grew old after it."""
    node = Node()
    gone = old([node])
    go_on(slicer, "short_cycles", 10)
    node.__dict__["late"] = Node()
    gone += old([node.__dict__["late"]])
    del node
    go_on(slicer, "short_cycles", 1)
    assert alive(gone) == 2
    slicer.round()
    go_on(slicer, "cycles", 1)
    assert alive(gone) == 0


def test_dead_tenured_that_hold_what_dies_later_bring_a_whole_round(slicer: _hot.Slicer, tenured: list[Any]) -> None:
    """A chain in which each holds the next: where short rounds find little, a whole one comes by itself."""
    last = Node()
    old([last])
    go_on(slicer, "short_cycles", 10)
    gone = []
    for _ in range(60):
        following = Node(500)
        last.__dict__["next"] = following
        last = following
        gone += old([last])
        slicer.slice(LARGE)
        slicer.slice(LARGE)
    go_on(slicer, "short_cycles", 3)
    assert alive(gone) < 40
