"""The memory limit: what it may be, and what is done at it, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailwatch
from tailwatch.errors import OptionError
from tailwatch.gc.memory_limit import (
    IDLE_SLOT_SECONDS,
    NOTHING,
    OBJECTS,
    PASS,
    RSS,
    SLICES,
    SLICES_SECONDS,
    MemoryLimit,
    MemoryLimitWatch,
    resident,
)
from tailwatch.options.config import Config

MB = 10**6


@pytest.mark.parametrize(
    ("text", "memory_limit"),
    [
        ("", MemoryLimit()),
        ("rss=+256MB", MemoryLimit(256 * MB, True)),
        ("rss=8GiB", MemoryLimit(8 * 2**30)),
        (" RSS = +1.5gb , objects = 2_000_000 ", MemoryLimit(1500 * MB, True, 2_000_000)),
        ("objects=1000", MemoryLimit(objects=1000)),
    ],
)
def test_what_a_memory_limit_may_be(text: str, memory_limit: MemoryLimit) -> None:
    """Each bound alone or both, in any case; what it prints means the same again."""
    assert MemoryLimit.parse(text) == memory_limit
    assert MemoryLimit.parse(str(memory_limit)) == memory_limit
    assert bool(memory_limit) is bool(text)


@pytest.mark.parametrize(
    ("text", "taught"),
    [
        ("256MB", "expected 'rss=+256MB'"),
        ("rss=256", "with a unit"),
        ("rss=-1MB", "with a unit"),
        ("rss=+1KB", "1MB to 1PB"),
        ("rss=9999999GB", "1MB to 1PB"),
        ("objects=12", "from 1000"),
        ("objects=many", "whole number"),
        ("object=2000", "did you mean 'objects'?"),
        ("rss=1GB,rss=2GB", "each once"),
        ("rss=1GB,", "expected 'rss=+256MB'"),
        (5, "expected 'rss=+256MB'"),
        (None, "expected 'rss=+256MB'"),
    ],
)
def test_errors_teach(text: object, taught: str) -> None:
    """They name the option, what it takes and what was found."""
    with pytest.raises(OptionError, match=r"gc_memory_limit") as caught:
        MemoryLimit.parse(text)
    assert taught in str(caught.value)


@given(st.text(max_size=40) | st.from_regex(r"\A(rss|objects)=\+?[0-9.]{1,20}[kKmMgG]?[iI]?[bB]?(,objects=[0-9_]+)?\Z"))
def test_any_text_is_a_memory_limit_or_an_option_error(text: str) -> None:
    """And what it is, it is in its bounds."""
    try:
        memory_limit = MemoryLimit.parse(text)
    except OptionError:
        return
    assert memory_limit.rss == 0 or MB <= memory_limit.rss <= 2**50
    assert memory_limit.objects == 0 or 1000 <= memory_limit.objects <= 10**12


def test_it_is_an_option() -> None:
    """As an argument and as a variable; a bad one names its source."""
    assert Config.read({"gc_memory_limit": "objects=5000"}, {}).gc_memory_limit == MemoryLimit(objects=5000)
    assert Config.read({}, {"TAILWATCH_GC_MEMORY_LIMIT": "rss=1GB"}).gc_memory_limit == MemoryLimit(1000 * MB)
    assert Config.read({"gc_memory_limit": MemoryLimit(objects=5000)}, {}).gc_memory_limit == MemoryLimit(objects=5000)
    with pytest.raises(OptionError, match="TAILWATCH_GC_MEMORY_LIMIT"):
        Config.read({}, {"TAILWATCH_GC_MEMORY_LIMIT": "1GB"})


class Process:
    """One whose memory and objects are given, and which does what it is forced to on call."""

    def __init__(self, memory_limit: str, *, slices: bool = True) -> None:
        self.rss = self.objects = 0
        self.forced = NOTHING
        self.slices = slices
        self.settled = False
        self.wholes = 0
        self.met: list[int] = []
        self.warnings: list[str] = []
        self.watch = MemoryLimitWatch(
            objects=lambda: self.objects,
            force=self.force,
            pending=lambda: self.forced,
            settled=lambda: self.settled,
            whole=self.whole,
            met=lambda which, sentence: self.met.append(which),
            warn=self.warnings.append,
            memory_limit=MemoryLimit.parse(memory_limit),
            resident=lambda: self.rss,
        )

    def force(self, what: int) -> bool:
        self.forced = what
        return self.slices or what != SLICES

    def whole(self) -> None:
        self.wholes += 1


def test_below_it_nothing_is_done() -> None:
    """Nor without one."""
    for process in (Process("objects=1000"), Process("")):
        process.objects = 1000
        process.watch.look(1.0)
        assert (process.forced, process.met) == (NOTHING, [])


def test_slices_bring_it_down() -> None:
    """Met once, forced until it is below, then no more; met again it is another episode."""
    process = Process("objects=1000")
    for episode in (1, 2):
        process.objects = 1001
        process.watch.look(10.0 * episode)
        process.watch.look(10.0 * episode + 0.25)
        assert process.forced == SLICES
        process.objects = 995
        process.watch.look(10.0 * episode + 0.5)
        assert process.forced == SLICES, "it ends a little below, or it would begin again at once"
        process.objects = 900
        process.watch.look(10.0 * episode + 0.75)
        assert process.forced == NOTHING
        assert process.met == [OBJECTS] * episode
    assert process.wholes == 0


@pytest.mark.parametrize("settled", [True, False])
def test_a_whole_pass_where_slices_do_not(settled: bool) -> None:
    """Once they are through, or after some seconds; made in the next moment, wherever that is."""
    process = Process("objects=1000")
    process.objects, process.settled = 2000, settled
    process.watch.look(1.0)
    process.watch.look(1.25)
    assert process.forced == (PASS if settled else SLICES)
    if not settled:
        process.watch.look(1.5 + SLICES_SECONDS)
    assert process.forced == PASS
    process.forced, process.objects = NOTHING, 10
    process.watch.look(1.75 + SLICES_SECONDS)
    assert (process.wholes, process.met, process.warnings) == (0, [OBJECTS], [])


def test_without_idle_slots() -> None:
    """Then the daemon makes the pass itself."""
    process = Process("rss=1MB", slices=False)
    process.rss = 2 * MB
    process.watch.look(1.0)
    assert process.forced == PASS
    process.watch.look(1.0 + IDLE_SLOT_SECONDS)
    assert process.wholes == 0
    process.watch.look(1.5 + IDLE_SLOT_SECONDS)
    assert (process.wholes, process.met) == (1, [RSS])


def test_what_lives_cannot_be_collected() -> None:
    """A memory limit that no pass brings back is tried again ever more rarely, and reported once."""
    process = Process("objects=1000", slices=False)
    process.objects = 5000
    for step in range(4000):
        process.watch.look(step / 4)
    assert 10 < process.wholes < 30, "a thousand seconds at up to a minute apart"
    assert process.met == [OBJECTS]
    assert len(process.warnings) == 1 and "cannot be held" in process.warnings[0]


def test_memory_counts_from_the_freeze() -> None:
    """rss=+1MB is what came since; rss=1MB is all of it."""
    process = Process("rss=+1MB")
    process.rss = 500 * MB
    process.watch.frozen()
    process.watch.look(1.0)
    assert process.met == []
    process.rss = 502 * MB
    process.watch.look(1.25)
    assert process.met == [RSS]


def test_resident_memory_is_seen() -> None:
    """A hundred megabytes that are touched are there."""
    before = resident()
    kept = bytearray(100 * MB)
    for at in range(0, len(kept), 4096):
        kept[at] = 1
    assert resident() - before > 90 * MB
    assert len(kept) == 100 * MB


@pytest.fixture
def installed() -> Iterator[Callable[..., tailwatch.Watch]]:
    """install(), undone afterwards."""
    yield lambda **options: tailwatch.install(**options)
    tailwatch.uninstall()


@pytest.mark.parametrize("gc", ["freeze", "observe", "off"])
def test_without_the_policy_it_has_no_effect(gc: str, installed: Callable[..., tailwatch.Watch]) -> None:
    """Nothing forces the interpreter's own collections."""
    watch = installed(gc=gc, gc_memory_limit="objects=5000")
    assert [note for note in watch.notes if "gc_memory_limit" in note and "no effect" in note]
