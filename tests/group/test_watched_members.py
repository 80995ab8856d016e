"""Processes that streams of another one wait for: their watchdog runs while these are in flight, so that an engine or a
worker that was stopped is seen to have been."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch._cold import ffi, lib
from tailwatch.snapshots import take_directory
from tailwatch.snapshots.segments import addresses_in

from ..support.waiting import until
from .test_three_process import Server, streaming

pytestmark = pytest.mark.integration

STOP_SECONDS = 0.15
WATCHDOG = "tailwatch-watch"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(Server(tmp_path / "group"))
        stack.callback(started.stop)
        until(lambda: started.metrics, "it serves")
        yield started


def pid_of(server: Server, role: str) -> int:
    def found() -> int:
        processes = take_directory(str(server.directory)).processes
        return next((each.pid for each in processes if each.role == role), 0)

    return until(found, f"a process of role {role}")


def watchdogs(pid: int) -> list[str]:
    """Status of its threads of that name."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().strip() == WATCHDOG:
                found.append((task / "status").read_text())
    return found


def switches(pid: int) -> str:
    """How often its watchdog was put to sleep so far."""
    [status] = watchdogs(pid)
    return next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))


def rests(pid: int) -> bool:
    """Whether its watchdog does not wake up in ten of its periods."""
    before = switches(pid)
    time.sleep(0.1)
    return switches(pid) == before


def stop(pid: int) -> tuple[int, int]:
    """From when to when the process was stopped."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    began = time.monotonic_ns()
    time.sleep(STOP_SECONDS)
    ended = time.monotonic_ns()
    os.kill(pid, signal.SIGCONT)
    return began, ended


def segment_of(directory: Path, pid: int) -> tuple[Any, Any]:
    """Its segment, mapped for as long as the first is held."""
    members, addresses = addresses_in(str(directory))
    segments = [ffi.cast("const tw_segment *", address) for address in addresses]
    return members, next(each for each in segments if each.header.pid == pid)


def stopped_ns(directory: Path, pid: int, began: int, ended: int) -> int:
    """For how long it was, as its own records have it."""
    members, segment = segment_of(directory, pid)
    parts = ffi.new("tw_parts *")
    lib.tw_host_held(ffi.addressof(segment, "host"), ffi.addressof(segment, "pause"), began, ended, parts)
    del members  # mapped until here
    return sum(part.ns for part in parts.part[0 : parts.n] if part.cause == lib.TW_DELAY_STOPPED)


def is_recorded(directory: Path, pid: int, began: int, ended: int) -> bool:
    """Once the watchdog has had the time for it: on a busy machine, other threads of the process may come first, and it
    is not known to have stood still."""
    deadline = time.monotonic() + 1
    while stopped_ns(directory, pid, began, ended) < 0.9 * (ended - began):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("role", ["engine", "worker"])
def test_the_watchdog_of_a_member_runs_while_streams_of_another_are_in_flight(server: Server, role: str) -> None:
    pid = pid_of(server, role)
    assert not watchdogs(pid)
    with streaming(server):
        until(lambda: watchdogs(pid), "a watchdog")
        until(lambda: not rests(pid), "it wakes up")
        until(lambda: is_recorded(server.directory, pid, *stop(pid)), "a stop is recorded")
    until(lambda: rests(pid), "nobody waits")
