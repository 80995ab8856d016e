"""server.address and server.port of the metrics: of the connection of the first request of a client that a process
of the group answered.

One for the group, and fixed: with a second one the same counts would stand in other series, twice. So it is kept in a
file of the group's directory, whichever process exports, and however often the workers are replaced; while that cannot
be read or written there is none.

A server may ask itself before any client does (SGLang's warm-up): a loopback address counts once requests still come
to it after LOOPBACK_SECONDS.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tailwatch_boot.own_notes import open_directory

FILE = "otel-server"
UNKNOWN = ("", 0)
LOOPBACK_SECONDS = 60.0
_LONGEST = 255
_LOOPBACK = re.compile(r"localhost|(::ffff:)?127(\.[0-9]{1,3}){3}|::1")


class ServerAddress:
    """What one process has seen, and what its group has: (address, port). An address is a name, an IP address or the
    path of a Unix socket, which has the port 0. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen = self._fixed = UNKNOWN
        self._clock = clock
        self._loopback_since: float | None = None

    @property
    def fixed(self) -> tuple[str, int]:
        """("", 0) until it is known."""
        return self._fixed

    @property
    def has_seen(self) -> bool:
        """Whether this process has; not yet by a loopback address that does not count."""
        return self._seen is not UNKNOWN

    def see(self, scope: Any) -> None:
        """The ASGI scope of a request that has ended. In the request's task: no file is touched."""
        found = address_of((scope or {}).get("server"))
        if _LOOPBACK.fullmatch(found[0]):
            if self._loopback_since is None:
                self._loopback_since = self._clock()
            if self._clock() - self._loopback_since < LOOPBACK_SECONDS:
                return
        self._seen = found

    def move(self) -> None:
        """The group has another directory."""
        self._fixed = UNKNOWN

    def settle(self, directory: str) -> None:
        """Read what the group has, or leave there what this process has seen. "": there is no group."""
        if self._fixed is not UNKNOWN:
            return
        if not directory:
            self._fixed = self._seen
            return
        with suppress(OSError):  # then another process of the group may have seen another: none, until the next time
            self._fixed = _read(directory) if self._seen is UNKNOWN else _leave(directory, self._seen)


def address_of(server: Any) -> tuple[str, int]:
    """Of an ASGI scope's server: (host, port), or (path, None); ("", 0) of anything else."""
    if not isinstance(server, (tuple, list)) or len(server) != 2 or not isinstance(server[0], str):
        return UNKNOWN
    address, port = server[0][:_LONGEST], server[1]
    if not address or not address.isprintable():
        return UNKNOWN
    return address, port if isinstance(port, int) and 0 < port < 65536 else 0


def attributes_of(server: Any) -> dict[str, str | int]:
    """``server.address`` and ``server.port`` of an ASGI scope's server, as far as there are some."""
    address, port = address_of(server)
    return {"server.address": address, **({"server.port": port} if port else {})} if address else {}


def _leave(directory: str, seen: tuple[str, int]) -> tuple[str, int]:
    """The first one stays. It is written before it has its name: a reader finds all of it."""
    there = open_directory(directory)
    made = f".tailwatch-{FILE}-{os.getpid()}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(made, flags, 0o600, dir_fd=there)
        try:
            os.write(file, f"{seen[0]}\n{seen[1]}\n".encode())
            with suppress(FileExistsError):
                os.link(made, FILE, src_dir_fd=there, dst_dir_fd=there, follow_symlinks=False)
        finally:
            os.close(file)
            os.unlink(made, dir_fd=there)
    finally:
        os.close(there)
    return _read(directory)


def _read(directory: str) -> tuple[str, int]:
    there = open_directory(directory)
    try:
        file = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=there)
    except FileNotFoundError:
        return UNKNOWN
    finally:
        os.close(there)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return UNKNOWN
        lines = os.read(file, 2 * _LONGEST).decode("utf-8", "replace").splitlines()
    finally:
        os.close(file)
    known = len(lines) == 2 and lines[1].isascii() and lines[1].isdigit()
    return address_of((lines[0], int(lines[1]))) if known else UNKNOWN
