"""What the sweep must bear: no memory, tuples that are being built, wide objects, strange freezes and forks."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailwatch import _hot
from tailwatch.hooks.out_of_band import OutOfBand

SLO = (0, 0, 0, 0, 0)
LARGE = 100_000  # looks: a round in few slices
SMALL = 2_000  # the least that the pace gives
WIDE = 16_000  # references of one object that a walk follows, as csrc/python/hot_walk.c has it
REFCOUNT = ctypes.c_uint32 if sys.version_info >= (3, 12) else ctypes.c_ssize_t


class Node:
    """Of a cycle."""

    def __init__(self, **more: Any) -> None:
        self.me = [self]
        self.__dict__.update(more)


@pytest.fixture
def sweep() -> Iterator[_hot.Sweep]:
    """One that knows the lists, and a heap that is frozen; automatic collections are off."""
    gc.disable()
    policy = OutOfBand(_hot.Core("api", 1, SLO, 0, lambda scope: "", lambda sent, stream: sent), pytest.fail)
    policy.prepare()
    assert policy.mode == "sweep"
    gc.collect()
    policy.remember()
    gc.freeze()
    gc.collect()
    yield policy.sweep
    policy.sweep.forget()
    gc.unfreeze()
    gc.enable()


def rounds(sweep: _hot.Sweep, number: int, budget: int = LARGE) -> None:
    """So many whole ones, and the rest of one that is under way."""
    begun = sweep.counts()["rounds"]
    for _ in range(100_000):
        sweep.slice(budget)
        if sweep.counts()["rounds"] - begun > number:
            return
    pytest.fail("the rounds do not end")


def old(made: list[Any]) -> list[weakref.ref[Any]]:
    """Weak references to what is no longer young."""
    gc.collect(0)
    gc.collect(1)
    return [weakref.ref(each) for each in made]


def alive(gone: list[weakref.ref[Any]]) -> int:
    return sum(each() is not None for each in gone)


WITHOUT_MEMORY = """
import ctypes, gc, resource, sys, weakref
from tailwatch import _hot
from tailwatch.hooks.out_of_band import OutOfBand

class Node:
    def __init__(self):
        self.me = [self]

malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
gc.disable()
policy = OutOfBand(_hot.Core("api", 1, (0,) * 5, 0, lambda scope: "", lambda sent, stream: sent), sys.exit)
policy.prepare()
gc.collect(), policy.remember(), gc.freeze(), gc.collect()
sweep = policy.sweep
keep = [Node() for _ in range(20000)]
nodes = [Node() for _ in range(20000)]
kept, gone = [[weakref.ref(each) for each in group] for group in (keep, nodes)]
gc.collect(0), gc.collect(1)
del nodes
sweep.slice(2000)
sweep.forget()  # and with it all marks
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
        sweep.slice(2000)
    except MemoryError:
        failed += 1
without = sum(each() is None for each in gone)
for i in range(n):
    free(taken[i])
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
rounds = sweep.counts()["rounds"]
while sweep.counts()["rounds"] < rounds + 3:
    sweep.slice(20000)
print(without < 20000, sum(each() is None for each in gone), sum(each() is None for each in kept))
"""


def test_without_memory_it_frees_less_and_nothing_else() -> None:
    """Not one more byte for marks, for many slices: they do no harm; once there is memory again all that is dead dies."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "True 20000 0\n"), done.stderr[-2000:]
