"""Stalls of this process's event loops: which are followed, and whether stacks can be read here.

The clock of a loop stands in its hook (csrc/python/gc/idle_selector.c, idle_libuv.c); a thread in C without the
interpreter lock samples loops that are busy for long (csrc/stall/watchdog.c). It reads frames of Python by their place
in the interpreter's memory: before it may, what it reads of the calling thread's own frames is compared with
sys._getframe().
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from types import FrameType
from typing import Any, Protocol

from tailwatch import _hot

_USER = "clock"  # of the loops' hooks
MODES = ("off", "clock", "auto")
_DISTRUST, _TRUST_STACKS, _TRUST_ALL = range(3)


class Loops(Protocol):
    """The hooks of the process's loops: tailwatch.gc.idle_hooks."""

    def use(self, user: str) -> str | None:
        """Hook the loop that runs in this thread. Why it cannot be, once."""

    def find(self, use: Callable[[], object]) -> None:
        """Have the loops of other threads call use(), each in its own."""

    def release(self, user: str) -> list[str]:
        """One user less. Returns what could not be undone."""


class HostWatch:
    """Of one process.

    Args:
        mode: the option ``stalls``.
        note: takes a sentence about a source of knowledge that is missing.
        requests: the context variables that have the request for which a task works, where that is set: one of an app,
            one stamped by hand.
    """

    def __init__(
        self,
        core: _hot.Core,
        mode: str,
        loops: Loops,
        note: Callable[[str], object],
        requests: tuple[ContextVar[Any], ContextVar[Any]],
    ) -> None:
        self._core = core
        self._mode = mode
        self._loops = loops
        self._note = note
        self._requests = requests
        self._links: set[type] = set()  # loops of which the core can name what a handle runs

    def start(self) -> None:
        """Loops that are hooked from now on have a clock; with "auto" a watchdog looks at them, once one is hooked."""
        code = (lambda: None).__code__
        library = os.path.dirname(os.__file__) + os.sep
        self._core.stalls(MODES.index(self._mode), sys.version_info[1], code, library)
        if self._mode == "auto":
            self._core.trust_frames(self._checked())
            self._core.contexts_at(self._context_place())

    def adopt(self, mode: str) -> None:
        """Another mode from now on."""
        if mode != self._mode:
            self.stop()  # what could not be undone is inert
            self._mode = mode
            self.start()

    def stop(self) -> list[str]:
        """Loops are as before, the watchdog ends. Returns what could not be undone, a sentence each."""
        report = self._loops.release(_USER)
        self._core.stalls(MODES.index("off"), sys.version_info[1], (lambda: None).__code__, "")
        return report

    def use_loop(self) -> None:
        """Time the loop that runs in this thread, if one does."""
        if self._mode == "off":
            return
        events: Any = sys.modules.get("asyncio.events")
        if events is not None:
            self._link(events._get_running_loop())
        if why := self._loops.use(_USER):
            self._note(f"stalls: {why}; what its thread does is not known")

    def _link(self, loop: Any) -> None:
        if type(loop) in self._links:
            return
        from tailwatch.stall.handle_links import samples  # imports asyncio

        self._links.add(type(loop))
        self._core.handle_links(samples(loop), (lambda: None).__code__, *self._requests)

    def asks_for_requests(self) -> bool:
        """Whether what handles run is separated by request."""
        return bool(self._links) and self._mode != "off"

    def works(self, needed: bool) -> None:
        """Called by the daemon: whether streams of other processes of the group wait for this one now. The watchdog
        runs meanwhile: that this process was stopped, or its engine's thread kept waiting, is seen here alone."""
        if self._mode == "auto":
            self._core.works(needed)

    def find_loops(self) -> None:
        """Called by the daemon: time the loops of other threads."""
        if self._mode != "off":
            self._loops.find(self.use_loop)

    def _context_place(self) -> int:
        """Where a thread's state has its context; 0: that is not known."""
        place = context_place(self._core)
        if place == 0 and self._core.state_words():
            self._note(
                "stalls: the context of a thread cannot be read here: between tokens on uvloop the request's own code "
                "is part of callback"
            )
        return place

    def _checked(self) -> int:
        """How far the reader of frames is right about this thread's own."""
        found, holder_is_known = _own_frames(self._core)
        if not found:
            self._note(
                f"the stacks of Python {sys.version_info[0]}.{sys.version_info[1]} cannot be read here: stalls have no "
                "function names"
            )
            return _DISTRUST
        return _TRUST_ALL if holder_is_known else _TRUST_STACKS


def context_place(core: _hot.Core) -> int:
    """The word of a thread's state that is the context in which it runs; 0 where it is not just one."""
    contexts = Context(), Context()
    found = [
        {place for place, word in enumerate(context.run(core.state_words)) if word == id(context)}
        for context in contexts
    ]
    both = found[0] & found[1]
    return both.pop() if len(both) == 1 else 0


def _own_frames(core: _hot.Core) -> tuple[bool, bool]:
    """Whether this thread's frames are read as they are, and whether it is seen to hold the interpreter lock."""
    frames, holds = core.own_frames()
    own = sys._getframe()
    return len(frames) >= 2 and _are_equal(frames, own), holds


def _are_equal(frames: list[tuple[str, str, int, int]], own: FrameType | None) -> bool:
    for function, file, line, _ in frames:
        if own is None:
            return False
        code = own.f_code
        name: str = getattr(code, "co_qualname", code.co_name)
        # The line of the innermost frame has moved on since.
        if not name.startswith(function) or not code.co_filename.endswith(file):
            return False
        if own is not sys._getframe(1) and line != own.f_lineno:
            return False
        own = own.f_back
    return True
