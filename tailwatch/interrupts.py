"""Ctrl-C and SIGTERM of a command: both raise KeyboardInterrupt, and the exit status shows which of them it was.

A command that catches KeyboardInterrupt writes what it has and returns INTERRUPTED; after SIGTERM its status is 143. A
signal that came while everything was being written anyway gives the same status.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from tailwatch_boot import console

HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)
"""Windows has none."""

INTERRUPTED = 128 + signal.SIGINT
_AGAIN_SECONDS = 0.01
_seen: list[int] = []  # signals that came to handlers of ours


class Interrupt:
    """A signal's handler that is ours: another of ours may take its place for a while. act: what it does."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _seen.append(number)
        self._act()


def is_ours(handler: object) -> bool:
    """Whether a signal's handler is one of a command's, and not the host's."""
    return isinstance(handler, Interrupt)


def arrived() -> bool:
    """Whether a command of this process was asked to end."""
    return bool(_seen)


@contextmanager
def handled() -> Iterator[Callable[[int], int]]:
    """Inside, SIGINT and SIGTERM raise KeyboardInterrupt, where they have no other handler. Gives what makes the exit
    status of a command's own: 128 + the first signal that came, if one did."""
    _seen.clear()
    if threading.current_thread() is not threading.main_thread():
        yield lambda status: status
        return
    free = (signal.SIG_DFL, signal.default_int_handler, console.end)
    before = {number: found for number in console.SIGNALS if (found := signal.getsignal(number)) in free}
    hook = sys.unraisablehook
    sys.unraisablehook = _Unraisable(hook)
    handler = Interrupt(_interrupt)
    for number in before:
        signal.signal(number, handler)
    try:
        yield lambda status: 128 + _seen[0] if _seen else status
    finally:
        for stream in (sys.stdout, sys.stderr):  # what follows may end at once
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        for number, earlier in before.items():
            signal.signal(number, earlier)
        sys.unraisablehook = hook


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Unraisable:
    """Where a KeyboardInterrupt was raised in a destructor or a callback of a weak reference, it is lost, and printed:
    it is raised a little later instead."""

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self._hook = hook

    def __call__(self, unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._hook(unraisable)
        elif threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, lambda number, frame: _interrupt())
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
