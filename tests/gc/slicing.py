"""What the tests of the slicer have in common: one that can read the lists, old objects, whole rounds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tailwatch import _hot
from tailwatch.gc.idle import IdleGC

SLO = (0, 0, 0, 0, 0)
LARGE = 100_000  # looks: a round in few slices
SMALL = 2_000  # the least that the pace gives
OVERDUE, ASKED = 3, 5  # what a slice is made for: the second collects the young, however few there are
LONG_NS = 10**10  # of a slice, which the clock does not cut then


def core() -> _hot.Core:
    """One that nothing reads."""
    return _hot.Core("api", 1, SLO, 0, lambda scope: "", lambda sent, stream: sent)


def begin(of: _hot.Core | None = None) -> IdleGC:
    """Its slicer can read the lists, and a heap that is frozen; automatic collections are off until `end`.

    The heap of the test run itself is frozen first, as that of a server which froze before: no collection goes through
    its hundreds of thousands of objects.
    """
    gc.disable()
    gc.freeze()
    policy = IdleGC(of or core(), pytest.fail)
    policy.prepare()
    assert policy.mode == "slices"
    policy.sync_frozen()
    gc.collect()
    policy.freeze(gc.freeze)
    gc.collect()
    return policy


def end(policy: IdleGC) -> None:
    """All as it was."""
    policy.slicer.forget()
    gc.unfreeze()
    gc.enable()


def beside_collections() -> Iterator[_hot.Slicer]:
    """A fixture's: one that is on, with its core's callbacks around those of others."""
    hooked = core()
    found = begin(hooked)
    gc.callbacks[:0], found.slicer.on = [hooked.gc_first], True
    gc.callbacks.append(hooked.gc_last)
    yield found.slicer
    gc.callbacks.remove(hooked.gc_first)
    gc.callbacks.remove(hooked.gc_last)
    found.slicer.on = False
    end(found)


def rounds(slicer: _hot.Slicer, number: int, budget: int = LARGE, most_ns: int = 0) -> None:
    """So many of the whole old heap, and the rest of one that is under way. most_ns: of each slice; 0: any."""
    begun = slicer.counts()["cycles"]
    for _ in range(100_000):
        slicer.round()
        slicer.slice(budget, None, ASKED, most_ns)
        if slicer.counts()["cycles"] - begun > number:
            return
    pytest.fail("the rounds do not end")


def old(made: list[Any]) -> list[weakref.ref[Any]]:
    """Weak references to what is no longer young."""
    gc.collect(0)
    gc.collect(1)
    return [weakref.ref(each) for each in made]


def alive(gone: list[weakref.ref[Any]]) -> int:
    """How many of them there are."""
    return sum(each() is not None for each in gone)
