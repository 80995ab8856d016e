"""Stalls that the host makes, from outside of the server: one process is stopped, all share one CPU, or have a quota of
CPU time. Each returns when it began and ended, monotonic ns."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CPU, BUSY = 0, 2  # the one that is left, and loops beside the server's three processes
PERIOD_US, QUOTA_US = 100_000, 20_000
_SPIN = "while True: pass"

Log = dict[str, int]


def stop(pid: int, seconds: float) -> Log:
    """SIGSTOP for so long."""
    start = time.monotonic_ns()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
    return {"start": start, "stop": time.monotonic_ns()}


def one_cpu(pids: list[int], seconds: float) -> Log:
    """All threads of the processes on one CPU, for so long, with busy loops that have it too."""
    found = {thread: os.sched_getaffinity(thread) for thread in _threads(pids)}
    loops = [subprocess.Popen([sys.executable, "-c", _SPIN], preexec_fn=_to_one) for _ in range(BUSY)]
    start = time.monotonic_ns()
    for thread in found:
        _move(thread, {CPU})
    time.sleep(seconds)
    for thread, cpus in found.items():
        _move(thread, cpus)
    end = time.monotonic_ns()
    for each in loops:
        each.kill()
        each.wait()
    return {"start": start, "stop": end}


def _to_one() -> None:
    os.sched_setaffinity(0, {CPU})


def _threads(pids: list[int]) -> list[int]:
    return [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]


def _move(thread: int, cpus: set[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(thread, cpus)


class Cgroup:
    """One of its own for the CPU time of a server; without a quota at first. OSError: none can be made here."""

    def __init__(self, name: str) -> None:
        own = dict(re.findall(r"^\d+:([a-z,]*):(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE))
        self._is_old = "cpu" in own
        self._around = CGROUPS / ("cpu" if self._is_old else "") / own["cpu" if self._is_old else ""].strip("/")
        self._folder = (self._around if self._is_old else self._around.parent) / name
        self._folder.mkdir()
        self._limit(-1)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What is started meanwhile is in it."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._around / "cgroup.procs").write_text(str(os.getpid()))

    def quota(self, seconds: float) -> Log:
        """A fifth of one CPU, for so long."""
        start = time.monotonic_ns()
        self._limit(QUOTA_US)
        time.sleep(seconds)
        self._limit(-1)
        return {"start": start, "stop": time.monotonic_ns()}

    def remove(self) -> None:
        """Once its processes have ended."""
        self._folder.rmdir()

    def _limit(self, quota_us: int) -> None:
        if self._is_old:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self._folder / "cpu.max").write_text(f"{quota_us if quota_us > 0 else 'max'} {PERIOD_US}")
