"""``tailwatch gc``: a group's processes are asked, each answers, and one that dies meanwhile leaves nothing stuck."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailwatch import cli, snapshots
from tailwatch.errors import TailwatchError

from ..support.process import Python, Tailwatch
from ..support.waiting import until

pytestmark = pytest.mark.integration

# argv: the group's directory, the role, the policy, and whether a stream is always in flight, until a line comes in.
SERVER = """
import asyncio, json, sys, threading
import tailwatch

directory, role, policy, busy = sys.argv[1:5]
watch = tailwatch.install(role=role, dir=directory, gc=policy)
quiet = threading.Event()

class Node:
    def __init__(self):
        self.me = self

def listen():
    sys.stdin.readline()
    quiet.set()

async def serve():
    tailwatch.freeze()
    threading.Thread(target=listen, daemon=True).start()
    print("serves", flush=True)
    stream = tailwatch.stream(model="m").__enter__() if busy == "busy" else None
    while True:
        if stream is not None and quiet.is_set():
            stream.close()
            watch.coordinator.on_idle()
            stream = None
        with tailwatch.stream(model="m") as short:
            nodes = [Node() for _ in range(50)]
            short.token()
        await asyncio.sleep(0.005)

asyncio.run(serve())
"""


class Server(Python):
    """A process of the group."""

    def __init__(self, directory: Path, role: str = "api", policy: str = "idle", *, busy: bool = False) -> None:
        super().__init__(SERVER, directory, role, policy, "busy" if busy else "idle")
        assert self.read_line() == "serves"
        self.directory = directory

    @property
    def order_file(self) -> Path | None:
        """None: it has not made it yet."""
        return next(iter(self.directory.glob(f"{self.pid}-*.gc")), None)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "group"


@pytest.fixture
def start(directory: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that take orders already, and ends them."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments: str, **how: bool) -> Server:
            server = Server(directory, *arguments, **how)
            stack.enter_context(server)
            if "observe" in arguments:
                until(lambda: snapshots.take_directory(str(directory)).processes, "it joins the group")
            else:
                until(lambda: server.order_file, "its daemon makes the file")
            return server

        yield begin


@pytest.fixture
def command(directory: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command; its status and what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        status = cli.main(["gc", "--dir", str(directory), *arguments])
        return status, "".join(capsys.readouterr())

    return run


@contextlib.contextmanager
def asked(server: Server, *arguments: str) -> Iterator[Tailwatch]:
    """The command as a process of its own, once its order is written."""
    with Tailwatch("gc", "--dir", server.directory, *arguments) as asking:
        path = server.order_file
        assert path is not None
        until(lambda: path.stat().st_size, "the order is written")
        yield asking


def test_each_process_reports_its_result(start: Callable[..., Server], command: Callable[..., tuple[int, str]]) -> None:
    """Whatever its policy; a freeze and a collection are made where nothing waits, and reported with what they took."""
    servers = [start("api"), start("engine", "freeze")]
    for verb in ("freeze", "collect"):
        status, printed = command(verb)
        assert status == 0
        assert len(printed.splitlines()) == 2
        for server in servers:
            assert f"(pid {server.pid}): done in " in printed
    status, printed = command("status")
    assert status == 0
    assert "api-0" in printed and "gc=idle (slices)" in printed and "objects frozen" in printed
    assert "engine-0" in printed and "gc=freeze" in printed and "1 requested" in printed
    assert all(re.search(r"; \d+ not frozen(;|$)", line) for line in printed.splitlines()), printed


def test_only_those_of_a_role(start: Callable[..., Server], command: Callable[..., tuple[int, str]]) -> None:
    """And a role that no process has is a wrong call, which names those that there are."""
    start("api"), start("engine", "freeze")
    status, printed = command("freeze", "--role", "engine")
    assert status == 0 and "engine-0" in printed and "api-0" not in printed
    status, printed = command("freeze", "--role", "engin")
    assert status == 2 and "api, engine" in printed


def test_one_that_only_observes_is_left_alone(
    start: Callable[..., Server], command: Callable[..., tuple[int, str]], directory: Path
) -> None:
    """It stays exactly what the interpreter does: no file, nothing done, and the command reports that."""
    server = start("api", "observe")
    status, printed = command("collect", "--timeout", "5")
    assert status == 1 and "does not control the collector" in printed, printed
    assert server.order_file is None


def test_a_busy_server_is_not_stopped(start: Callable[..., Server], command: Callable[..., tuple[int, str]]) -> None:
    """A freeze is not made while a stream is in flight; a collection is, in slices; afterwards the freeze is made."""
    server = start("api", busy=True)
    status, printed = command("freeze", "--timeout", "2")
    assert status == 1 and "streams were in flight" in printed
    status, printed = command("collect")
    assert status == 0 and "in slices" in printed and "streams were in flight" in printed
    with asked(server, "freeze") as asking:
        server.write("quiet")
        out, _ = asking.finish()
    assert asking.popen.returncode == 0 and "done in" in out


def test_a_server_that_dies_meanwhile(start: Callable[..., Server]) -> None:
    """Its end is the answer, at once."""
    server = start("api", busy=True)
    with asked(server, "freeze", "--timeout", "600") as asking:
        server.kill()
        out, _ = asking.finish()
    assert asking.popen.returncode == 1 and "the process has exited" in out


def test_a_command_that_dies_meanwhile(start: Callable[..., Server], command: Callable[..., tuple[int, str]]) -> None:
    """While it waits no other is let in; once it is dead, the next order is carried out, and not kept waiting by one
    that would have been given up in an hour."""
    server = start("api", busy=True)
    with asked(server, "freeze", "--timeout", "3600"):
        status, printed = command("collect")
        assert status == 1 and "another `tailwatch gc`" in printed
    status, printed = command("collect")  # the other one is killed
    assert status == 0 and "in slices" in printed
    assert server.running


def test_files_that_are_no_order_are_ignored(
    start: Callable[..., Server], command: Callable[..., tuple[int, str]], directory: Path, tmp_path: Path
) -> None:
    """Garbage, something huge, a link: counted, and seen in the status; the server goes on and takes the next order."""
    server = start("api")

    def ignored() -> int:
        return snapshots.take_directory(str(directory)).processes[0].policy.ignored

    def put(data: bytes) -> None:
        path = server.order_file
        assert path is not None
        path.write_bytes(data)

    put(b"rm -rf /")
    until(lambda: ignored() == 1)
    put(b"x" * 10_000_000)
    until(lambda: ignored() == 2)
    path = server.order_file
    assert path is not None
    target = tmp_path / "target"
    target.write_text("untouched")
    path.unlink()
    path.symlink_to(target)
    until(lambda: ignored() == 3 and not path.is_symlink() and path.exists())
    status, printed = command("freeze")
    assert status == 0 and "done in" in printed
    assert "3 invalid commands" in command("status")[1] and "ignored" in command("status")[1]
    assert target.read_text() == "untouched"


def test_a_link_is_not_written_through(start: Callable[..., Server], command: Callable[..., tuple[int, str]]) -> None:
    """By the command either: what it finds must be this user's own file."""
    server = start("api")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        path = server.order_file
        assert path is not None
        target = path.with_name("target")
        target.write_text("untouched")
        path.unlink()
        path.symlink_to(target)
        status, printed = command("freeze", "--timeout", "1")
        assert status == 1 and "nothing was done" in printed
        assert target.read_text() == "untouched"
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_what_the_dead_leave_is_removed(start: Callable[..., Server], directory: Path) -> None:
    """With their numbers: by those that live."""
    start("api")
    dead = start("engine")
    dead.kill()
    until(lambda: dead.order_file is None)
    until(lambda: not list(directory.glob(f"{dead.pid}-*")))


def test_a_directory_without_processes(directory: Path, command: Callable[..., tuple[int, str]]) -> None:
    """A directory that no group left is a wrong call; so is a timeout that is none."""
    directory.mkdir(mode=0o700)
    assert command("status")[0] == 2
    assert command("freeze", "--timeout", "0")[0] == 2
    with pytest.raises(SystemExit):
        cli.main(["gc", "thaw"])


# ---- the policy in all processes of a server ----

MAIN = """
import json, subprocess, sys, time
import tailwatch

role = sys.argv[1]
watch = tailwatch.install(role=role)
if role == "api":
    child = subprocess.Popen([sys.executable, __file__, "engine"], stdin=subprocess.PIPE)

class Node:
    def __init__(self):
        self.me = self

tailwatch.freeze()
with tailwatch.stream(model="m") as stream:
    nodes = [Node() for _ in range(5000)]
    deadline = time.monotonic() + 60
    while not tailwatch.gc_status().memory_limits["objects"] and time.monotonic() < deadline:
        stream.token()
        time.sleep(0.01)
if role == "engine":
    sys.stdin.read()
else:
    def met():
        processes = tailwatch.snapshot().processes
        return {p.role: [p.policy.kind, p.policy.memory_limits["objects"] > 0] for p in processes if p.lives}
    while met() != {"api": ["idle", True], "engine": ["idle", True]} and time.monotonic() < deadline:
        time.sleep(0.05)
    print(json.dumps(met()), flush=True)
    child.communicate(b"")
"""


def test_run_gives_every_process_the_policy_and_its_memory_limit(tmp_path: Path) -> None:
    """`tailwatch run --gc=idle --gc-memory-limit=...`: the server's processes have both, and each keeps its own."""
    script = tmp_path / "server.py"
    script.write_text(MAIN)
    options = ["--gc=idle", "--gc-memory-limit=objects=2000"]
    with Tailwatch("run", *options, "--", sys.executable, script, "api") as run:
        assert run.read() == {"api": ["idle", True], "engine": ["idle", True]}
        run.finish()
    assert run.popen.returncode == 0


# ---- ranks ----

STEPS = 400
RANK = """
import json, socket, sys, time
import tailwatch

watch = tailwatch.install(role="worker", dir=sys.argv[1], gc="idle")
tailwatch.freeze()
slicer = watch.gc.idle_gc.slicer
print("ready", flush=True)
sys.stdin.readline()                            # the others are there
deadline = time.monotonic() + 60
while slicer.every == 1 and time.monotonic() < deadline:
    time.sleep(0.01)

class Node:
    def __init__(self):
        self.me = self

rank, link = int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))
for number in range(3 * rank):                  # their counts of steps are not the same
    with tailwatch.step("warm_up", batch=4, waiting=4):
        pass
used = []
for number in range(1, int(sys.argv[4]) + 1):
    with tailwatch.step("execute_model", batch=4, waiting=4):
        nodes = [Node() for _ in range(100 + 50 * rank)]   # not the same in each rank
        time.sleep(0.002 + number % 7 * 1e-4)   # nor are steps: a beat with the clock would be chance
        link.send(b".")
        link.recv(1)                            # as an all-reduce would have it
    made = slicer.counts()
    if made["step"] + made["overdue"] > (used[-1][1] if used else 0):
        used.append((number, made["step"] + made["overdue"]))
print(json.dumps({"every": slicer.every, "steps": [number for number, _ in used]}), flush=True)
sys.stdin.readline()
"""


def test_ranks_make_their_slices_at_the_same_steps(directory: Path) -> None:
    """Two processes whose steps wait for each other, and were not counted from the same one, do not talk of slices: and
    yet steps that wait for one rank's slice wait for the other's too, more than twice as often as by chance (on a quiet
    machine five times; where it runs one rank without the other, their steps do not end together)."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(end).fileno() for end in socket.socketpair()]
        ranks = [
            stack.enter_context(Python(RANK, directory, i, end, STEPS, pass_fds=[end])) for i, end in enumerate(ends)
        ]
        for rank in ranks:
            assert rank.read_line() == "ready"
        for rank in ranks:
            rank.write("go")
        found = [rank.read() for rank in ranks]
    one, other = (set(each["steps"]) for each in found)
    assert all(each["every"] > 1 for each in found)
    assert min(len(one), len(other)) >= 5
    by_chance = len(one) * len(other) / STEPS
    assert len(one & other) > 2 * by_chance


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """One that others may write to is not read."""
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(TailwatchError):
        snapshots.take_directory(str(directory))
    assert cli.main(["gc", "--dir", str(directory), "status"]) == 2
