"""The trace of one process: begun, kept up, triggered and thrown away. The events themselves are recorded in C, where
they happen (csrc/include/tailwatch/record/event_recorder.h); nothing here runs beside a token.

In a group they stand in a file beside the process's numbers, which others read while it is written and after its death;
without one in memory of its own.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tailwatch import _hot
from tailwatch.errors import TailwatchError
from tailwatch.group import temp_dirs
from tailwatch.group.membership import GroupMember
from tailwatch.options.config import Config
from tailwatch.options.trace_triggers import LEAST_EVENTS
from tailwatch.snapshots import DROPS
from tailwatch.tracing import ring_files

if TYPE_CHECKING:
    from tailwatch.tracing.perfetto import Written

BEFORE_NS, AFTER_NS = 10 * 10**9, 3 * 10**9  # of what is kept around a trigger
REST_NS = 30 * 10**9  # after a file was written: what comes meanwhile is counted, and nothing else
ROOM = 2 << 20  # bytes that stay free in a file system, as in group.h
_KEPT = re.compile(temp_dirs.KEPT)
_OF_A_PROCESS = re.compile(r"([0-9]+)-[0-9]+-[0-9]+\.trace")
_DROP_TRIGGER = DROPS.index("trace_trigger")


class Tracing:
    """What one process records of itself.

    Args:
        core: that records.
        membership: the group whose directory the file stands in.
        config: trace, trace_on, trace_keep, max_label_sets.
        warn: takes a sentence when there was no room for all events, or a file could not be kept.

    start() and stop() are for the thread that installs; dump() for any; the rest for the daemon.
    """

    def __init__(self, core: _hot.Core, membership: GroupMember, config: Config, warn: Callable[[str], object]) -> None:
        self._core = core
        self._membership = membership
        self._config = config
        self._warn = warn
        self.events = config.trace_events
        """Events that it has room for; fewer than ``trace_events`` where those did not fit, 0: none."""
        self._refused = self._warned = False
        self._looks = ring_files.Look(config.trace_on) if config.trace_on else None
        self._pending_ns = self._rest_until_ns = self._turn = self._files = 0
        self._lock = threading.Lock()  # held while what is recorded is read at its address: it stays mapped

    @property
    def bytes(self) -> int:
        """What it takes, once it has begun; 0: it is off."""
        return ring_files.bytes_of(self.events, self._config.max_label_sets)

    def start(self) -> None:
        """Begin to record: ``trace_events``, or a half, a quarter, ... of them, as many as there is room for."""
        if not self._config.trace_events:
            return
        self.events = self._config.trace_events
        first = why = self._begin()
        while why is not None and self.events:
            self.events = self.events // 2 if self.events // 2 >= LEAST_EVENTS else 0
            why = self._begin() if self.events else why
        if first is None:
            return
        self._refused = not self.events
        room = f"there is room for {self.events} events" if self.events else "nothing is recorded"
        self._warn(f"trace_events={self._config.trace_events}: {room}: {first}")

    def __str__(self) -> str:
        """One line: how much there is room for, and where."""
        if not self.events:
            return f"trace: no room for any of {self._config.trace_events} events"
        sizes = ring_files.ring_sizes(self.events)
        where = self._membership.directory or "memory of its own"
        return (
            f"trace: {self.events} events, {self.bytes / 2**20:.1f} MiB in {where}: {_room(sizes[0])} of the first "
            f"thread that stamps, {_room(sizes[1])} of each of {len(sizes) - 2} more, and of all others together"
            + self._warning()
        )

    def _warning(self) -> str:
        keep = self._config.trace_keep
        if not self._membership.directory or (keep.files and self.bytes <= keep.bytes):
            return ""
        return f"; what a killed process leaves is removed at once, as trace_keep={keep} has no room for it"

    def settle(self) -> None:
        """Begin where that has not happened yet: after a fork, or when the group was joined late, or another one."""
        if (
            not self._config.trace_events
            or self._refused
            or self._core.tracing
            or not self._lock.acquire(blocking=False)
        ):
            return
        try:
            self._core.trace_stop()
            self.start()
        finally:
            self._lock.release()

    def turn(self) -> None:
        """Sample the counters, and each fourth time the clocks."""
        self._turn += 1
        self._core.trace_turn(self._turn % 4 == 0)

    def look(self) -> None:
        """Whether there is anything that ``trace_on`` asks to keep, and keep what is due."""
        if self._looks is None or not self._core.tracing:
            return
        with self._lock:
            matches, first_ns = self._looks.look(self._core.trace_memory)
        now = _hot.now()
        if matches:
            self._triggered(first_ns, now)
        if self._pending_ns and now >= self._pending_ns + AFTER_NS:
            pending, self._pending_ns = self._pending_ns, 0
            self._rest_until_ns = now + REST_NS
            self._keep_around(pending)

    def tidy(self) -> None:
        """Remove the oldest of the files kept, and of those of the dead, beyond ``trace_keep``."""
        if not self._config.trace_events or not self._membership.directory:
            return
        kept, left = 0, self._config.trace_keep.bytes
        for _, size, path in sorted(_kept(self._membership.directory), reverse=True):
            if kept < self._config.trace_keep.files and size <= left:
                kept, left = kept + 1, left - size
                continue
            ring_files.remove(path)
            if size <= self._config.trace_keep.bytes:
                left = 0  # older ones do not outlive it

    def dump(
        self,
        to: str | int,
        form: str = "perfetto",
        *,
        since_ns: int = 0,
        until_ns: int = ring_files.LATEST_NS,
        merge: Sequence[str] = (),
    ) -> Written:
        """Write what the group's processes recorded, or this one where it has none; see traces.write().

        Raises:
            TailwatchError: nothing is recorded, or it cannot be written.
        """
        if not self._core.tracing:
            why = (
                "could not begin"
                if self._config.trace_events
                else "is off: install(app, trace_events=1_000_000) switches it on"
            )
            raise TailwatchError(f"trace: recording {why}")
        self._core.trace_turn(False)  # stalls that ended since the last turn
        if directory := self._membership.directory:
            return ring_files.write_group(directory, to, form, since_ns=since_ns, until_ns=until_ns, merge=merge)[1]
        with self._lock:
            where = [self._core.trace_memory]
            return ring_files.write(to, where, form, since_ns=since_ns, until_ns=until_ns, merge=merge)

    def stop(self) -> None:
        """Record no more, and leave nothing behind but what ``trace_on`` has kept."""
        with self._lock:
            self._core.trace_stop()

    def after_fork(self) -> None:
        """In a child: the core has let go of its parent's file."""
        self._lock = threading.Lock()
        self._refused = self._warned = False
        self._pending_ns = self._rest_until_ns = 0
        self._looks = ring_files.Look(self._config.trace_on) if self._config.trace_on else None

    # ---- begin ----

    def _begin(self) -> str | None:
        """None, or why not. It takes half of what a file system has left at most, and leaves a process that comes later
        the room to join."""
        if not self._membership.joined and not self._membership.alone:
            return None  # it is about to join: next time
        directory = self._membership.directory
        try:
            why = (
                f"{_free(directory) / 2**20:.1f} MiB are free, and half of them are left to other processes"
                if directory and self.bytes > (_free(directory) - ROOM // 2) // 2
                else self._core.trace_start(self.events)
            )
        except BlockingIOError:
            return None
        except OSError as error:  # the directory was removed
            why = str(error)
        return None if why is None else f"{self.bytes / 2**20:.1f} MiB do not fit into {directory or 'memory'}: {why}"

    # ---- what is kept ----

    def _triggered(self, first_ns: int, now: int) -> None:
        """One file holds all that comes while it is waited for; what comes in the rest after it has none."""
        if self._pending_ns:
            return
        if now < self._rest_until_ns:
            self._core.count_drop(_DROP_TRIGGER)
            return
        self._pending_ns = first_ns

    def _keep_around(self, moment_ns: int) -> None:
        directory = self._membership.directory
        if not directory:
            self._miss("this process has no directory for it")
            return
        self._files += 1
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = os.path.join(directory, f"trace-{when}-{os.getpid()}-{self._files}.pftrace")
        try:
            self.dump(path, since_ns=max(0, moment_ns - BEFORE_NS), until_ns=moment_ns + AFTER_NS)
            size, most = os.stat(path).st_size, self._config.trace_keep.bytes
            if _free(directory) < ROOM:
                os.unlink(path)
                self._miss(f"{directory} has no room for it")
            elif size > most or not self._config.trace_keep.files:
                os.unlink(path)
                self._miss(f"trace_keep={self._config.trace_keep} has no room for one of {size} bytes")
        except (TailwatchError, OSError) as error:
            self._miss(str(error))
        self.tidy()

    def _miss(self, why: str) -> None:
        self._core.count_drop(_DROP_TRIGGER)
        if not self._warned:
            self._warned = True
            self._warn(f"trace_on={self._config.trace_on}: the seconds around a trigger were not kept: {why}")


def _room(events: int) -> str:
    return f"{events} ({events * 32 / 2**20:.3g} MiB)"


def _free(directory: str) -> int:
    """Bytes; as many as there can be where the file system has no limit."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize if found.f_blocks else sys.maxsize


def _kept(directory: str) -> Iterator[tuple[float, int, str]]:
    """When each file that may go was last of use, its size, and its path. Those of the living are not looked at."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _KEPT.fullmatch(entry.name):
                found = entry.stat(follow_symlinks=False)
                yield found.st_mtime, found.st_size, entry.path
            elif (match := _OF_A_PROCESS.fullmatch(entry.name)) and not _may_live(int(match[1])):
                file = ring_files.look_into(entry.path)
                if file is not None and file.over:
                    yield file.seen, file.bytes, file.path


def _may_live(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
