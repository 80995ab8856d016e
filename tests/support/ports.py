"""Ports for servers that must be given one. Where a server can bind port 0 and report it, that is better."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, COUNT = 18000, 12000  # below what the kernel by default gives to port 0 and to connections
_held: list[int] = []


def free_port() -> int:
    """A port of 127.0.0.1 that no other test process is given while this one lives."""
    directory = Path(tempfile.gettempdir()) / f"tailwatch-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    start = os.getpid() * 37 + len(_held)
    for number in range(start, start + COUNT):
        port = FIRST + number % COUNT
        lock = os.open(directory / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        if _locked(lock) and _can_bind(port):
            _held.append(lock)
            return port
        os.close(lock)
    raise AssertionError(f"no port from {FIRST} to {FIRST + COUNT} is free")


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
