"""The thresholds of the interpreter's own collections after a freeze."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from tailwatch.gc.thresholds import Thresholds

from ..support.process import Python


@pytest.fixture(autouse=True)
def host() -> Iterator[tuple[int, int, int]]:
    """The thresholds of the host, restored afterwards."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield 700, 10, 10
    gc.set_threshold(*before)


def test_a_quarter_of_the_frozen_must_be_new_before_a_full_collection() -> None:
    thresholds = Thresholds()
    thresholds.after_freeze(2_600_000)
    young, middle, full = gc.get_threshold()
    assert (young, middle) == (700, 10)
    assert young * (middle + 1) * full <= 2_600_000 / 4 < young * (middle + 1) * (full + 1)


def test_a_small_heap_changes_nothing() -> None:
    thresholds = Thresholds()
    thresholds.after_freeze(100_000)
    assert gc.get_threshold() == (700, 10, 10)
    assert thresholds.ours is None


def test_an_unfreeze_restores_the_hosts() -> None:
    thresholds = Thresholds()
    thresholds.after_freeze(2_600_000)
    thresholds.after_freeze(0)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("others", [(0, 10, 10), (5000, 20, 30)])
def test_what_other_code_sets_later_stays(others: tuple[int, int, int]) -> None:
    thresholds = Thresholds()
    thresholds.after_freeze(2_600_000)
    gc.set_threshold(*others)
    thresholds.after_freeze(9_000_000)
    assert thresholds.changed
    (sentence,) = thresholds.restore()
    assert str(others) in sentence
    assert gc.get_threshold() == others


def test_a_host_without_automatic_collections_keeps_none() -> None:
    gc.set_threshold(0, 10, 10)
    Thresholds().after_freeze(2_600_000)
    assert gc.get_threshold() == (0, 10, 10)


def test_restore() -> None:
    thresholds = Thresholds()
    thresholds.after_freeze(2_600_000)
    assert thresholds.restore() == []
    assert gc.get_threshold() == (700, 10, 10)
    assert thresholds.restore() == []


GROWS = """
import gc, sys, tailwatch
gc.set_threshold(700, 10, 10)
loaded = [[] for _ in range(1_500_000)]
if sys.argv[1] == "freeze":
    tailwatch.install(role="engine", gc="freeze")
    tailwatch.freeze()
else:
    gc.collect()
    if sys.argv[1] == "gc.freeze()":
        gc.freeze()
        gc.collect()
before = gc.get_stats()[2]["collections"]
cache = [[] for _ in range(300_000)]
print(gc.get_stats()[2]["collections"] - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="CPython 3.14 has another rule")
def test_a_heap_that_grows_has_no_more_full_collections_than_without_the_freeze() -> None:
    """300 thousand new objects beside 1.5 million: fewer than a quarter."""
    full = {}
    for how in ("left alone", "gc.freeze()", "freeze"):
        with Python(GROWS, how) as process:
            full[how] = int(process.read_line())
    assert full["left alone"] == full["freeze"] == 0
    assert full["gc.freeze()"] > 0
