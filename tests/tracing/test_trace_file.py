"""What a process records: that it is all there, that it is there after its death, and that nothing else is."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot
from tailwatch.cli import find_group, main
from tailwatch.errors import TailwatchError
from tailwatch.group import temp_dirs
from tailwatch.tracing import ring_files

from ..support.process import Python
from ..support.tmpfs import on_64_mb, on_tmpfs
from ..support.waiting import until
from .trace_files import CLOSE, COUNTER, DELAY, FIRST, OPEN, PAUSE, SHARED, STEP, THREAD, TOKEN, read_trace

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 30
SLO = (2_000_000_000, 200_000_000, 0, 0, 990_000)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "group"


@pytest.fixture
def core(directory: Path) -> Iterator[_hot.Core]:
    """One that records 4096 events into a group's directory."""
    made = _hot.Core("engine", 4, SLO, 0, lambda scope: "/v1/chat", lambda waits, stream: waits)
    assert made.join(str(directory), 0) is None
    assert made.trace_start(4096) is None
    yield made
    made.trace_stop()
    made.leave()


@pytest.fixture
def path(core: _hot.Core, directory: Path) -> Path:
    return directory / core.trace_file


@pytest.fixture
def install() -> Iterator[Callable[..., tailwatch.Watch]]:
    yield tailwatch.install
    tailwatch.uninstall()


# ---- what is recorded ----


def test_a_request_is_recorded_from_its_opening_to_its_end(core: _hot.Core, path: Path) -> None:
    """Arrival, entry, first token, tokens with their gaps, end with outcome and tokens, with the times given."""
    base = _hot.now() - 10**9
    stream = core.stream("llama", "/v1/chat", base, "", "")
    stream.token(at=base + 1_000_000)
    stream.token(3, at=base + 3_000_000)
    stream.token(at=base + 4_000_000, choice=1)
    stream.close(at=base + 5_000_000)
    trace = read_trace(path)
    assert [event.kind for event in trace.events] == [THREAD, OPEN, FIRST, TOKEN, TOKEN, CLOSE]
    _, opened, first, token, other, closed = trace.events
    assert opened.value == opened.time_ns == base
    assert (first.time_ns, first.c, first.value) == (base + 1_000_000, 1, base)
    assert (token.time_ns, token.c, token.value) == (base + 3_000_000, 3, 2_000_000)
    assert (other.time_ns, other.a, other.c, other.value) == (base + 4_000_000, 1, 1, 1_000_000)
    assert (closed.time_ns, closed.c, closed.value) == (base + 5_000_000, 5, base)
    assert {event.id for event in trace.events[1:]} == {1}
    assert first.b == closed.b == 1  # its label set
    assert (trace.pid, trace.tids[0], trace.lost) == (os.getpid(), threading.get_native_id(), [0] * 9)


def test_a_request_keeps_its_number_when_recording_begins_anew(core: _hot.Core, directory: Path) -> None:
    """No other one has it: in the second file, and as passed to an NVTX tool, a request is the n-th of its process."""
    old = core.stream("m", "r", None, "", "")
    core.trace_stop()
    core.stream("m", "r", None, "", "")  # recorded nowhere
    assert core.trace_start(1000) is None
    new = core.stream("m", "r", None, "", "")
    for stream in (old, new):
        stream.token()
    trace = read_trace(directory / core.trace_file)
    assert [event.id for event in trace.of(OPEN, FIRST)] == [3, 1, 3]


def test_all_ways_to_end(core: _hot.Core, path: Path) -> None:
    """Each end is recorded once, with its reason."""
    for end in ("close", "fail", "timeout", "abort"):
        stream = core.stream("m", "r", None, "", "")
        getattr(stream, end)()
        getattr(stream, end)()
    del stream
    reasons = [event.a for event in read_trace(path).of(CLOSE)]
    assert reasons == [0, 2, 5, 8]


def test_a_collection_is_recorded_with_what_it_found(core: _hot.Core, path: Path) -> None:
    """Generation, start, end and objects; and that the token after it was delayed."""
    core.watch_gc(0, gc.callbacks, core.gc_last)
    gc.disable()
    before = list(gc.callbacks)
    heap: list[Any] = []
    for _ in range(300_000):
        heap.append([])
    try:
        gc.callbacks[:] = [core.gc_first, core.gc_last]
        stream = core.stream("m", "r", None, "", "")
        for _ in range(20):
            stream.token()
        for _ in range(1000):
            cycle: list[Any] = []
            cycle.append(cycle)
        del cycle
        start = _hot.now()
        gc.collect()
        stop = _hot.now()
        stream.token()
    finally:
        gc.callbacks[:] = before
        gc.enable()
    trace = read_trace(path)
    (pause,) = trace.of(PAUSE)
    assert start <= pause.id < pause.time_ns <= stop
    assert (pause.a, pause.b) == (2, 0)
    assert pause.value >= 1000
    (delay,) = trace.of(DELAY)
    assert delay.time_ns == trace.of(TOKEN)[-1].time_ns
    assert delay.id == trace.of(TOKEN)[-1].id
    assert 0 < delay.value <= trace.of(TOKEN)[-1].value
    assert delay.c == pytest.approx((pause.time_ns - pause.id) / 1000, rel=0.2)


def test_a_pass_of_ours_holds_its_collections(core: _hot.Core, path: Path) -> None:
    """A policy's pass is one pause, and the collections inside are marked as inner ones."""
    core.watch_gc(0, gc.callbacks, core.gc_last)
    before = list(gc.callbacks)
    try:
        gc.callbacks[:] = [core.gc_first, core.gc_last]
        core.policy_begin()
        gc.collect()
        core.policy_end()
    finally:
        gc.callbacks[:] = before
    inner, outer = read_trace(path).of(PAUSE)[-2:]
    assert (inner.a, inner.b) == (2, 1)
    assert (outer.a, outer.b) == (5, 0)
    assert outer.id <= inner.id < inner.time_ns <= outer.time_ns


def test_steps_are_recorded(core: _hot.Core, path: Path) -> None:
    """Name, begin, end, batch and what waits; one that ran nothing is none."""
    with core.step("decode", 32, 5):
        pass
    with core.step("prefill", 1):
        pass
    with core.step("decode", 0, 0):
        pass
    decode, prefill = read_trace(path).of(STEP)
    assert (decode.a, decode.c, decode.value) == (0, 32, 5)
    assert (prefill.a, prefill.c, prefill.value) == (1, 1, 2**64 - 1)
    assert decode.id <= decode.time_ns <= prefill.id


def test_a_stream_that_moves_between_threads(core: _hot.Core, path: Path) -> None:
    """Each thread writes to its own ring; the ninth and later ones share one; nothing is lost between them."""
    stream = core.stream("m", "r", None, "", "")
    stream.token()
    gates = [threading.Event() for _ in range(12)]
    over = threading.Event()

    def stamp(i: int) -> None:
        for _ in range(10):
            stream.token()
        gates[i].set()
        over.wait(DEADLINE_SECONDS)

    threads = [threading.Thread(target=stamp, args=[i]) for i in range(len(gates))]
    for thread, gate in zip(threads, gates, strict=True):
        thread.start()
        assert gate.wait(DEADLINE_SECONDS)
    trace = read_trace(path)
    tokens = trace.of(TOKEN)
    assert len(tokens) == 120
    assert [sum(event.ring == ring for event in tokens) for ring in range(9)] == [0, *[10] * 7, 50]
    assert trace.tids[1:8] == [thread.native_id for thread in threads[:7]]
    in_time = sorted(tokens, key=lambda event: event.time_ns)
    assert sum(event.value for event in in_time) == in_time[-1].time_ns - trace.of(FIRST)[0].time_ns
    over.set()
    for thread in threads:
        thread.join()  # Python's part of it; the kernel's ends a little later
        until(lambda task=Path(f"/proc/self/task/{thread.native_id}"): not task.exists())
    core.trace_turn(True)  # rings of threads that have ended are free
    late = threading.Thread(target=stream.token)
    late.start()
    late.join()
    events = read_trace(path).events
    assert [(e.ring, e.kind) for e in events if e.ring == 1][-2:] == [(1, THREAD), (1, TOKEN)]


def test_a_ring_that_wrapped_counts_what_it_lost(core: _hot.Core, path: Path) -> None:
    """The newest stay, and the rest is counted, exactly."""
    stream = core.stream("m", "r", None, "", "")
    for _ in range(5000):
        stream.token()
    trace = read_trace(path)
    assert len(trace.of(TOKEN)) == 2047
    assert trace.lost[0] == 5002 - 2047
    file = ring_files.look_into(str(path))
    assert file is not None
    assert (file.events, file.lost, file.over, file.process) == (2047, 5002 - 2047, False, "engine-0")


def test_counters_are_sampled_when_they_change(core: _hot.Core, path: Path) -> None:
    """Streams in flight and what pauses cost, by the daemon's turns."""
    for _ in range(3):
        core.trace_turn(False)
    stream = core.stream("m", "r", None, "", "")
    core.trace_turn(False)
    stream.close()
    core.trace_turn(True)
    samples = read_trace(path).of(COUNTER)
    assert {event.ring for event in samples} == {SHARED}
    assert [event.value for event in samples if event.a == 0] == [0, 1, 0]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector's books are known up to CPython 3.13")
def test_the_unfrozen_heap_is_sampled(core: _hot.Core, path: Path) -> None:
    """What the collector would look at, once it is watched."""
    core.trace_turn(False)
    core.watch_gc(0, gc.callbacks, core.gc_last)
    kept = [[number] for number in range(30_000)]
    gc.collect()
    core.trace_turn(False)
    samples = [event.value for event in read_trace(path).of(COUNTER) if event.a == 2]
    assert len(samples) == 1 and samples[0] == pytest.approx(len(gc.get_objects()), abs=5_000)
    assert len(kept) == 30_000


# ---- life and death ----

MEMBER = """
import gc, json, os, sys, threading, time
import tailwatch
gc.disable()
options = {"trace_events": int(sys.argv[3]), "trace_keep": "1000,10GB"}
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="observe", **options)
while not watch.core.tracing:  # others were joining: it does so a little later
    time.sleep(0.01)
stream = watch.core.stream("m", "/r", None, "", "")
for _ in range(10):
    stream.token()
gc.collect()
print(json.dumps(watch.core.trace_file), flush=True)
while sys.argv[4] == "busy":
    for _ in range(1000):
        stream.token()
sys.stdin.read()
"""


class Member(Python):
    """Another process that records, and the name of its file."""

    def __init__(self, directory: Path, role: str, events: int = 4096, busy: str = "") -> None:
        super().__init__(MEMBER, directory, role, events, busy)
        self.file: str = self.read()


@pytest.mark.parametrize("round_", range(3))
def test_a_process_killed_mid_write_leaves_a_whole_trace(directory: Path, round_: int) -> None:
    """kill -9 in the middle of stamping: every event is whole, and the numbers add up."""
    with Member(directory, "engine", busy="busy") as member:
        path = directory / member.file
        until(lambda: (found := ring_files.look_into(str(path))) and found.lost > 3000 * (round_ + 1))
    trace = read_trace(path)
    tokens = trace.of(TOKEN)
    assert len(tokens) == 2047
    for before, after in pairwise(tokens):
        assert after.value == after.time_ns - before.time_ns
        assert (after.id, after.c, after.a) == (1, 1, 0)
    file = ring_files.look_into(str(path))
    assert file is not None
    assert file.over


def test_a_dead_group_is_still_read(directory: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """The segment of a dead process is folded away; its trace stays, and is readable on its own."""
    with Member(directory, "engine") as dead:
        pass
    watch = install(dir=directory, gc="observe", role="api")
    until(lambda: [watch.membership.renew(), not list(directory.glob(f"{dead.pid}-*.seg"))][1])
    (file,) = ring_files.files_of(str(directory))
    assert (file.process, file.pid, file.over) == ("engine-0", dead.pid, True)
    trace = read_trace(directory / dead.file)
    assert [len(trace.of(kind)) for kind in (OPEN, FIRST, TOKEN, PAUSE)] == [1, 1, 9, 1]


def test_uninstall_leaves_no_file(directory: Path) -> None:
    """A trace goes with its process's own uninstall()."""
    watch = tailwatch.install(dir=directory, gc="off", trace_events=1000)
    assert list(directory.glob("*.trace"))
    assert tailwatch.uninstall() == []
    assert not list(directory.glob("*.trace"))
    assert not watch.core.tracing
    with pytest.raises(TailwatchError, match="trace: recording could not begin"):
        watch.trace("t.pftrace")


def test_a_directory_of_its_own(install: Callable[..., tailwatch.Watch]) -> None:
    """With trace and no dir the group has a directory under /dev/shm, which goes with uninstall()."""
    watch = install(gc="off", trace_events=1000)
    made = Path(watch.config.dir)
    assert (made.parent, made.name.startswith(temp_dirs.PREFIX)) == (Path(temp_dirs.IN_MEMORY), True)
    assert [file.pid for file in ring_files.files_of(str(made))] == [os.getpid()]
    assert os.environ["TAILWATCH_DIR"] == str(made)
    assert install(gc="off", trace_events=1000) is watch
    assert tailwatch.uninstall() == []
    assert not made.exists()
    assert "TAILWATCH_DIR" not in os.environ


def test_streams_that_outlive_it_record_nothing(directory: Path) -> None:
    """A stream that is open at uninstall() goes on, and what it stamps then is nowhere."""
    watch = tailwatch.install(dir=directory, gc="off", trace_events=1000)
    stream = watch.core.stream("m", "r", None, "", "")
    stream.token()
    tailwatch.uninstall()
    for _ in range(2000):
        stream.token()
    stream.close()
    again = tailwatch.install(dir=directory, gc="off", trace_events=1000)
    try:
        assert again.core is watch.core
        stream.token()
        assert read_trace(directory / again.core.trace_file).of(TOKEN, CLOSE) == []
    finally:
        tailwatch.uninstall()


def test_nothing_is_recorded_without_the_option(install: Callable[..., tailwatch.Watch]) -> None:
    """Off, it takes nothing, and asking for a trace raises with how to switch it on."""
    watch = install(gc="off")
    assert (watch.config.dir, watch.core.tracing, watch.core.trace_memory) == ("", False, (0, 0))
    with pytest.raises(TailwatchError, match="trace_events=1_000_000"):
        tailwatch.trace("t.pftrace")


def test_without_a_group_it_is_in_memory(tmp_path: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """Where the group cannot be joined the process records for itself alone."""
    place = tmp_path / "open"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    watch = install(dir=place, gc="off", trace_events=1000)
    assert (watch.core.joined, watch.core.tracing, watch.core.trace_file) == (False, True, "")
    address, size = watch.core.trace_memory
    assert address
    assert size == ring_files.bytes_of(1000, 32) == watch.tracing.bytes
    tailwatch.uninstall()
    assert watch.core.trace_memory == (0, 0)


def test_a_fork_child_has_a_file_of_its_own(directory: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """It writes nothing to its parent's, records what it does itself, and removes its own only."""
    watch = install(dir=directory, gc="off", trace_events=1000, role="engine")
    stream = watch.core.stream("m", "r", None, "", "")
    stream.token()
    parents = directory / watch.core.trace_file
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            stream.token()  # of the parent: of none here
            watch.membership.renew()
            watch.tracing.settle()
            with tailwatch.stream(model="child") as mine:
                mine.token()
                mine.token()
            seen = read_trace(directory / watch.core.trace_file)
            kinds = [event.kind for event in seen.events if event.kind != COUNTER]
            os.write(writes, json.dumps([watch.core.trace_file, kinds, seen.pid]).encode())
            tailwatch.uninstall()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    name, kinds, printed = json.loads(os.read(reads, 4096))
    os.close(reads)
    os.close(writes)
    assert kinds == [THREAD, OPEN, FIRST, TOKEN, CLOSE]
    assert (printed, name.startswith(f"{pid}-")) == (pid, True)
    assert not (directory / name).exists()
    assert len(read_trace(parents).of(TOKEN, FIRST)) == 1
    stream.token()
    assert len(read_trace(parents).of(TOKEN, FIRST)) == 2


def test_a_group_that_was_removed(directory: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """Without the directory the trace is gone too; the process records anew in the next one."""
    watch = install(dir=directory, gc="off", trace_events=1000)
    for entry in directory.iterdir():
        entry.unlink()
    directory.rmdir()
    watch.membership.renew()
    watch.membership.renew()
    assert watch.core.joined
    assert not watch.core.tracing
    watch.tracing.settle()
    assert watch.core.tracing
    with tailwatch.stream(model="m") as stream:
        stream.token()
    assert len(read_trace(directory / watch.core.trace_file).of(FIRST)) == 1


@pytest.mark.parametrize("processes", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_many_processes(directory: Path, processes: int) -> None:
    """Each has its file; those of the dead stay until there are more than are to be kept."""
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Member(directory, "engine" if i % 2 else "api", 1000)) for i in range(processes)]
        until(lambda: len({file.process for file in ring_files.files_of(str(directory))}) == processes)
        files = ring_files.files_of(str(directory))
        assert {file.pid for file in files} == {member.pid for member in members}
        assert min(file.events for file in files) >= 13
        for member in members[:10]:
            member.kill()
        watch = tailwatch.install(dir=directory, gc="off", trace_events=1000, trace_keep="3,100MB")
        stack.callback(tailwatch.uninstall)
        assert sum(file.over for file in ring_files.files_of(str(directory))) == 10
        watch.tracing.tidy()
        found = ring_files.files_of(str(directory))
        assert sum(file.over for file in found) == 3
        assert sum(not file.over for file in found) == processes - 10 + 1


def test_bytes_are_bounded_too(directory: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """Of the dead the newest stay that fit."""
    for _ in range(3):
        Member(directory, "engine", 1000).kill()
    size = ring_files.bytes_of(1000, 32)
    watch = install(dir=directory, gc="off", trace_events=1000, trace_keep=f"5,{2 * size + 1}")
    newest = [file.pid for file in ring_files.files_of(str(directory)) if file.over][1:]
    watch.tracing.tidy()
    assert [file.pid for file in ring_files.files_of(str(directory)) if file.over] == newest


# ---- room ----

FULL = """
import json
import tailwatch
from tailwatch.tracing import ring_files
events, room = int(os.environ["EVENTS"]), free()
watch = tailwatch.install(dir=directory, gc="off", trace_events=events)
answers = {"joined": watch.membership.joined, "notes": watch.notes, "has": watch.tracing.events, "room": room}
answers["tracing"], answers["left"] = watch.core.tracing, free()
answers["details"] = [finding.detail for finding in tailwatch.doctor()]
answers["memory"] = watch.memory_bytes - watch.core.reserved - watch.history.bytes
answers["line"] = str(watch.tracing)
if answers["joined"]:
    filler = os.open(place + "/filler", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(filler, 0, free())
with tailwatch.stream(model="m") as stream:
    for _ in range(200_000):
        stream.token()
answers["tokens"] = tailwatch.snapshot().tokens
answers["files"] = [file.events for file in ring_files.files_of(directory)] if answers["joined"] else []
tailwatch.uninstall()
print(json.dumps(answers))
"""


def test_as_many_events_as_there_is_room_for(tmp_path: Path) -> None:
    """On 4 MB a million of them (30.5 MiB) begin with fewer, that is reported, and what is there is written to however
    full it gets."""
    found = on_tmpfs(4, tmp_path, FULL, EVENTS="1000000")
    assert found["joined"] and found["tracing"]
    assert 256 <= found["has"] < 1_000_000 and found["memory"] == ring_files.bytes_of(found["has"], 32)
    assert found["left"] >= found["room"] // 4
    (note,) = found["notes"]
    assert note.startswith(f"trace_events=1000000: there is room for {found['has']} events: 30.8 MiB do not fit into ")
    assert any(note in detail for detail in found["details"])
    assert found["line"].startswith(f"trace: {found['has']} events, ")
    assert found["tokens"] == 200_000 and 0 < found["files"][0] <= found["has"]


def test_no_room_for_the_smallest_trace(tmp_path: Path) -> None:
    """The group has the segment all the same: its memory is not in that file system."""
    found = on_tmpfs(1, tmp_path, FULL, EVENTS="100000")
    assert found["joined"] and not found["tracing"]
    assert found["tokens"] == 200_000


def test_what_fits_is_taken_whole(tmp_path: Path) -> None:
    """64 MB have room for a million, and four millions (122 MiB) become one."""
    assert on_64_mb(tmp_path, FULL, EVENTS="1000000")["has"] == 1_000_000
    assert on_tmpfs(65, tmp_path / "other", FULL, EVENTS="4000000")["has"] == 1_000_000


SIX = """
import json, signal
import tailwatch
found, children = [], []
for number in range(6):
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        watch = tailwatch.install(dir=directory, gc="off", role="worker", trace_events=1_000_000)
        os.write(theirs, json.dumps([watch.membership.joined, watch.tracing.events]).encode())
        signal.pause()
    os.close(theirs)
    children.append(child)
    found.append(json.loads(os.read(ours, 100)))
for child in children:
    os.kill(child, signal.SIGKILL)
print(json.dumps({"found": found}))
"""


def test_a_trace_leaves_room_for_the_next_process(tmp_path: Path) -> None:
    """Six processes with a million events each share 64 MB: all join, and each records something."""
    found = on_64_mb(tmp_path, SIX)["found"]
    assert [joined for joined, _ in found] == [True] * 6
    events = [number for _, number in found]
    assert events[0] == 1_000_000 and events == sorted(events, reverse=True) and events[-1] >= 256


class Refusing:
    """A core for whose trace there is room for so many events."""

    joined, tracing, trace_memory = True, False, (0, 0)

    def __init__(self, room: int) -> None:
        self.room, self.asked = room, list[int]()

    def trace_start(self, events: int) -> str | None:
        self.asked.append(events)
        return None if events <= self.room else "it has no room"


@pytest.mark.parametrize("room, had", [(600, 500), (255, 0), (10**9, 1000)])
def test_half_of_it_again_and_again(tmp_path: Path, room: int, had: int) -> None:
    """Down to 256 events, or none: a server starts with fewer, or without, and one sentence reports it."""
    from tailwatch.options.config import Config
    from tailwatch.tracing.recorder import Tracing

    class GroupMember:
        joined, alone, directory = True, False, str(tmp_path)

    printed: list[str] = []
    core = Refusing(room)
    tracing = Tracing(core, GroupMember(), Config.read({"trace_events": 1000}, {}), printed.append)  # type: ignore[arg-type]
    tracing.start()
    assert (tracing.events, tracing.bytes) == (had, ring_files.bytes_of(had, 32))
    if had == 1000:
        assert printed == [] and core.asked == [1000]
        return
    (line,) = printed
    assert line.startswith("trace_events=1000: " + ("there is room for 500 events" if had else "nothing is recorded"))
    assert f" {tmp_path}: " in line and "0.3 MiB" in line and "no room" in line
    assert str(tracing).startswith("trace: 500 events" if had else "trace: no room for any of 1000 events")


# ---- hostile files ----


def test_what_is_no_trace_is_passed_over(core: _hot.Core, path: Path, directory: Path, tmp_path: Path) -> None:
    """Cut, foreign, renamed, linked or readable by others: none of these is taken for a process's trace."""
    address, size = core.trace_memory
    whole = ctypes.string_at(address, size)
    names = [f"{pid}-5-6.trace" for pid in range(100, 109)]
    contents = [b"", b"x", whole[:4096], whole[:-4096], whole + bytes(4096), whole, bytes(len(whole)), whole, whole]
    for name, content in zip(names, contents, strict=True):
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o600)
    (directory / names[7]).chmod(0o644)
    (directory / names[8]).unlink()
    (directory / names[8]).symlink_to(path)
    (directory / "200-5-6.trace").mkdir()
    os.mkfifo(directory / "201-5-6.trace", 0o600)
    assert [file.path for file in ring_files.files_of(str(directory))] == [str(path)]


def test_a_directory_that_must_not_be_read(tmp_path: Path) -> None:
    """It has the reason; so has one without a trace, and what to do."""
    with pytest.raises(TailwatchError, match="No such file"):
        ring_files.files_of(str(tmp_path / "nowhere"))
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(TailwatchError, match="others may write to it"):
        ring_files.files_of(str(place))
    place.chmod(0o700)
    with pytest.raises(TailwatchError, match="no process has left"):
        ring_files.write_group(str(place), "t.pftrace")


def test_traces_are_kept(directory: Path) -> None:
    """A living process with a trace keeps the directory; the dead with theirs do not, and what was kept is known."""
    with Member(directory, "engine"):
        os.chmod(directory, 0o700)
        for entry in directory.glob("*.seg"):
            entry.unlink()
        (directory / "trace-20260102T030405-12-1.pftrace").write_bytes(b"")
        (directory / ".tailwatch-abc.tmp").write_bytes(b"")
        assert not temp_dirs._is_left(str(directory), young=True)
    assert temp_dirs._is_left(str(directory), young=True)
    (directory / "mine.txt").write_bytes(b"")
    assert not temp_dirs._is_left(str(directory), young=True)


def test_the_last_dead_group_with_traces_stays_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for what killed a server has started it again by then: remove_dead() leaves the newest of them."""
    monkeypatch.setattr(temp_dirs, "IN_MEMORY", str(tmp_path))
    for i in range(3):
        place = tmp_path / f"tailwatch-run-{i:08x}"
        Member(place, "engine", 1000).kill()
        os.utime(place, (time.time() - 60 + i, time.time() - 60 + i))
    bare = tmp_path / "tailwatch-run-0000000a"
    Member(bare, "engine", 1000).kill()
    for entry in bare.glob("*.trace"):
        entry.unlink()
    temp_dirs.remove_dead()
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith("tailwatch-run-")) == [
        "tailwatch-run-00000002"
    ]
    os.utime(place, (time.time() - 4000, time.time() - 4000))
    temp_dirs.remove_dead()
    assert not place.exists()


# ---- what is kept around a trigger ----


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What would have been written: path, since, until. A file stands there then."""
    calls: list[tuple[str, int, int]] = []

    def write(to: str, where: Any, form: str, *, since_ns: int, until_ns: int, merge: Any) -> None:
        calls.append((to, since_ns, until_ns))
        Path(to).write_bytes(bytes(1000))

    monkeypatch.setattr(ring_files, "write", write)
    return calls


@pytest.mark.parametrize(
    ("option", "act"),
    [
        ("gap>100ms", lambda s, t: (s.token(at=t), s.token(at=t + 101_000_000))),
        ("ttft>1s", lambda s, t: s.token(at=t + 1_000_000_001)),
        ("slo", lambda s, t: s.fail(at=t)),
    ],
)
def test_the_seconds_around_a_trigger_are_kept(
    directory: Path, install: Callable[..., tailwatch.Watch], written: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch, option: str, act: Callable[[Any, int], Any],
) -> None:  # fmt: skip
    """One file, three seconds later, from ten seconds before to then; what comes soon after it is counted."""
    watch = install(dir=directory, gc="off", trace_events=1000, trace_on=option, slo="ttft<=10m")
    watch._daemon.stop()
    begin = now = _hot.now()

    class Clock:
        now = staticmethod(lambda: now)

    monkeypatch.setattr("tailwatch.tracing.recorder._hot", Clock)
    watch.tracing.look()
    quiet = watch.core.stream("m", "r", now, "", "")
    quiet.token(at=now + 50_000_000)
    quiet.token(at=now + 90_000_000)
    watch.tracing.look()
    act(watch.core.stream("m", "r", now, "", ""), now)
    watch.tracing.look()
    assert written == []
    act(watch.core.stream("m", "r", now, "", ""), now)  # in the same file
    now += 5 * 10**9
    watch.tracing.look()
    ((path, since, until),) = written
    assert Path(path).parent == directory
    assert since <= max(begin - 8 * 10**9, 0)
    assert begin + 3 * 10**9 <= until < begin + 5 * 10**9
    assert tailwatch.snapshot().drops["trace_trigger"] == 0
    act(watch.core.stream("m", "r", now, "", ""), now)
    watch.tracing.look()
    now += 10**10
    watch.tracing.look()
    assert len(written) == 1
    assert tailwatch.snapshot().drops["trace_trigger"] == 1
    now += 30 * 10**9
    act(watch.core.stream("m", "r", now, "", ""), now)
    watch.tracing.look()
    now += 5 * 10**9
    watch.tracing.look()
    assert len(written) == 2


def test_what_is_kept_is_bounded(
    directory: Path, install: Callable[..., tailwatch.Watch], written: list[tuple[str, int, int]]
) -> None:
    """More files than trace_keep take the oldest with them."""
    watch = install(dir=directory, gc="off", trace_events=1000, trace_on="slo", trace_keep="2,1MB")
    watch._daemon.stop()
    for i in range(4):
        watch.tracing._keep_around(10**12)
        newest = max(directory.glob("*.pftrace"), key=lambda path: path.name)
        os.utime(newest, (1000 + i, 1000 + i))
    assert len(written) == 4
    assert len(list(directory.glob("*.pftrace"))) == 2
    assert ring_files.files_of(str(directory))  # one's own is not theirs


def test_one_that_trace_keep_has_no_room_for(directory: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """It is counted and reported, and takes none of those with it that there is room for."""
    watch = install(dir=directory, gc="off", trace_events=1000, trace_on="slo", trace_keep="5,100")
    watch._daemon.stop()
    (small := directory / "trace-20250101T000000-1-1.pftrace").write_bytes(bytes(60))
    (older := directory / "trace-20240101T000000-1-1.pftrace").write_bytes(bytes(10))
    os.utime(small, (2000, 2000))
    os.utime(older, (1000, 1000))
    watch.tracing._keep_around(10**12)
    assert sorted(directory.glob("*.pftrace")) == [older, small]
    assert tailwatch.snapshot().drops["trace_trigger"] == 1
    assert any("trace_keep=5,100 has no room" in note for note in watch.notes)
    assert "removed at once" in str(watch.tracing)


def test_a_file_that_cannot_be_kept_is_counted(
    directory: Path, install: Callable[..., tailwatch.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is reported, always it is counted, and nothing is raised."""

    def write(to: str, *args: Any, **kwargs: Any) -> None:
        raise TailwatchError(f"{to}: No space left on device")

    monkeypatch.setattr(ring_files, "write", write)
    watch = install(dir=directory, gc="off", trace_events=1000, trace_on="slo")
    watch._daemon.stop()
    watch.tracing._keep_around(10**12)
    watch.tracing._keep_around(10**12)
    assert tailwatch.snapshot().drops["trace_trigger"] == 2
    assert sum("were not kept" in note for note in watch.notes) == 1


def test_a_gap_is_kept_by_the_daemon(
    directory: Path, install: Callable[..., tailwatch.Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a call: the file is there a little later, whole, with the gap in it."""
    monkeypatch.setattr("tailwatch.tracing.recorder.AFTER_NS", 10**8)
    watch = install(dir=directory, gc="off", trace_events=1000, trace_on="gap>50ms", role="engine")
    until(lambda: watch.tracing._looks and watch.tracing._looks._begun)
    stream = watch.core.stream("m", "r", None, "", "")
    start = _hot.now()
    for at in (0, 1_000_000, 61_000_000):
        stream.token(at=start + at)
    (kept,) = until(lambda: list(directory.glob("trace-*.pftrace")))
    assert kept.stat().st_size > 200
    assert not list(directory.glob(".*"))
    assert watch.notes == []
    tailwatch.uninstall()
    assert kept.exists()  # it was asked for


def test_dumps_while_it_is_recorded(directory: Path, tmp_path: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """A thread stamps as fast as it can: each dump is valid, and has how much it could not have."""
    watch = install(dir=directory, gc="off", trace_events=4096)
    over = threading.Event()

    def stamp() -> None:
        stream = watch.core.stream("m", "r", None, "", "")
        while not over.is_set():
            for _ in range(1000):
                stream.token()

    thread = threading.Thread(target=stamp)
    thread.start()
    try:
        lost = 10_000
        for _ in range(5):
            until(lambda: ring_files.files_of(str(directory))[0].lost > lost)  # noqa: B023
            written = tailwatch.trace(tmp_path / "t.json", format="json")
            assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
            assert written.events <= 2047 + 64
            assert written.lost > lost
            assert written.unreadable == 0
            lost = written.lost
    finally:
        over.set()
        thread.join()


def test_install_reports_what_there_is_room_for(
    directory: Path, install: Callable[..., tailwatch.Watch], caplog: pytest.LogCaptureFixture
) -> None:
    """Events and bytes of each ring, and where they stand."""
    install(dir=directory, gc="off", trace_events=1_000_000)
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("trace: ")]
    assert line.startswith(f"trace: 1000000 events, 30.8 MiB in {directory}: 500000 (15.3 MiB) ")
    assert re.search(r" 62500 \(1\.91 MiB\) .*\b7 more", line)
    assert tailwatch.current().memory_bytes > 30 << 20


# ---- the command line ----


def test_the_command_prints_what_it_wrote(
    core: _hot.Core, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events of each process, and what was lost; in the format and file that were named."""
    stream = core.stream("m", "r", None, "", "")
    for _ in range(3000):
        stream.token()
    out = tmp_path / "x.json"
    assert main(["trace", "--dir", str(directory), "-o", str(out), "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{out}: 2047 events (") and "2047 tokens of 1 requests" in printed
    assert f"engine-0 (pid {os.getpid()}): 2047 events; 955 older" in printed
    assert json.loads(out.read_text())["traceEvents"]
    assert main(["trace", "--dir", str(directory), "-o", str(tmp_path / "nowhere" / "x")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_trace_of_what_is_running(directory: Path, tmp_path: Path, install: Callable[..., tailwatch.Watch]) -> None:
    """tailwatch.trace() has all processes of the group, and of one without a group by itself."""
    with Member(directory, "engine"):
        install(dir=directory, gc="off", trace_events=1000)
        with tailwatch.stream(model="m") as stream:
            stream.token()
        written = tailwatch.trace(tmp_path / "t.pftrace")
    assert (written.requests, written.tokens, written.unfinished, written.lost) == (2, 11, 1, 0)
    tailwatch.uninstall()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    install(dir=tmp_path / "open", gc="off", trace_events=1000)
    with tailwatch.stream(model="m") as stream:
        stream.token()
    assert tailwatch.trace(tmp_path / "t.json", format="json").tokens == 1
    with pytest.raises(TailwatchError, match="expected one of perfetto, json"):
        tailwatch.trace(tmp_path / "t.json", format="xml")


def test_the_command_without_a_trace(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence with what to do, and status 2."""
    directory.mkdir(mode=0o700)
    assert main(["trace", "--dir", str(directory)]) == 2
    assert "TAILWATCH_TRACE_EVENTS=1000000" in capsys.readouterr().err


def test_a_run_that_was_killed_leaves_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tailwatch run` removes what its group left, but not what was recorded; `tailwatch trace` finds it."""
    monkeypatch.delenv("TAILWATCH_DIR", raising=False)
    script = (
        "import os, tailwatch\n"
        "watch = tailwatch.install(role='engine', gc='off')\n"
        "with tailwatch.stream(model='m') as stream: stream.token()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = ["run", "--trace-events=1000", "--", sys.executable, "-c", script]
    done = subprocess.run([sys.executable, "-m", "tailwatch", *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + 9
    directory = Path(done.stderr.split("tailwatch trace --dir ")[1].split()[0])
    try:
        assert main(["trace", "--dir", str(directory), "-o", str(tmp_path / "t.pftrace")]) == 0
        printed = capsys.readouterr().out
        assert "1 tokens of 1 requests" in printed
        assert ", exited): 4 events" in printed
    finally:
        for entry in directory.iterdir():
            entry.unlink()
        directory.rmdir()


def test_of_several_groups_the_one_with_traces_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no group is given, one that recorded nothing is not asked for a trace."""
    for name in ("tailwatch-run-aaaaaaaa", "tailwatch-run-bbbbbbbb", "tailwatch-run-cccccccc"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "tailwatch-run-bbbbbbbb" / "1-2-3.trace").touch()
    assert find_group.find({}, str(tmp_path), having=temp_dirs.has_traces) == str(tmp_path / "tailwatch-run-bbbbbbbb")
    with pytest.raises(TailwatchError, match="several process groups"):
        find_group.find({}, str(tmp_path))


def test_a_signal_is_no_different(directory: Path) -> None:
    """SIGTERM without a handler ends a process as kill -9 does: the trace stays."""
    with Member(directory, "engine") as member:
        member.signal(signal.SIGTERM)
        member.finish()
        assert (directory / member.file).exists()
