"""Containers that share /dev/shm, or a group's directory, have PID namespaces of their own: no pid of one means
anything in another. Made with unshare(1), which needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tailwatch
from tailwatch import snapshots
from tailwatch._cold import ffi
from tailwatch.cli import find_group
from tailwatch.group import temp_dirs

from ..support.process import Process, clean_environment
from ..support.waiting import until

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True) if shutil.which("unshare") else None

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        _tried is None or _tried.returncode != 0,
        reason=f"no PID namespace can be made here: {_tried.stderr.strip() if _tried else 'unshare is not installed'}",
    ),
]

# The first process of a namespace starts the member, and may go on after it.
FIRST = """
import subprocess, sys
member = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
member.wait()
print('"the member has ended"', flush=True)
sys.stdin.read()
"""
MEMBER = """
import gc, json, os, sys
import tailwatch
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="freeze")
gc.disable()
print(json.dumps([watch.membership.joined, os.getpid()]), flush=True)
while line := sys.stdin.readline().strip():
    if line == "stream":
        with tailwatch.stream(model="m") as stream:
            stream.token()
    elif line == "close":
        os.closerange(3, 1 << 16)
    elif line == "fork":
        child = os.fork()
        while child == 0:
            os.read(0, 0)
            __import__("time").sleep(60)
    elif line == "kill":
        os.kill(os.getpid(), 9)
    elif line == "exec":
        print(json.dumps("another program"), flush=True)
        os.execvp("sleep", ["sleep", "1000"])
    watch.membership.renew()
    found = watch.snapshot()
    living = [process.name for process in found.processes if process.lives]
    print(json.dumps([found.opened, watch.membership.directory, living]), flush=True)
"""


class Container(Process):
    """A member of a group, in a PID namespace of its own."""

    def __init__(self, directory: Path, role: str = "engine") -> None:
        super().__init__(*UNSHARE, sys.executable, "-c", FIRST, MEMBER, directory, role, env=clean_environment())
        joined, self.inner = self.read()
        assert joined


def beside(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """A command in another PID namespace than this one, as in a sidecar. To its end."""
    return subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tailwatch", *map(str, command)],
        env=clean_environment(COLUMNS="200"), capture_output=True, text=True, timeout=50,
    )  # fmt: skip


@pytest.fixture
def shared() -> Iterator[Path]:
    """Of a group that was not named, in the memory of all containers."""
    path = Path(temp_dirs.IN_MEMORY) / f"{temp_dirs.PREFIX}{secrets.token_hex(4)}"
    yield path
    temp_dirs.discard(str(path))


@pytest.fixture
def start(shared: Path) -> Iterator[Callable[..., Container]]:
    """start(role): a member in a container of its own."""
    started: list[Container] = []

    def begin(role: str = "engine") -> Container:
        started.append(Container(shared, role))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


def living(directory: Path) -> list[str]:
    """The processes that live, as seen from this namespace."""
    return sorted(process.name for process in snapshots.take_directory(str(directory)).processes if process.lives)


def test_run_in_one_container_leaves_the_group_of_another(shared: Path, start: Callable[..., Container]) -> None:
    """`tailwatch run -- true` removed it, and counters went from 24 to 20."""
    api, engine = start("api"), start("engine")
    for _ in range(3):
        api.ask("stream")
    engine.ask("stream")
    until(lambda: api.ask("look")[0] == 4, "all are counted")
    os.utime(shared, (1, 1))  # no process has joined for long
    assert beside("run", "--", "true").returncode == 0
    assert (
        subprocess.run([sys.executable, "-m", "tailwatch", "run", "--", "true"], env=clean_environment()).returncode
        == 0
    )
    temp_dirs.remove_dead()
    assert shared.exists()
    assert api.ask("look") == [4, str(shared), ["api-0", "engine-0"]]


def test_a_directory_of_the_dead_of_another_namespace_is_not_removed(
    shared: Path, start: Callable[..., Container]
) -> None:
    """What is about to join it is not seen from here."""
    start().kill()
    until(lambda: living(shared) == [], "it has ended")
    os.utime(shared, (1, 1))
    temp_dirs.remove_dead()
    assert shared.exists()


def test_a_sidecar_sees_living_processes(shared: Path, start: Callable[..., Container]) -> None:
    """`gc`, `top` and `doctor` found no process while both lived."""
    api, engine = start("api"), start("engine")
    api.ask("stream")
    assert living(shared) == ["api-0", "engine-0"]
    status = beside("gc", "status", "--dir", shared)
    assert [line.partition(":")[0] for line in sorted(status.stdout.splitlines())] == [
        f"api-0 (pid {api.inner})",
        f"engine-0 (pid {engine.inner})",
    ]
    top = beside("top", "--once", "--dir", shared)
    assert top.returncode == 0 and "exited" not in top.stdout, top.stdout
    rows = [line for line in top.stdout.splitlines() if line.strip().startswith(("api-0", "engine-0"))]
    assert len(rows) == 2 and all("running" in row or "PAUSED for" in row for row in rows), top.stdout
    assert beside("doctor", "--dir", shared).returncode in (0, 1)
    engine.kill()
    assert until(lambda: living(shared) == ["api-0"], "the engine has ended")
    assert len(beside("gc", "status", "--dir", shared).stdout.splitlines()) == 1


def test_the_living_group_is_found(shared: Path, start: Callable[..., Container]) -> None:
    """Of several, the one in which a process lives, in whatever namespace."""
    start("api")
    assert find_group._living(str(shared)) == 1
    start("engine").kill()
    until(lambda: find_group._living(str(shared)) == 1, "the engine has ended")
    assert str(shared) in find_group._made(temp_dirs.IN_MEMORY)


def test_an_order_reaches_a_process_of_another_namespace(shared: Path, start: Callable[..., Container]) -> None:
    """Two containers with the same pids, as those of one image have: each process is asked once, and answers."""
    first, second = start("api"), start("engine")
    assert first.inner == second.inner
    until(lambda: len(list(shared.glob("*.gc"))) == 2, "both take orders")
    done = beside("gc", "freeze", "--dir", shared)
    assert (done.returncode, done.stdout.count("done in")) == (0, 2), done.stdout + done.stderr
    assert {line.partition(" ")[0] for line in done.stdout.splitlines()} == {"api-0", "engine-0"}


def test_the_dead_of_another_namespace_are_merged(shared: Path, start: Callable[..., Container]) -> None:
    """Their counters stay, their file goes, and their name is free for one that is started again."""
    api, engine = start("api"), start("engine")
    engine.ask("stream")
    until(lambda: api.ask("look")[0] == 1, "it is counted")
    engine.kill()
    until(
        lambda: api.ask("look") == [1, str(shared), ["api-0"]] and len(list(shared.glob("*.seg"))) == 1, "it is merged"
    )
    assert [path.name for path in shared.glob("*.gone")] == ["engine-0.gone"]
    start("engine")
    until(lambda: len(api.ask("look")[2]) == 2, "it is seen")
    assert api.ask("look")[0] == 1


@pytest.mark.parametrize("order", ["close", "fork"])
def test_what_does_not_end_a_process_does_not_end_its_lock(
    shared: Path, start: Callable[..., Container], order: str
) -> None:
    """A host that closes all descriptors, as daemons do, and one that forks."""
    member = start()
    member.ask(order)
    assert living(shared) == ["engine-0"]
    assert not temp_dirs._is_left(str(shared))
    if order == "fork":  # the child, which lives on, does not hold its parent's lock
        member.write("kill")
        assert member.read() == "the member has ended"
        found = snapshots.take_directory(str(shared)).processes  # the child may have joined
        assert [process.lives for process in found if process.pid == member.inner] == [False]


def test_another_program_has_ended_the_member(shared: Path, start: Callable[..., Container]) -> None:
    """exec() keeps the pid and the start time, and drops the lock."""
    member = start()
    assert member.ask("exec") == "another program"
    until(lambda: living(shared) == [], "the program is another")


def test_a_process_without_a_lock_may_live(shared: Path, start: Callable[..., Container]) -> None:
    """Where the kernel has no such locks, a process of another namespace is never called dead."""
    start().kill()
    until(lambda: living(shared) == [], "it has ended")
    (file,) = shared.glob("*.seg")
    snapshots.remove_shared(str(shared))  # the copy is what counts, as after a reboot or in another IPC namespace
    with file.open("r+b") as segment:
        segment.seek(ffi.offsetof("tw_header", "locked"))
        segment.write(bytes(8))
    assert living(shared) == ["engine-0"]
    temp_dirs.remove_dead()
    assert shared.exists()


def test_a_process_of_this_namespace_is_judged_by_its_pid(shared: Path) -> None:
    """A sidecar sees it; a process of its namespace may remove what it left."""
    with Process(sys.executable, "-c", MEMBER, shared, "engine", env=clean_environment()) as member:
        assert member.read()[0] is True
        assert living(shared) == ["engine-0"]
        assert beside("gc", "status", "--dir", shared).stdout.startswith("engine-0 (pid ")
    assert living(shared) == [] and temp_dirs._is_left(str(shared))


IPC = ("unshare", "--ipc")
LOOK = """
import sys
from tailwatch import snapshots
snap = snapshots.take_directory(sys.argv[1])
print(snap.opened, [process.lives for process in snap.processes], len(snap.labels))
"""


def test_another_ipc_namespace_reads_the_copies(shared: Path) -> None:
    """It shares the directory and not the memory; each process copies its numbers there, and mends what was damaged."""
    watch = tailwatch.install(dir=str(shared), role="api", gc="observe")

    def look() -> str:
        command = [*IPC, sys.executable, "-c", LOOK, str(shared)]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    for requests in (1, 2):
        with tailwatch.stream(model=f"m{requests}") as stream:
            stream.token()
        watch.core.save()
        assert look() == f"{requests} [True] {requests}"
        os.truncate(shared / watch.core.file, 0)
    watch.core.save()
    tailwatch.uninstall()  # what it left is merged, or its last copy
    assert look() == "2 [False] 2"
