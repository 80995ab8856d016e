"""The keyboard and the signals of a live screen, as long as it stands; everything as it was afterwards."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from contextlib import ExitStack
from enum import Enum, auto
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUIT = b"qQ\x03\x04"


class TerminalEvent(Enum):
    """What ended a wait."""

    TIME = auto()
    RESIZED = auto()
    SUSPENDED = auto()
    ENDED = auto()


class Terminal:
    """A context manager. Signals are noted, and raise nowhere: Ctrl-C, SIGTERM, SIGHUP and the key q end a wait.

    signal: that ended it, 0: none did.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._event: TerminalEvent | None = None
        self._wake = -1
        self._keyboard: int | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Terminal:
        with ExitStack() as undo:  # also of what was done before a step fails
            self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            undo.callback(os.close, self._wake)
            undo.callback(os.close, write)
            undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
            for number in (*_ENDING, signal.SIGWINCH, signal.SIGTSTP):
                undo.callback(signal.signal, number, signal.signal(number, self._note) or signal.SIG_DFL)
            self._open_keyboard(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def wait(self, seconds: float) -> TerminalEvent:
        """Until the time has passed or something happens."""
        until = time.monotonic() + seconds
        while self._event is None:
            left = until - time.monotonic()
            if left <= 0:
                return TerminalEvent.TIME
            watched = [self._wake] if self._keyboard is None else [self._wake, self._keyboard]
            ready, _, _ = select.select(watched, (), (), left)
            self._drain(ready)
        event = self._event
        if event is TerminalEvent.RESIZED:
            self._event = None
        return event

    def _note(self, number: int, frame: FrameType | None) -> Any:
        if number in _ENDING:
            self.signal = number
            self._event = TerminalEvent.ENDED
        elif self._event is not TerminalEvent.ENDED:
            self._event = TerminalEvent.SUSPENDED if number == signal.SIGTSTP else TerminalEvent.RESIZED

    def _drain(self, ready: list[int]) -> None:
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._keyboard is not None and self._keyboard in ready:
            self._typed(self._keyboard)

    def _typed(self, keyboard: int) -> None:
        try:
            keys = os.read(keyboard, 4096)
        except OSError:  # the terminal went away
            keys = b""
        if not keys:
            self._keyboard = None
        elif any(key in _QUIT for key in keys):
            self._event = TerminalEvent.ENDED

    def _open_keyboard(self, undo: ExitStack) -> None:
        """Keys one by one, and none of them echoed, where there is a keyboard."""
        try:
            keyboard = sys.stdin.fileno()
            before = termios.tcgetattr(keyboard)
        except (OSError, ValueError, AttributeError, termios.error):
            return
        undo.callback(_restore, keyboard, before)
        tty.setcbreak(keyboard, termios.TCSANOW)
        self._keyboard = keyboard


def _restore(keyboard: int, before: list[Any]) -> None:
    try:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
    except termios.error:  # it went away
        return
