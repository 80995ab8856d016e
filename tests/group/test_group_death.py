"""A process that leaves a group, or dies in it: what it measured stays in the totals, under its name, and its file
goes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch.group import temp_dirs

from ..support.process import Python
from ..support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_collections")]

MEMBER = """
import gc, json, os, sys
import tailwatch
gc.disable()
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="observe")
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "collect":
        gc.collect()
    elif word == "leave":
        tailwatch.uninstall()
    elif word == "come back":
        watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="observe")
    elif word == "become another program":
        os.execv(sys.executable, [sys.executable, "-c", os.environ["MEMBER"], *sys.argv[1:]])
    elif word == "stamp":
        with tailwatch.stream(model="m") as stream:
            stream.token()
    print(json.dumps(word), flush=True)
"""


class Member(Python):
    """Another process of the group, that carries out commands."""

    def __init__(self, directory: Path, role: str) -> None:
        super().__init__(MEMBER, directory, role, env={**os.environ, "MEMBER": MEMBER})

    def order(self, word: str) -> None:
        assert self.ask(word) == (True if word == "become another program" else word)


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[[str], Member]]:
    """Starts processes of the group; all are gone after the test."""
    started: list[Member] = []

    def begin(role: str) -> Member:
        started.append(Member(directory, role))
        assert started[-1].read() is True
        return started[-1]

    yield begin
    for member in started:
        member.kill()


def install(directory: Path, role: str = "api") -> tailwatch.Watch:
    return tailwatch.install(dir=directory, role=role, gc="observe")


def segments(directory: Path) -> list[int]:
    """Whose files stand there."""
    return sorted(int(path.name.split("-")[0]) for path in directory.glob("*.seg"))


def until_merged(watch: tailwatch.Watch, directory: Path, pids: list[int]) -> None:
    """Another member may be at it."""

    def merged() -> bool:
        watch.membership.renew()
        return segments(directory) == sorted(pids)

    until(merged)


def counted(snap: snapshots.Snapshot) -> dict[str, Any]:
    return {"collections": snap.gc.collections, "paused": snap.paused, "opened": snap.opened, "tokens": snap.tokens}


def test_a_living_process_keeps_its_name(directory: Path, start: Callable[[str], Member]) -> None:
    """The older one dies: the younger stays engine-1, and the next that comes is engine-0 and counts on from there."""
    watch = install(directory)
    first, second = start("engine"), start("engine")
    first.order("collect"), second.order("collect"), second.order("collect")
    before = {process.name: process for process in watch.snapshot().processes}
    assert (before["engine-0"].pid, before["engine-1"].pid) == (first.pid, second.pid)
    first.kill()
    until_merged(watch, directory, [os.getpid(), second.pid])
    dead = {process.name: process for process in watch.snapshot().processes}
    assert (dead["engine-0"].lives, dead["engine-0"].pid, dead["engine-1"].pid) == (False, 0, second.pid)
    assert dead["engine-0"].paused == before["engine-0"].paused
    assert dead["engine-1"].paused == before["engine-1"].paused
    third = start("engine")
    third.order("collect")
    after = {process.name: process for process in watch.snapshot().processes}
    assert sorted(after) == ["api-0", "engine-0", "engine-1"]
    assert (after["engine-0"].lives, after["engine-0"].pid) == (True, third.pid)
    assert after["engine-0"].paused["gc2"] > before["engine-0"].paused["gc2"]
    text = b"".join(watch.exposition.respond("", "").parts).decode()
    assert 'python_gc_duration_seconds_count{generation="2",process="engine-0"} 2' in text


def test_leaving_keeps_the_totals(directory: Path, start: Callable[[str], Member]) -> None:
    """uninstall() merges; one that comes back counts from zero, and nothing counts twice."""
    watch, engine = install(directory), start("engine")
    for _ in range(3):
        engine.order("stamp"), engine.order("collect")
    before = watch.snapshot()
    engine.order("leave")
    until_merged(watch, directory, [os.getpid()])
    assert counted(watch.snapshot()) == counted(before)
    engine.order("come back"), engine.order("stamp")
    after = watch.snapshot()
    assert (after.opened, after.tokens) == (before.opened + 1, before.tokens + 1)
    assert segments(directory) == sorted([os.getpid(), engine.pid])
    assert after.gc.collections == before.gc.collections


def test_what_a_process_was_before_exec_is_merged(directory: Path, start: Callable[[str], Member]) -> None:
    """It keeps its pid: the group counts both programs, and one file stands."""
    watch, engine = install(directory), start("engine")
    engine.order("stamp"), engine.order("collect")
    before = watch.snapshot()
    engine.order("become another program")
    until_merged(watch, directory, [os.getpid(), engine.pid])
    assert counted(watch.snapshot()) == counted(before)
    assert watch.snapshot().in_flight == 0


def test_a_core_that_joins_again_counts_from_zero(directory: Path) -> None:
    """The group has what it left there; elsewhere, or where that is gone, it brings its numbers along."""
    core = _hot.Core("api", 4, (0,) * 5, 0, lambda scope: "/", print)
    own = install(directory)
    for _ in range(2):
        assert core.join(str(directory), 0) is None
        core.stream("m", "/", None, "", "").close()
        core.leave()
        assert core.opened == 1
    until_merged(own, directory, [os.getpid()])
    assert own.snapshot().opened == 2
    elsewhere = directory.with_name("elsewhere")
    assert core.join(str(elsewhere), 0) is None
    assert core.opened == 1
    core.leave()


def test_readers_write_nothing(directory: Path, start: Callable[[str], Member]) -> None:
    """The doctor, top and any reader from outside leave a dead group as it is."""
    engine = start("engine")
    engine.order("collect")
    engine.kill()
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    for _ in range(2):
        snap = snapshots.take_directory(str(directory))
    assert snap.gc.collections["gc2"] >= 1
    assert [(process.name, process.lives) for process in snap.processes] == [("engine-0", False)]
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_threads_that_merge_at_once_merge_each_file_once(directory: Path, start: Callable[[str], Member]) -> None:
    """merge_dead() drops the GIL; one thread is at it, the others go on."""
    core = _hot.Core("api", 4, (0,) * 5, 0, lambda scope: "/", print)
    assert core.join(str(directory), 0) is None
    members = [start("engine") for _ in range(3)]
    for member in members:
        member.order("stamp")
        member.kill()
    merged: list[int] = []

    def merge() -> bool:
        threads = [threading.Thread(target=lambda: merged.append(core.merge_dead())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return segments(directory) == [os.getpid()]

    until(merge)
    assert sum(merged) == 3
    assert snapshots.take_directory(str(directory)).opened == 3
    core.leave()


def test_a_retired_segment_is_removed_with_its_group(
    tmp_path: Path, start: Callable[[str], Member], directory: Path
) -> None:
    """tailwatch run removes a dead launcher's directory with retired in it, and none with files of another's."""
    watch = install(directory)
    start("engine").kill()
    until_merged(watch, directory, [os.getpid()])
    (directory / "merge.tmp").touch(mode=0o600)
    assert not temp_dirs._is_left(str(directory))  # we live in it
    tailwatch.uninstall()
    start("api").kill()
    assert temp_dirs._is_left(str(directory))
    (directory / "notes.txt").touch()
    assert not temp_dirs._is_left(str(directory))
