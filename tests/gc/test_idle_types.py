"""Types that show the collector little, or oddly; objects that untrack themselves; finalizers of all kinds.

What dies in a few rounds of the slicer is what as many gc.collect() free of a structure made in the same way.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import itertools
import random
import shutil
import subprocess
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch import _hot

from .slicing import LARGE, SMALL, alive, begin, beside_collections, end, old, rounds

SOURCE = Path(__file__).parent.parent / "native" / "oddtypes.c"
TYPES = ["Fair", "Blind", "Half", "Deaf", "Late", "Restless", "Sticky", "Legacy", "Maybe"]
FEW = 16  # looks: a slice that ends in the midst of anything
WIDE = 16_000  # references of one object that a walk follows, as csrc/python/gc/cycle_detect.c has it
SECONDS = 30  # until a test that hangs fails


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module oddtypes, built for this interpreter."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler (cc, gcc or clang) to build tests/native/oddtypes.c: install one")
    target = tmp_path_factory.mktemp("native") / "oddtypes.so"
    include = sysconfig.get_path("include")
    command = [compiler, "-shared", "-fPIC", "-O2", "-isystem", include, str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    loader = importlib.machinery.ExtensionFileLoader("oddtypes", str(target))
    spec = importlib.util.spec_from_loader("oddtypes", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


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


class Node:
    """Of a cycle."""

    def __init__(self, *to: Any) -> None:
        self.me = [self]
        self.to = list(to)


# ---- what they show ----


def itself(odd: Any, of: Any) -> list[Any]:
    """One that holds itself."""
    one = of()
    one.add(one)
    return [one]


def two(odd: Any, of: Any) -> list[Any]:
    """Two that hold each other."""
    one, other = of(), of()
    one.add(other), other.add(one)
    return [one, other]


def second(odd: Any, of: Any) -> list[Any]:
    """By what is not held first."""
    one, other = of(None), of(None, "text")
    one.add(other), other.add(one)
    return [one, other]


def twice(odd: Any, of: Any) -> list[Any]:
    """Held more than once by the same."""
    one, other = of(), of()
    one.add(other), one.add(other), one.add(one), other.add(one)
    return [one, other]


def in_a_list(odd: Any, of: Any) -> list[Any]:
    """A list, which has a clear, in the cycle."""
    one = of()
    one.add([one, {}])
    return [one]


def of_an_object(odd: Any, of: Any) -> list[Any]:
    """A Python object in the cycle, and one that hangs on it."""
    one, hangs = of(), Node()
    node = Node(one, hangs)
    one.add(node)
    return [one, node, hangs]


def beside_a_fair_one(odd: Any, of: Any) -> list[Any]:
    """One of another type, by whose clear the cycle breaks."""
    one, other = of(), odd.Fair()
    one.add(other), other.add(one)
    return [one, other]


def child(odd: Any, of: Any) -> list[Any]:
    """What a cycle of others holds, and what that holds."""
    hangs = Node()
    one = of(hangs)
    return [Node(one), one, hangs]


def no_containers(odd: Any, of: Any) -> list[Any]:
    """Numbers, text, types of all kinds, what the collector does not track, and one that it cannot."""
    one = of(10**20, "text", b"", 1.5, None, int, type, of, (), frozenset(), {}, (1, 2), len, sys, odd.Maybe.plain(1))
    one.add(one), one.add(one)
    return [one]


def through_what_it_cannot_see(odd: Any, of: Any) -> list[Any]:
    """An object without what the collector puts before its own."""
    one = of()
    one.add(odd.Maybe.plain(one))
    return [one]


SHAPES: list[Callable[[Any, Any], list[Any]]] = [
    itself, two, second, twice, in_a_list, of_an_object, beside_a_fair_one, child, no_containers,
    through_what_it_cannot_see,
]  # fmt: skip


def held_by(made: list[Any]) -> list[list[int]]:
    """What each holds."""
    return [list(map(id, each.to if isinstance(each, Node) else each.items())) for each in made]


def clean(odd: Any) -> None:
    """What nothing could free is taken apart."""
    types = {getattr(odd, name) for name in TYPES}
    gc.garbage.clear()
    for each in gc.get_objects():
        if type(each) in types:
            each.drop()
    gc.collect()


def fates(odd: Any, make: Callable[[], list[list[Any]]], free: Callable[[], object]) -> tuple[Any, ...]:
    """Of what was made, and is dead: what is left to its weak reference, how many are left, and what is garbage."""
    before, garbage = odd.living(), len(gc.garbage)
    gone = [old(each) for each in make()]
    free()
    found = [alive(each) for each in gone], odd.living() - before, len(gc.garbage) - garbage
    clean(odd)
    assert odd.living() == before
    return found


def collect() -> None:
    """What hangs on what dies dies in the next one."""
    for _ in range(3):
        gc.collect()


@pytest.mark.parametrize("budget", [FEW, SMALL, LARGE])
@pytest.mark.parametrize("name", TYPES)
def test_the_dead_die_as_by_the_collector(odd: Any, slicer: _hot.Slicer, name: str, budget: int) -> None:
    """Of each type, in each shape: those that as many gc.collect() free, and no others."""
    of = getattr(odd, name)
    swept, collected = {}, {}
    for shape in SHAPES:

        def make(shape: Callable[[Any, Any], list[Any]] = shape) -> list[list[Any]]:
            return [shape(odd, of) for _ in range(20)]

        collected[shape.__name__] = fates(odd, make, collect)
        swept[shape.__name__] = fates(odd, make, lambda: rounds(slicer, 2, budget))
    assert swept == collected
    assert collected["itself"][1:] == (20 * (name in ("Blind", "Sticky", "Legacy")), 20 * (name == "Legacy"))
    assert collected["second"][1] == 40 * (name in ("Blind", "Half", "Sticky", "Legacy"))
    assert collected["beside_a_fair_one"][1] == 40 * (name in ("Blind", "Legacy"))
    assert collected["through_what_it_cannot_see"][1] == 40


@pytest.mark.parametrize("budget", [FEW, SMALL, LARGE])
@pytest.mark.parametrize("name", TYPES)
def test_the_living_stay_as_they_are(odd: Any, slicer: _hot.Slicer, name: str, budget: int) -> None:
    """Each held by its first one only, or by its last."""
    of = getattr(odd, name)
    made = [shape(odd, of) for shape in SHAPES for _ in range(10)]
    before, living = [held_by(each) for each in made], odd.living()
    gone = [old(each) for each in made]
    kept = [(each[0], each[-1]) for each in made]
    made.clear()
    rounds(slicer, 3, budget)
    assert odd.living() == living
    made = [[ref() for ref in each] for each in gone]
    assert [held_by([each for each in both if each is not None]) for both in made] == [
        [holds for holds, each in zip(row, both, strict=True) if each is not None]
        for row, both in zip(before, made, strict=True)
    ]
    assert all(ref() is not None for each in gone for ref in (each[0], each[-1]))
    assert len(kept) == len(gone)
    kept.clear()
    made.clear()
    clean(odd)
    assert gc.garbage == []


def test_what_an_object_hides_lives(odd: Any, slicer: _hot.Slicer) -> None:
    """Held by a dead one that does not show it: as long as that one is there, and no longer."""
    blind, half = odd.Blind(Node()), odd.Half(Node(), Node())
    owner = Node(half)
    hidden = old([*blind.items(), *half.items(), half, owner])
    del half, owner
    for _ in range(3):
        rounds(slicer, 1, SMALL)
        assert hidden[0]() is blind.items()[0], "it is held"
    rounds(slicer, 1, SMALL)
    assert alive(hidden[1:]) == 0, "its holder died, by its count"
    del blind
    rounds(slicer, 1, SMALL)
    assert alive(hidden) == 0


@pytest.mark.parametrize("name", ["Fair", "Deaf", "Late", "Restless", "Maybe"])
def test_wide_ones(odd: Any, slicer: _hot.Slicer, name: str) -> None:
    """Wider than a walk follows: the living stay whole, what is dead dies at the next whole pass at the latest."""
    of = getattr(odd, name)
    kept = of(*[Node() for _ in range(WIDE + 4_000)])
    kept.add(kept)
    doomed = of(*[Node() for _ in range(WIDE + 4_000)])
    doomed.add(doomed)
    content, gone = old(list(kept.items())[:-1]), old(list(doomed.items())[:-1])
    ring = of(*[[0] for _ in range(500)])
    ring.add(ring)
    dies = weakref.ref(ring)
    del doomed, ring
    before = held_by([kept])
    rounds(slicer, 4, SMALL)
    assert dies() is None
    assert alive(content) == WIDE + 4_000
    assert held_by([kept]) == before
    slicer.whole()
    assert alive(gone) == 0
    kept.drop()


def test_what_cannot_be_cleared_ends_no_round_late(odd: Any, slicer: _hot.Slicer) -> None:
    """Found dead in each round, and never freed: rounds end as ever, and what is beside it dies."""
    for _ in range(500):
        two(odd, odd.Sticky)
    gone = old([Node([]) for _ in range(500)])
    before = odd.living()
    for _ in range(5):
        rounds(slicer, 1, SMALL)
    assert (alive(gone), odd.living()) == (0, before)
    clean(odd)
    assert odd.living() == before - 1000


# ---- untracked ----


def pairs(odd: Any, number: int) -> list[Any]:
    """Two that hold each other, and each something of its own: so many times."""
    made = []
    for _ in range(number):
        one, other = two(odd, odd.Fair)
        one.add([1]), other.add({"of": [2]})
        made += [one, other]
    return made


def of_pair(refs: list[weakref.ref[Any]], at: int) -> tuple[Any, Any]:
    """One of them, and its other."""
    return refs[at](), refs[at ^ 1]()


@pytest.mark.parametrize("seed", range(6))
def test_members_untrack_themselves_in_the_midst(odd: Any, slicer: _hot.Slicer, seed: int) -> None:
    """Of the dead and the living, and track themselves again, or not: those are as the collector would have them."""
    rng = random.Random(seed)
    kept, doomed = pairs(odd, 100), pairs(odd, 100)
    before = held_by(kept)
    living, dead = old(kept), old(doomed)
    doomed.clear()
    untracked: set[int] = set()
    begun = slicer.counts()["cycles"]
    slicer.round()
    slices = 0
    for _ in range(100_000):
        slicer.slice(FEW)
        if slicer.counts()["cycles"] > begun:
            break
        slices += slicer.midway
        for refs in (living, dead):
            one = refs[at := rng.randrange(200)]()
            if one is None:
                continue
            if gc.is_tracked(one):
                one.untrack()
            if rng.random() < 0.5:
                one.track()
            if refs is dead:
                (untracked.discard if gc.is_tracked(one) else untracked.add)(at)
            del one
    assert slices > 50
    rounds(slicer, 2, SMALL)
    left = {at for at in range(200) if dead[at]() is not None}
    assert left == {each for at in untracked for each in (at, at ^ 1)}
    gc.collect()
    assert left == {at for at in range(200) if dead[at]() is not None}, "the collector frees no more"
    for at in untracked:
        one = dead[at]()
        assert one is not None
        one.track()
    del one
    rounds(slicer, 2, SMALL)
    assert alive(dead) == 0
    assert held_by(kept) == before
    assert all(gc.is_tracked(each.items()[1]) for each in kept)


def slices_of_a_round(slicer: _hot.Slicer) -> int:
    """Of few looks."""
    begun = slicer.counts()["cycles"]
    slicer.round()
    for number in range(1, 100_000):
        slicer.slice(FEW)
        if slicer.counts()["cycles"] > begun:
            return number
    pytest.fail("the round does not end")


def empty_lists(objects: list[Any]) -> set[int]:
    """Addresses of the empty lists among them: the slicer's positions are such."""
    return {id(each) for each in objects if each == []}


def rests_at(odd: Any, others: set[int]) -> Any:
    """The object behind an empty list which is none of the others, where the next slice goes on; None: another kind."""
    objects = gc.get_objects(generation=2) + gc.get_objects(generation=1)
    places = empty_lists(objects) - others
    following = [one for place, one in itertools.pairwise(objects) if id(place) in places and type(one) is odd.Fair]
    assert len(following) < 2
    return following[0] if following else None


@pytest.mark.parametrize("again", [False, True])
def test_where_the_slicer_stands(odd: Any, slicer: _hot.Slicer, again: bool) -> None:
    """At all stages of a round the very object untracks itself where the next slice goes on."""
    slicer.slice(LARGE)
    slicer.abandon()
    kept = pairs(odd, 100)
    before, living = held_by(kept), old(kept)
    kept = kept[::2]  # each second one is held by its other only
    length = slices_of_a_round(slicer)
    met = 0
    for at in range(0, length, length // 40):
        dead = old(pairs(odd, 10))
        slicer.abandon()
        others = empty_lists(gc.get_objects())
        slicer.round()
        for _ in range(at):
            slicer.slice(FEW)
        for _ in range(40):
            one = rests_at(odd, others)
            if one is not None:
                break
            slicer.slice(FEW)
        if one is not None:
            met += 1
            assert slicer.midway
            one.untrack()
            if again:
                one.track()
            del one
            slicer.slice(FEW)
        for ref in living + dead:
            if (one := ref()) is not None:
                one.track()
        del one
        old([])
        rounds(slicer, 2, SMALL)
        assert alive(dead) == 0
    assert met > 10
    assert held_by([each() for each in living]) == before


def test_members_of_a_tangle_untrack_themselves(odd: Any, slicer: _hot.Slicer) -> None:
    """While the slicer holds them, to put them in order: what an untracked one leads to lives, the rest dies."""
    nodes: list[Any] = []
    for _ in range(3_000):
        node = odd.Fair([1], {"of": []}, [[2]], *nodes[-1:])
        node.add(node)
        nodes.append(node)
    gone = old(nodes)
    nodes.clear()
    del node
    slicer.round()
    for _ in range(10_000):
        slicer.slice(SMALL)
        if slicer.counts()["held"] >= 500:
            break
    else:
        pytest.fail("nothing is put in order")
    for at in (10, 40, 41, 700, 1500, 2998):
        one = gone[at]()
        assert one is not None
        one.untrack()
        if at > 40:
            one.track()
    del one
    rounds(slicer, 4, SMALL)
    assert [at for at, ref in enumerate(gone) if ref() is not None] == list(range(41))
    gc.collect()
    assert alive(gone) == 41, "the collector frees no more"
    for at in (10, 40):
        gone[at]().track()  # type: ignore[union-attr]
    rounds(slicer, 3, SMALL)
    assert alive(gone) == 0


def test_what_the_collector_untracks(slicer: _hot.Slicer) -> None:
    """Tuples and dicts of what is no container, while a round is under way, in which they were counted."""
    kept = [Node((number, (number, "a")), {"number": number}) for number in range(300)]
    doomed = [Node((number, (number, "a")), {"number": number}) for number in range(300)]
    gone = [weakref.ref(each) for each in doomed]
    gc.collect(0)
    doomed.clear()
    slicer.round()
    generations = itertools.cycle((0, 1, 0, 2, 0, 1))
    for _ in range(200):
        slicer.slice(FEW)
        kept.append(Node((1, (2, 3)), {"number": 4}))
        gc.collect(next(generations))
    rounds(slicer, 2, SMALL)
    assert alive(gone) == 0
    assert not any(gc.is_tracked(node.to[0]) for node in kept)
    assert all(node.to[0][1][1] == "a" and node.to[1]["number"] == node.to[0][0] for node in kept[:300])


# ---- finalizers ----


class Ended:
    """One that keeps how it ended."""

    def __init__(self, number: int, log: list[int]) -> None:
        self.number, self.log = number, log
        self.to: list[Any] = []

    def __del__(self) -> None:
        self.log.append(self.number)


def in_a_ring(nodes: list[Any], sequence: list[int]) -> list[Any]:
    """Each holds the next one of a sequence."""
    for one, other in itertools.pairwise([*sequence, sequence[0]]):
        nodes[one].to.append(nodes[other])
    return nodes


def order_of(free: Callable[[], object], make: Callable[[list[int]], list[Ended]]) -> list[int]:
    """In which the ends came."""
    log: list[int] = []
    gone = old(make(log))
    free()
    assert alive(gone) == 0
    return log


def test_a_cycle_ends_in_the_collector_s_order(slicer: _hot.Slicer) -> None:
    """One that was made in the order in which each refers to the next."""

    def one_cycle(log: list[int]) -> list[Ended]:
        return in_a_ring([Ended(number, log) for number in range(300)], list(range(300)))

    by_slices = order_of(lambda: rounds(slicer, 1), one_cycle)
    assert by_slices == order_of(gc.collect, one_cycle) == list(range(300))


def test_each_of_many_cycles_ends_in_that_order(slicer: _hot.Slicer) -> None:
    """One after the other. Which of two comes first is left open: by the collector the older one."""

    def many(log: list[int]) -> list[Ended]:
        made = []
        for first in range(0, 300, 3):
            made += in_a_ring([Ended(first + number, log) for number in range(3)], [0, 1, 2])
        return made

    by_slices = order_of(lambda: rounds(slicer, 1), many)
    assert sorted(by_slices) == order_of(gc.collect, many) == list(range(300))
    for first, second, third in zip(by_slices[::3], by_slices[1::3], by_slices[2::3], strict=True):
        assert (second, third) == (first + 1, first + 2)


@pytest.mark.parametrize("seed", range(4))
def test_however_it_hangs_together_all_end_before_any_is_cleared(slicer: _hot.Slicer, seed: int) -> None:
    """The order in one cycle is that in which its members are come upon from the oldest, not that of their ages: but
    each ends once, the oldest first, while all are whole, as the collector has it."""
    whole: list[int] = []

    class Looks(Ended):
        def __del__(self) -> None:
            super().__del__()
            at, length = self.to[0], 1
            while at is not self:
                at, length = at.to[0], length + 1
            whole.append(length)

    def make(log: list[int]) -> list[Ended]:
        sequence = list(range(300))
        random.Random(seed).shuffle(sequence)
        return in_a_ring([Looks(number, log) for number in range(300)], sequence)

    by_slices, by_collector = order_of(lambda: rounds(slicer, 1), make), order_of(gc.collect, make)
    assert by_collector == list(range(300))
    assert sorted(by_slices) == by_collector
    assert by_slices[0] == 0
    assert whole == [300] * 600


def test_finalizers_raise(slicer: _hot.Slicer) -> None:
    """Each is reported once, as by the collector; its object dies, and so does what is beside it."""

    class Raises(Node):
        def __del__(self) -> None:
            raise ValueError("as it should")

    def freed(free: Callable[[], object]) -> list[Any]:
        nodes = [Raises() for _ in range(50)] + [Node() for _ in range(50)]
        for one, other in zip(nodes, nodes[50:], strict=False):
            one.to.append(other)
            other.to.append(one)
        gone = old(nodes)
        nodes.clear()
        del one, other
        raised: list[Any] = []
        hook, sys.unraisablehook = (
            sys.unraisablehook,
            lambda each: raised.append((type(each.exc_value), str(each.exc_value))),
        )
        try:
            free()
        finally:
            sys.unraisablehook = hook
        return [alive(gone), *raised]

    by_slices = freed(lambda: rounds(slicer, 2, SMALL))
    assert by_slices == freed(gc.collect) == [0] + [(ValueError, "as it should")] * 50


def test_finalizers_bring_back(slicer: _hot.Slicer) -> None:
    """All that one of them leads to lives, and is whole; let go of, it dies without another end."""

    def freed(free: Callable[[], object]) -> tuple[int, ...]:
        back: list[Any] = []
        ends: list[int] = []

        class Returns(Node):
            def __del__(self) -> None:
                ends.append(1)
                back.append(self)

        nodes = [Returns(Node([1]), Node([2])) for _ in range(50)]
        gone = old([*nodes, *(part for node in nodes for part in node.to)])
        nodes.clear()
        free()
        lived = alive(gone), len(back), len(ends)
        assert all(node.me[0] is node and node.to[1].to == [[2]] for node in back)
        free()
        assert (alive(gone), len(back), len(ends)) == lived
        back.clear()
        free()
        return (*lived, alive(gone), len(back), len(ends))

    by_slices = freed(lambda: rounds(slicer, 2, SMALL))
    assert by_slices == freed(gc.collect)
    assert by_slices[1:3] == (50, 50) and by_slices[3:] == (0, 0, 50)


class Beside:
    """A thread that does something in the midst of each of some finalizers, which sleep meanwhile."""

    def __init__(self, does: Callable[[], object]) -> None:
        self.does = does
        self.did: list[object] = []
        self._asked, self._done, self._over = threading.Semaphore(0), threading.Semaphore(0), False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self._asked.acquire(timeout=SECONDS) and not self._over:
            self.did.append(self.does())
            self._done.release()

    def meanwhile(self) -> None:
        """It has done so, and this thread slept."""
        self._asked.release()
        assert self._done.acquire(timeout=SECONDS)

    def end(self) -> None:
        self._over = True
        self._asked.release()
        self._thread.join()


@pytest.mark.parametrize("tangled", [False, True])
def test_finalizers_sleep(hooked: _hot.Slicer, tangled: bool) -> None:
    """Another thread allocates, and asks for slices, which it is not given; gives up the round, and collects."""
    slicer, ends, later = hooked, [], []  # type: ignore[var-annotated]

    def does() -> object:
        later.extend(weakref.ref(Node([])) for _ in range(200))
        done = slicer.slice(SMALL), slicer.whole(), slicer.sync_frozen()
        if len(ends) % 3 == 1:
            slicer.abandon()
        elif len(ends) % 3 == 2:
            gc.collect()
        later.extend(weakref.ref(Node([])) for _ in range(200))
        return done

    class Sleeps(Node):
        slow = False

        def __del__(self) -> None:
            if self.slow:
                ends.append(1)
                beside.meanwhile()

    beside = Beside(does)
    try:
        nodes = [Sleeps([1], [[2]]) for _ in range(2_000)]
        kept = [Node([number]) for number in range(1_000)]
        for node in nodes[::200]:
            node.slow = True
        if tangled:
            for one, other in itertools.pairwise(nodes):
                other.to.append(one)
            del one, other
        gone = old(nodes)
        nodes.clear()
        del node
        rounds(slicer, 4, SMALL)
        assert alive(gone) == 0
        rounds(slicer, 2, SMALL)
        assert alive(later) == 0
    finally:
        beside.end()
    assert len(ends) == 10
    assert beside.did == [(None, None, 0)] * 10, "a slice is under way"
    assert all(node.me[0] is node and node.to == [[number]] for number, node in enumerate(kept))
