"""A real server's worth of processes on a /dev/shm of 64 MB, and then more than it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.tmpfs import on_64_mb

pytestmark = pytest.mark.stress

PROCESSES = """
import contextlib, gc, json, signal
import tailwatch
from tailwatch import snapshots

class Process:
    # At the defaults; carries out commands, and sends what it has.
    def __init__(self, role):
        asked, self.ask = os.pipe()
        self.answers, answer = os.pipe()
        self.role = role
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.ask)
            code = 1
            try:
                self.live(asked, answer)
                code = 0
            finally:
                os._exit(code)
        os.close(asked)
        os.close(answer)
        self.joined, self.notes = self.read()

    def live(self, asked, answer):
        watch = tailwatch.install(role=self.role, dir=directory, gc="observe", gc_warn_ms=0)
        os.write(answer, json.dumps([watch.membership.joined, watch.notes]).encode() + b"\\n")
        while os.read(asked, 1):
            if self.role == "api":
                for model in range(31):
                    with tailwatch.stream(model=f"model {model}") as stream:
                        stream.token()
            gc.collect()
            watch.membership.renew()
            mine = snapshots.take([watch.core.address])
            os.write(answer, json.dumps([mine.opened, watch.membership.joined]).encode() + b"\\n")

    def read(self):
        text = b""
        while not text.endswith(b"\\n"):
            data = os.read(self.answers, 4096)
            assert data, "it died"
            text += data
        return json.loads(text)

    def work(self):
        os.write(self.ask, b"x")
        return self.read()

    def kill(self):
        # alive until now
        assert os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

gc.collect()
gc.freeze()  # each of them collects, and would copy all that they share
before = free()
full_set = [Process("api") for _ in range(8)] + [Process("engine") for _ in range(56)]
for process in full_set:
    process.work()
snap = snapshots.take_directory(directory)
first = {"joined": [process.joined for process in full_set], "opened": snap.opened, "labels": len(snap.labels),
    "overflow": snap.label_overflow, "processes": len(snap.processes), "taken": before - free()}

with open(os.path.join(place, "others"), "wb") as file:
    size = 0
    while more := free():
        with contextlib.suppress(OSError):  # one of them took a page meanwhile
            os.posix_fallocate(file.fileno(), size, more)
            size += more
late = Process("api")
again = [process.work() for process in full_set + [late]]
snap = snapshots.take_directory(directory)
for process in full_set + [late]:
    process.kill()
dead = snapshots.take_directory(directory)
print(json.dumps({"first": first, "left": free(), "opened": [snap.opened, dead.opened],
    "late": [late.joined, late.notes, again[-1]]}))
"""


@pytest.mark.slow  # 64 processes; test_group_memory.py has their segments in one
@pytest.mark.timeout(240)
def test_a_full_set_of_processes_and_a_full_tmpfs(tmp_path: Path) -> None:
    """8 API and 56 engine processes at the defaults fit. One that comes when it is full reports that and counts for
    itself; all go on stamping, no process gets a SIGBUS, and what they counted outlives them."""
    found = on_64_mb(tmp_path, PROCESSES, PYTHONWARNINGS="ignore")
    first = found["first"]
    assert first["joined"] == [True] * 64
    assert (first["processes"], first["labels"], first["opened"], first["overflow"]) == (64, 31, 8 * 31, 0)
    assert first["taken"] < 64 << 20
    assert found["left"] == 0
    joined, notes, (opened, joined_later) = found["late"]
    assert (joined, joined_later, opened) == (False, False, 31)
    assert any("not shared" in note and "no room" in note for note in notes)
    assert found["opened"] == [2 * 8 * 31] * 2
