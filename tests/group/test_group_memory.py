"""How much shared memory a group takes, and what becomes of it where there is none left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.tmpfs import on_64_mb

pytestmark = pytest.mark.integration

MIB = 1 << 20

CORES = """
import json
from tailwatch import _hot, snapshots

def core(role):
    return _hot.Core(role, 32, (0,) * 5, 0, lambda scope: "/", print)

def stamp(one, model, route="/"):
    stream = one.stream(model, route, None, "", "")
    stream.token()
    stream.close()
"""

A_FULL_SET = """
before, why = free(), []
engines = [core("engine") for _ in range(48)]
apis = [core("api") for _ in range(16)]
for one in engines + apis:
    why.append(one.join(directory, 0))
for number in range(31):
    for one in apis:
        stamp(one, f"model {number}")
saved = [one.save() for one in engines + apis]
snap = snapshots.take_directory(directory)
print(json.dumps({"why": why, "saved": sum(saved),
    "taken": before - free(), "overflow": snap.label_overflow, "bytes": engines[0].bytes,
    "requests": snap.opened, "processes": len(snap.processes), "labels": len(snap.labels)}))
"""

NO_ROOM_LEFT = """
first = core("api")
assert first.join(directory, 0) is None
stamp(first, "known")
with open(os.path.join(place, "others"), "wb") as file:
    os.posix_fallocate(file.fileno(), 0, free())
late = core("engine")
why = late.join(directory, 1)
for one in (first, late):
    for model in ("known", "new"):
        stamp(one, model)
snap, alone = snapshots.take_directory(directory), snapshots.take([late.address])
print(json.dumps({"why": why, "joined": late.joined, "alone": alone.labels, "labels": snap.labels,
    "overflow": snap.label_overflow}))
"""


MANY_DEAD = """
import glob, signal
living = core("api")
assert living.join(directory, 0) is None
with open(os.path.join(place, "others"), "wb") as file:
    os.posix_fallocate(file.fileno(), 0, free() - (8 << 20))
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        one = core("worker")
        one.join(directory, 0)
        stamp(one, "known")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
dead = len(glob.glob(directory + "/*.seg")) - 1
while living.merge_dead():
    pass
print(json.dumps({"dead": dead, "left": len(glob.glob(directory + "/*.seg")) - 1,
    "requests": snapshots.take_directory(directory).opened, "why": core("engine").join(directory, 1)}))
"""


def test_a_full_set_fits_64_mb(tmp_path: Path) -> None:
    """48 engines and 16 API workers with every label set in use, at the defaults, share 64 MB and lose nothing."""
    found = on_64_mb(tmp_path, CORES + A_FULL_SET)
    assert (found["why"], found["saved"]) == ([None] * 64, 64)
    assert (found["processes"], found["requests"], found["overflow"], found["labels"]) == (64, 496, 0, 31)
    assert found["bytes"] <= 1_836_000
    assert found["taken"] <= 62 * MIB


def test_a_full_tmpfs_is_reported_and_kills_no_process(tmp_path: Path) -> None:
    """One that comes when it is full measures for itself; those that have joined go on, with label sets that are
    new."""
    found = on_64_mb(tmp_path, CORES + NO_ROOM_LEFT)
    assert found["why"] == "it has no room"
    assert not found["joined"]
    assert found["alone"] == [["known", "/"], ["new", "/"]]
    assert found["labels"] == [["known", "/"], ["new", "/"]]
    assert found["overflow"] == 0


def test_many_dead_on_a_small_tmpfs_can_be_merged(tmp_path: Path) -> None:
    """Copies leave room for a retired segment: else the dead would keep a full file system full for ever."""
    found = on_64_mb(tmp_path, CORES + MANY_DEAD)
    assert (found["dead"], found["left"], found["requests"], found["why"]) == (40, 0, 40, None)
