"""What a process does to itself before it loads a server: its event loop, its malloc, and Ctrl-C."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tailwatch.interrupts import HANGUP, Interrupt, is_ours

_M_MMAP_THRESHOLD = -3
_THRESHOLD = 128 << 10


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, else asyncio's own. The caller runs and closes it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def grow_in_place() -> None:
    """From now on long columns grow by moving pages, not by copying: no holes are left behind, and no pause in mid-run.

    That is how glibc begins; but once a large block was freed (the making of a schedule does) it keeps blocks up to
    that size on its heap, where columns that grow side by side leave a quarter of it empty. A threshold that is set
    stays. For the whole process, so only where it is ours. Elsewhere than on glibc nothing happens.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)


@contextmanager
def on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Inside, SIGINT calls act, in the main thread and between two of its instructions, instead of what it did, and so
    does SIGTERM in a command of ours; then they do that again, whatever was raised.

    Nothing is set in another thread than the main one, where a signal is ignored (a shell's background job), and where
    its handler is not Python's, which could not be put back.
    """
    before = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    if is_ours(terminating := signal.getsignal(signal.SIGTERM)):
        before[signal.SIGTERM] = terminating
    before = {number: found for number, found in before.items() if found not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    for number in before:
        signal.signal(number, Interrupt(act))
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


@contextmanager
def exits_deferred(act: Callable[[], object]) -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP call act; their handlers, where they are Python's, are called on leaving. A handler of
    a command of ours is on_interrupt()'s.

    An event loop logs what a handler raises in a transport's callback, and goes on. Nothing is set in another thread
    than the main one.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, HANGUP)}
    mine = {number: handler for number, handler in handlers.items() if callable(handler) and not is_ours(handler)}
    if threading.current_thread() is not threading.main_thread():
        mine = {}
    arrived: list[int] = []

    def defer(number: int, _: FrameType | None) -> None:
        arrived.append(number)
        act()

    for number in mine:
        signal.signal(number, defer)
    try:
        yield
    finally:
        for number, handler in mine.items():
            signal.signal(number, handler)
        if arrived:
            mine[signal.Signals(arrived[0])](arrived[0], None)
