"""A level and a handler of the logger "tailwatch", for lines that an option asks for.

A host's logging is not made for them: a package may set the root logger to ERROR, or the root has no handler at all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

FORK_PATIENCE_SECONDS = 0.1
_LOCKS = (type(threading.Lock()), type(threading.RLock()))

logger = logging.getLogger("tailwatch")


class OwnLog:
    """Lines from INFO on reach standard error where no handler of the host would show them."""

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._level_before = logging.NOTSET

    def open(self) -> None:
        """A second call does nothing."""
        if self._handler is not None:
            return
        self._level_before = logger.level
        logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._handler.addFilter(lambda record: not _is_shown(record.levelno, self._handler))
        logger.addHandler(self._handler)

    def close(self) -> None:
        """Leave the logger as it was."""
        if self._handler is None:
            return
        logger.removeHandler(self._handler)
        self._handler = None
        logger.setLevel(self._level_before)


def _is_shown(level: int, but: logging.Handler | None) -> bool:
    """Whether another handler shows a line of this level; asked for each line, because hosts set up logging late."""
    others = (each for each in _handlers() if each is not but and not isinstance(each, logging.NullHandler))
    return any(level >= handler.level for handler in others)


def _handlers() -> Iterator[logging.Handler]:
    """All that get a line of ours."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


# ---- forks ----


class _Held(threading.local):
    """Locks that this thread holds over its fork."""

    def __init__(self) -> None:
        self.locks: list[Any] = []

    def release(self) -> None:
        while self.locks:
            with contextlib.suppress(RuntimeError):  # in the child, logging has made it new
                self.locks.pop().release()


_held = _Held()


def before_fork() -> None:
    """Wait until no other thread, such as our daemon, writes a line: the child would find the stream's lock held for
    ever, and hang as it flushes standard error at its end. Waits 0.1 s at most.

    The lock of logging's module comes first, as in logging.config: a fork takes it anyway.
    """
    deadline = time.monotonic() + FORK_PATIENCE_SECONDS
    for lock in (logging._lock, *(each.lock for each in _handlers())):  # type: ignore[attr-defined]
        if isinstance(lock, _LOCKS):
            if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return
            _held.locks.append(lock)


def after_fork() -> None:
    """In parent and child: lines can be written again."""
    _held.release()
