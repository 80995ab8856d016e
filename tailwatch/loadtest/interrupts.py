"""Ctrl-C while something is measured: it ends what is measured, and not the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Inside, SIGINT calls act, in the main thread and between two of its instructions, instead of what it did; then
    it does that again, whatever was raised.

    Nothing is set in another thread than the main one, where SIGINT is ignored (a shell's background job), and where
    its handler is not Python's, which could not be put back.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
