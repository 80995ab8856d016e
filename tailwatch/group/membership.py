"""The group of processes that this one belongs to: those that share a directory.

Each process's numbers stand in memory that a file there names, and that the others map. A fork child joins anew, with
its first request or wake-up of the daemon.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tailwatch import _hot, snapshots
from tailwatch.gc.hook import FREEZING
from tailwatch.integrations.process_ranks import engine_of_process, engine_of_role, is_engine, is_shared
from tailwatch.integrations.process_roles import delays_streams
from tailwatch.snapshots.directory_access import remedy
from tailwatch_boot import own_notes

_SAVED_SECONDS = 5.0


class GroupMember:
    """What one process has of its group.

    Args:
        core: whose segment is shared.
        directory: the group's; "": none.
        warn: called once with why it could not be joined, and once that it was lost, a sentence each.
        engine: which of several engines this process works for, or serves; "": see integrations/process_ranks.py.
    """

    def __init__(self, core: _hot.Core, directory: str, warn: Callable[[str], object], engine: str = "") -> None:
        self._core = core
        self._directory = directory
        self._warn = warn
        self._role = ""
        self._engine = engine
        self._engine_id = 0
        self._failed = False
        self._warned_lost = False
        self._warned_file = False
        self._save_at = 0.0
        self._opened_before = 0
        self._works = False
        self._lock = threading.Lock()  # held while the others' segments are read: they stay mapped

    @property
    def joined(self) -> bool:
        """Whether the numbers of this process are shared."""
        return self._core.joined

    @property
    def alone(self) -> bool:
        """Whether they are this process's own, and stay so: it has no group, or could not join it."""
        return not self.joined and (not self._directory or self._failed)

    @property
    def directory(self) -> str:
        """Where they are shared; "": nowhere."""
        return self._directory if self.joined else ""

    def enter(self, role: str) -> None:
        """Join, as a process of this role; once joined, it has another role from now on."""
        if not self._directory or (self.joined and role == self._role):
            return
        with self._lock:
            self._role = role
            self._find_engine()
            if not self.joined:
                self._join()

    def share_in(self, directory: str, role: str) -> None:
        """Join a directory that was not known before, as a process of this role."""
        self._directory = directory
        self.enter(role)

    def bind(self, engine: str) -> None:
        """Another engine from now on, for streams that open from now on."""
        with self._lock:
            self._engine = engine
            self._find_engine()

    def leave(self) -> list[str]:
        """Stop sharing: the group goes on counting what was measured until now, as it does for the dead, and the
        numbers stay this process's own too. Returns why that was not done, a sentence, or nothing."""
        with self._lock:
            self._role = ""
            try:
                self._core.leave()
            except MemoryError:
                return [f"dir={self._directory!r}: this process's numbers are still shared: no memory to copy them"]
        return []

    def renew(self) -> None:
        """See which processes came and went, and merge a few of the dead. Called once a second, by the daemon."""
        if not self._role or not self._lock.acquire(blocking=False):  # a snapshot is being taken: next time
            return
        try:
            self._find_engine()  # servers name their processes late
            if self.joined:
                self._look()
                self._save()
            elif not self._failed:
                self._join()
        finally:
            self._lock.release()
        self._core.merge_dead()  # outside the lock, and without the GIL: it copies megabytes, and nothing waits for it

    def after_fork(self) -> None:
        """In a child: the core has let go of the parent's memory."""
        self._lock = threading.Lock()
        self._failed = self._warned_lost = False
        self._find_engine()  # before its first stream, which joins

    def take(self) -> snapshots.Snapshot:
        """The numbers of the whole group; of this process where there is none."""
        if not self.joined:
            return snapshots.take([self._core.address])
        with self._lock:
            self._look()
            return snapshots.take([self._core.address, *self._core.members()])

    def healthy(self) -> snapshots.Healthy:
        """What TTFT by concurrency shows, of the whole group; of this process where there is none."""
        with self._lock:
            others = self._core.members() if self.joined else []
            return snapshots.healthy([self._core.address, *others])

    def opened(self) -> int:
        """Requests ever opened in the group, as of the last look."""
        with self._lock:
            return self._core.load()[1]

    def server_starts(self) -> bool:
        """Whether a server of the group has made its first freeze, and tokens pass through this process: the server is
        not ready before this one has frozen, too."""
        if not self.joined or not delays_streams(self._role):
            return False
        return any(each.lives and each.policy.freezes and each.role == "api" for each in self.take().processes)

    def works_for_streams(self) -> bool:
        """Whether streams of other processes of the group are in flight that may wait for this one, as of the last look
        at it."""
        if self.joined and delays_streams(self._role) and self._lock.acquire(blocking=False):
            try:
                self._works = self._core.load()[0] > 0
            finally:
                self._lock.release()
        return self._works

    def engines_are_ready(self) -> bool:
        """Whether all processes that tokens pass through have made their first freeze, where they are to make one."""
        if not self.joined:
            return True
        return not any(
            each.lives and each.policy.kind in FREEZING and not each.policy.freezes and delays_streams(each.role)
            for each in self.take().processes
        )

    @property
    def shares_engine(self) -> bool:
        """Whether a process of the group does the work of several: their streams wait for one another."""
        return self._core.shares_engine

    def load(self) -> tuple[int, int]:
        """Requests in flight in the whole group now, and those opened since this process joined it: what was before
        shows nothing of how warm it is."""
        with self._lock:
            if self.joined:
                self._look()
            in_flight, opened = self._core.load()
        return in_flight, max(0, opened - self._opened_before)

    def _find_engine(self) -> None:
        if not self._role:
            return
        named = self._engine or engine_of_role(self._role)
        self._engine_id = _engine_id_of(self._role, named)
        is_part = self._engine_id & _hot.ENGINE_LIKE  # this bit is in ENGINE_SHARED too: no engine known here
        self._core.set_serves(_hot.engine_id(named) or (0 if is_part else self._engine_id))
        self._core.set_engine(self._engine_id)

    def _join(self) -> None:
        why = self._core.join(self._directory, self._engine_id)
        if why is None:
            self._warn_of_file()
            self._core.renew()
            self._opened_before = self._core.load()[1]
        elif not self._failed:
            self._failed = True
            reason = f"{why}{remedy(self._directory)}"
            self._warn(f"dir={self._directory!r}: this process's numbers are not shared: {reason}")
            with suppress(OSError):  # with no room even for a line, an empty file is left, which means the same
                own_notes.note(self._directory, "alone", "no group")

    def _save(self) -> None:
        """The copy in the file, for readers that cannot reach the memory, is never older than _SAVED_SECONDS."""
        if self.joined and time.monotonic() >= self._save_at:
            self._save_at = time.monotonic() + _SAVED_SECONDS
            self._core.save()

    def _warn_of_file(self) -> None:
        if self._core.maps_file and not self._warned_file:
            self._warned_file = True
            self._warn(
                f"dir={self._directory!r}: the system refused System V shared memory, so a mapped file is used: "
                "truncating it ends this process"
            )

    def _look(self) -> None:
        with suppress(MemoryError):  # its part in a lost directory could not be taken back: next time
            self._core.renew()
        if not self.joined and not self._warned_lost:
            self._warned_lost = True
            self._warn(
                f"dir={self._directory!r} was removed or closed while it was in use: "
                "this process joins another of that name"
            )


def _engine_id_of(role: str, engine: str) -> int:
    """The id of the engine that a process works for: csrc/include/tailwatch/attribute/engine_id.h."""
    if not delays_streams(role):
        return 0
    if engine or (engine := engine_of_process()):
        return _hot.engine_id(engine)
    if is_shared(role):
        return _hot.ENGINE_SHARED
    return _hot.ENGINE_ITSELF | os.getpid() if is_engine(role) else _hot.ENGINE_LIKE | os.getppid()
