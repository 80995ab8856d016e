"""kill -9 at any instant: what was stamped stays counted, and no total ever goes back."""

from __future__ import annotations

import mmap
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tailwatch import _hot, snapshots

pytestmark = pytest.mark.stress

ROLES = ("engine", "worker", "api")
LIVING = 6


def make_core(role: str) -> _hot.Core:
    return _hot.Core(role, 8, (0,) * 5, 0, lambda scope: "/", print)


class Tally:
    """What each child has stamped, in memory that outlives it: a number a child, written after the stamp, by one store
    (struct.pack_into() writes zeros first: one that is killed then has stamped nothing)."""

    def __init__(self, children: int) -> None:
        self._words = memoryview(mmap.mmap(-1, 8 * children)).cast("Q")

    def note(self, child: int, requests: int) -> None:
        self._words[child] = requests

    def sum(self) -> int:
        return sum(self._words)


def live(directory: Path, child: int, tally: Tally) -> NoReturn:
    """A member: requests of one token under a label set of its own, now and then a pause, and it merges the dead."""
    core = make_core(ROLES[child % len(ROLES)])
    assert core.join(str(directory), 0) is None
    for request in range(1, 1 << 30):
        stream = core.stream(f"model {child % 5}", "/", None, "", "")
        stream.token()
        stream.close()
        tally.note(child, request)
        if request % 50 == 0:
            core.policy_begin()
            core.policy_end()
            core.merge_dead()
    os._exit(0)


def start(directory: Path, child: int, tally: Tally) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.nice(10)  # they never wait: the killer comes first
            live(directory, child, tally)
        finally:
            os._exit(1)
    return pid


def ended_ns(process: snapshots.Process) -> int:
    """Of its pauses. One that was open when its process was killed never counts: how long it went on is not known."""
    return round((process.paused["gc_own"] - process.standing) * 1e9)


class Reader:
    """Looks at the group, from inside or outside, and holds that nothing goes back."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def look(self, snap: snapshots.Snapshot) -> None:
        now = {"requests": sum(snap.requests.values()), "tokens": snap.tokens, "opened": snap.opened}
        now |= {f"ttft {model}": snap.where(model_name=model).ttft.count for model, _ in snap.labels}
        now |= {f"pauses {process.name}": ended_ns(process) for process in snap.processes}
        now |= {"collections": snap.gc.collections["gc_own"], "itl": snap.itl.count}
        assert not {name for name, value in self._before.items() if now.get(name, 0) < value}, (self._before, now)
        self._before = now


@pytest.fixture
def children() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("kills", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_totals_never_go_back_and_end_at_what_was_stamped(tmp_path: Path, children: list[int], kills: int) -> None:
    """Members are killed at random instants, merging or not, while others poll; at the end all is there, once."""
    directory, tally, chance = tmp_path / "group", Tally(kills + LIVING), random.Random(4)
    own = make_core("api")
    assert own.join(str(directory), 0) is None
    inside, outside = Reader(), Reader()
    children += [start(directory, child, tally) for child in range(LIVING)]
    for child in range(LIVING, kills + LIVING):
        until = time.monotonic() + chance.uniform(0.001, 0.012)
        while time.monotonic() < until:
            own.renew()
            inside.look(snapshots.take([own.address, *own.members()]))
            outside.look(snapshots.take_directory(str(directory)))
        victim = children.pop(chance.randrange(LIVING))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        children.append(start(directory, child, tally))
        if child % 3 == 0:
            own.merge_dead()
    while children:
        os.kill(children[-1], signal.SIGKILL)
        os.waitpid(children.pop(), 0)
    stamped = tally.sum()
    assert list(directory.glob("*.gone"))  # the living merged while all this went on
    check(snapshots.take_directory(str(directory)), stamped, kills + LIVING)
    while own.merge_dead():
        outside.look(snapshots.take_directory(str(directory)))
    check(snapshots.take_directory(str(directory)), stamped, kills + LIVING)
    assert [path.name.split("-")[0] for path in directory.glob("*.seg") if begun(path)] == [str(os.getpid())]
    own.leave()


def begun(path: Path) -> bool:
    """Whether there is anything in it: a file of zeros, or an empty one, of one killed before stays ten seconds."""
    with path.open("rb") as file:
        return any(file.read(8))


def check(snap: snapshots.Snapshot, stamped: int, killed: int) -> None:
    """Each of the killed may have stamped one more than it could report."""
    assert stamped <= sum(snap.requests.values()) <= snap.opened <= stamped + killed
    assert stamped <= snap.tokens <= stamped + killed
    assert stamped <= snap.ttft.count <= stamped + killed
    assert snap.in_flight == 0
