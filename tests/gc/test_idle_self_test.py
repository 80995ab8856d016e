"""The self-test of the slices: beside threads that collect, it is repeated at quiet moments."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tailwatch.gc import idle
from tailwatch.gc.hook import GCHook

from .slicing import core

COLLECT = gc.collect


class Host:
    """A process under gc="idle"."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.hook = GCHook(core(), "idle", self.warnings.append)

    @property
    def state(self) -> tuple[str, str, bool]:
        """The mode, the reason for it, and whether idle slots are used."""
        return self.hook.idle_gc.mode, self.hook.idle_gc.reason, self.hook.idle_gc.slicer.on

    def quiet_moment(self) -> None:
        """The last request ends, long after the last self-test."""
        self.hook.idle_gc._next_test = 0.0
        if self.hook.waiting:
            self.hook.on_idle()


@pytest.fixture
def host() -> Iterator[Host]:
    """One that is not attached yet; the heap of the test run is frozen."""
    gc.freeze()
    made = Host()
    yield made
    made.hook.detach()
    gc.unfreeze()


class Disturbance:
    """Another thread's collection in the midst of the self-test, after so many collections of the test's own."""

    def __init__(self, after: int) -> None:
        self.left = after

    def collect(self, generation: int) -> int:
        """gc.collect, and what comes upon it."""
        found = COLLECT(generation)
        self.left -= 1
        if self.left == 0:
            thread = threading.Thread(target=COLLECT, args=(1,))
            thread.start()
            thread.join()
        return found


def test_a_self_test_that_was_disturbed_is_repeated(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """An automatic collection made what should be of generation 1 older: slices at the next quiet moment."""
    monkeypatch.setattr(idle, "_collect", Disturbance(after=3).collect)
    host.hook.attach()
    assert host.state == ("full collections", "lists", False)
    host.hook.freeze()
    assert host.hook.idle_gc.mode == "full collections"
    host.quiet_moment()
    assert host.state == ("slices", "", True)
    assert host.hook.idle_gc.heap()["frozen"] > 1000
    assert [sentence.split(":")[1] for sentence in host.warnings] == [" slices are disabled", " slices are enabled"]
    assert not host.hook.idle_gc.is_to_be_tested


def fails_at(number: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is planted does not die in so many tests. The tests made."""
    made: list[int] = []

    def dies(slicer: Any) -> bool:
        made.append(1)
        return len(made) > number

    monkeypatch.setattr(idle, "_dies", dies)
    return made


@pytest.mark.parametrize("before_the_freeze", [True, False])
def test_it_is_repeated_at_the_next_quiet_moments(
    host: Host, monkeypatch: pytest.MonkeyPatch, before_the_freeze: bool
) -> None:
    """Before the freeze, too; and it is reported once that slices are disabled."""
    made = fails_at(3, monkeypatch)
    host.hook.attach()
    if not before_the_freeze:
        host.hook.freeze()
    for _ in range(3):
        assert host.state == ("full collections", "proof", False)
        host.quiet_moment()
    host.hook.freeze()
    assert host.state == ("slices", "", True)
    assert (len(made), len(host.warnings)) == (4, 2)


def test_it_is_not_repeated_for_ever(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where no quiet moment came since the last one, nor without one."""
    made = fails_at(1_000, monkeypatch)
    host.hook.attach()
    host.hook.freeze()
    host.hook.on_idle()
    assert len(made) == 1
    for _ in range(50):
        host.quiet_moment()
    assert 2 < len(made) < 20
    assert host.state == ("full collections", "proof", False)


@pytest.mark.parametrize(
    "harm",
    [
        lambda patch: patch.setattr(idle, "_lives", lambda slicer: False),
        lambda patch: patch.setattr(idle, "KNOWN_LISTS", ()),
    ],
)
def test_what_no_thread_can_have_done_fails_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch, harm: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """A living structure that was taken apart, and a version whose lists are not known."""
    harm(monkeypatch)
    host.hook.attach()
    host.hook.freeze()
    monkeypatch.undo()
    host.quiet_moment()
    assert host.state[::2] == ("full collections", False)
    assert len(host.warnings) == 1
