"""The metrics on a port of their own, for processes without an app: one of a group serves them for all.

A port that the environment gives to every process of a group is taken by the first; the others wait in line, and when
that one ends the next has it within a second or two. The process that has it holds a lock (of fcntl, which ends with
its process) on a file in the group's directory: so the others see that one of them, and not another program, listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailwatch.errors import OptionError
from tailwatch.serve.leader_lock import GroupLock

if TYPE_CHECKING:
    from tailwatch.serve.http_server import MetricsServer


class MetricsPort:
    """The port of one process.

    Args:
        number: of the TCP port, on the loopback address; 0: none.
        serve: begins to listen there, or raises OSError.
        directory: of the group that this process has joined, "" while it has joined none.
        note: called once with a sentence: others may have the port.
        warn: called once with a sentence: why no process serves it.

    Only open(), wait() and close() are for other threads than the one that calls turn(), while that does not run.
    """

    def __init__(
        self,
        number: int,
        serve: Callable[[int], MetricsServer],
        directory: Callable[[], str],
        note: Callable[[str], object],
        warn: Callable[[str], object],
    ) -> None:
        self.number = number
        self._serve = serve
        self._directory = directory
        self._note = note
        self._warn = warn
        self._server: MetricsServer | None = None
        self._lock = GroupLock(f"port-{number}")
        self._waits = self._leaving = self._noted = self._warned = False

    @property
    def serving(self) -> bool:
        """Whether this process listens there."""
        return self._server is not None

    def open(self) -> None:
        """Listen there, or be refused.

        Raises:
            OptionError: it is taken.
        """
        try:
            self._server = self._serve(self.number)
        except OSError as error:
            expected = f"expected a TCP port to listen on, but {error.strerror or error}"
            raise OptionError.of("metrics_port", self.number, expected) from error

    def wait(self) -> None:
        """Listen there now, if it is free, or else in a group once it is this process's turn."""
        self._waits = True
        self.turn()

    def leave(self) -> None:
        """Hand the port on, with the next turn(): to stop listening takes up to a second."""
        self._waits, self._leaving = False, True

    def turn(self) -> None:
        """Called once a second: see whether the port has become free, where one waits; never raises."""
        if self._leaving:
            self.close()
        if not self._waits or self._server is not None:
            return
        directory = self._directory()
        if directory and not self._noted:
            self._noted = True
            self._note(f"TAILWATCH_METRICS_PORT={self.number}: one process of the group at a time serves it for all")
        if not directory or self._lock.take(directory):
            self._try(directory)

    def _try(self, directory: str) -> None:
        try:
            self._server = self._serve(self.number)
        except OSError as error:
            self._lock.drop()
            if not self._warned:
                self._warned = True
                self._warn(f"TAILWATCH_METRICS_PORT={self.number}: metrics are not served, {error.strerror or error}")
        self._waits = bool(directory) or self._server is not None

    def close(self) -> None:
        """Stop listening and waiting."""
        server, self._server = self._server, None
        self._waits = self._leaving = False
        if server is not None:
            server()
        self._lock.drop()

    def after_fork(self) -> None:
        """In a child: what listens is the parent's; what waited goes on to wait."""
        if self._server is not None:
            self._server.after_fork()
            self._server = None
        self._lock.drop()
