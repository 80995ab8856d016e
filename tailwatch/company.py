"""The group of processes that this one belongs to: those that share a directory.

Each process's numbers stand in a file there, which the others map. A fork child joins anew, with its first request or
wake-up of the daemon.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tailwatch import _hot, snapshots

_DELAYS_NOBODY = frozenset({"api"})  # roles whose pauses are in the way of their own streams only
_ONE_ENGINE = 1


class Company:
    """What one process has of its group.

    Args:
        core: whose segment is shared.
        directory: the group's; "": none.
        say: told once why it could not be joined, a sentence.
    """

    def __init__(self, core: _hot.Core, directory: str, say: Callable[[str], object]) -> None:
        self._core = core
        self._directory = directory
        self._say = say
        self._role = ""
        self._failed = False
        self._lock = threading.Lock()  # held while the others' segments are read: they stay mapped

    @property
    def joined(self) -> bool:
        """Whether the numbers of this process are shared."""
        return self._core.joined

    def enter(self, role: str) -> None:
        """Join, as a process of this role; again with another role."""
        if not self._directory or (self.joined and role == self._role):
            return
        with self._lock:
            self._core.leave()
            self._role = role
            self._join()

    def leave(self) -> None:
        """Take the file out of the directory; the numbers stay this process's own."""
        with self._lock:
            self._role = ""
            self._core.leave()

    def renew(self) -> None:
        """See who came and went. Called once a second, by the daemon."""
        if not self._role or not self._lock.acquire(blocking=False):  # a snapshot is being taken: next time
            return
        try:
            if not self.joined and not self._failed:
                self._join()
            self._core.renew()
        finally:
            self._lock.release()

    def after_fork(self) -> None:
        """In a child: the core has let go of the parent's file."""
        self._lock = threading.Lock()
        self._failed = False

    def take(self) -> snapshots.Snapshot:
        """The numbers of the whole group; of this process where there is none."""
        if not self.joined:
            return snapshots.take([self._core.address])
        with self._lock:
            self._core.renew()
            return snapshots.take([self._core.address, *self._core.members()])

    def _join(self) -> None:
        unit = 0 if self._role in _DELAYS_NOBODY else _ONE_ENGINE
        why = self._core.join(self._directory, unit)
        if why is None:
            self._core.renew()
        elif not self._failed:
            self._failed = True
            self._say(f"dir={self._directory!r}: this process's numbers are not shared: {why}")
