"""Wakes a loop at a moment, as exactly as the kernel does.

An event loop's own timers are rounded up to whole milliseconds (asyncio's epoll, uvloop's timers), and what is late is
the request: so this is a timerfd, which wakes the loop within the scheduler's latency. Where there is none, the loop's
timer.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable
from typing import Any

_CLOCK_MONOTONIC, _ABSOLUTE, _NONBLOCK, _CLOEXEC = 1, 1, os.O_NONBLOCK, os.O_CLOEXEC
_SECOND = 1_000_000_000


class Pacer:
    """Calls `due` once after each `at`. Belongs to the thread of the running loop; close() ends it."""

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._libc = _libc()
        self._fd = _open(self._libc)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._ready)

    @property
    def exact(self) -> bool:
        """Whether the kernel wakes us, and not the loop's milliseconds."""
        return self._fd >= 0

    def at(self, moment_ns: int) -> None:
        """Call `due` at this CLOCK_MONOTONIC time, or as soon as possible where it has passed. Replaces an earlier
        one."""
        if self._fd >= 0 and self._set(max(1, moment_ns)):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, (moment_ns - time.monotonic_ns()) / _SECOND)
        self._timer = self._loop.call_later(delay, self._due)

    def close(self) -> None:
        """No call comes any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ready(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        self._due()

    def _set(self, moment_ns: int) -> bool:
        seconds, nanoseconds = divmod(moment_ns, _SECOND)
        wanted = struct.pack("@qqqq", 0, 0, seconds, nanoseconds)  # struct itimerspec: no interval, one time
        return bool(self._libc.timerfd_settime(self._fd, _ABSOLUTE, wanted, None) == 0)


def _libc() -> Any:
    """The C library of this process; None where it has no timerfd, or another struct timespec."""
    if ctypes.sizeof(ctypes.c_long) != 8:
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "timerfd_create") else None


def _open(libc: Any) -> int:
    return -1 if libc is None else int(libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC))
