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
BUSY = 2  # loops beside the server's three processes
PERIOD_US, QUOTA_US = 100_000, 20_000
_SPIN = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"  # also where nobody kills it

Log = dict[str, int]


def stop(pid: int, seconds: float) -> Log:
    """SIGSTOP for so long."""
    start = time.monotonic_ns()
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    return {"start": start, "stop": time.monotonic_ns()}


def one_cpu(pids: list[int], seconds: float) -> Log:
    """All threads of the processes on one CPU, for so long, with busy loops that have it too."""
    own = os.sched_getaffinity(0)
    before, one = _affinities(pids), {min(own)}
    with contextlib.ExitStack() as stack:
        for _ in range(BUSY):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", _SPIN]))
            stack.callback(loop.kill)
            _move(loop.pid, one)
        start = time.monotonic_ns()
        try:
            for thread in before:
                _move(thread, one)
            time.sleep(seconds)
        finally:
            for thread in _affinities(pids):
                _move(thread, before.get(thread, own))
        return {"start": start, "stop": time.monotonic_ns()}


def _affinities(pids: list[int]) -> dict[int, set[int]]:
    """Of each thread."""
    found = {}
    for thread in [int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")]:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found[thread] = os.sched_getaffinity(thread)
    return found


def _move(thread: int, cpus: set[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cpus)


class Cgroup:
    """One of its own for the CPU time of a server; without a quota at first. OSError: none can be made here."""

    def __init__(self, name: str) -> None:
        lines = re.findall(r"^\d+:([a-z,=_]*):(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        old = next(((kinds, path) for kinds, path in lines if "cpu" in kinds.split(",")), None)
        self._is_old = old is not None
        if old is None and not any(kinds == "" for kinds, _ in lines):
            raise OSError("this process is in no cgroup that can limit CPU time")
        kinds, path = old or ("", dict(lines)[""])
        self._around = CGROUPS / kinds / path.strip("/")
        self._folder = (self._around if self._is_old else self._around.parent) / name
        self._folder.mkdir()
        try:
            self._limit(-1)
        except OSError:
            self._folder.rmdir()
            raise

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
        try:
            time.sleep(seconds)
        finally:
            self._limit(-1)
        return {"start": start, "stop": time.monotonic_ns()}

    def is_empty(self) -> bool:
        """Whether its processes have ended."""
        return not (self._folder / "cgroup.procs").read_text()

    def remove(self) -> None:
        """OSError: some processes have not ended."""
        self._folder.rmdir()

    def _limit(self, quota_us: int) -> None:
        if self._is_old:
            self._write("cpu.cfs_period_us", str(PERIOD_US))
            self._write("cpu.cfs_quota_us", str(quota_us))
        else:
            self._write("cpu.max", f"{quota_us if quota_us > 0 else 'max'} {PERIOD_US}")

    def _write(self, name: str, text: str) -> None:
        with (self._folder / name).open("r+") as file:  # never makes one
            file.write(text)
