"""Which process of a group does what only one of them must: it holds a lock on a file in the group's directory.

The lock is fcntl's, which ends with its process: so the next one has it within a second or two.
"""

from __future__ import annotations

import os
from contextlib import suppress


class GroupLock:
    """One lock of one process; ``name`` is of the file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._file = -1
        self.first = True
        """Whether mark() has not been called under this lock yet, as of take()."""

    @property
    def held(self) -> bool:
        """Whether this process has it, or may do as if."""
        return self._file >= 0

    def take(self, directory: str) -> bool:
        """Whether no other process of the group has it; where that is not known, it may be tried."""
        import fcntl  # not on every system on which this module is imported

        if self.held:
            return True
        try:
            path = os.path.join(directory, self._name)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.first = os.fstat(self._file).st_size == 0
        except OSError:
            self.drop()
            return False
        return True

    def mark(self) -> None:
        """Record for its next holder that it was used."""
        if self.held and self.first:
            with suppress(OSError):
                os.pwrite(self._file, b"1", 0)
        self.first = False

    def drop(self) -> None:
        """Let the next one have it. In a fork child it stays the parent's."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):  # the host has closed it
                os.close(file)
