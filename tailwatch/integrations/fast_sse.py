"""The fast SSE path of this process: what it took over, how it is undone, and what is logged of it later."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailwatch.integrations import found

if TYPE_CHECKING:
    from tailwatch.integrations.fast_sse_targets import FastSSETarget, OnFallback, Undo

_PENDING_LIMIT = 256  # fallbacks that wait for the daemon; they are counted in any case
_HARMLESS = frozenset({"unsupported", "shapes"})  # beyond what the templates hold, and nothing went wrong

_MEANINGS = {
    "unsupported": "goes the server's own way (unsupported)",
    "shapes": "what was learned goes on, further shapes go the server's own way (shapes)",
    "differs": "goes the server's own way from now on (differs): a frame was not the server's, nor perhaps those since "
    "the comparison before",
    "error": "our own code failed, the server wrote the frame (error)",
}

logger = logging.getLogger("tailwatch")


class FastSSE:
    """Takes over what the loaded servers stream with.

    Args:
        count: called with shape and reason of each fallback, on the thread that serves.
        note: called with a sentence for the doctor.
    """

    def __init__(self, count: Callable[[str, str], None], note: Callable[[str], None]) -> None:
        self._count = count
        self._note = note
        self._undo: dict[str, Undo] = {}
        self._pending: deque[tuple[str, str]] = deque(maxlen=_PENDING_LIMIT)
        self._logged: set[str] = set()
        self._noted: set[str] = set()
        self._unlisten: Callable[[OnFallback], None] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is taken over, dotted names."""
        return tuple(self._undo)

    def wrap_loaded(self, *, last: bool = True) -> None:
        """Take over what is loaded by now. Never raises: what fails is noted, once, or, if it is not the last call,
        left for the next: its module may be half way through its import."""
        try:
            fresh = [target for target in found() if target.name not in self._undo]
        except Exception as error:
            self._note_once("fast_sse", f"fast_sse does nothing: {_reason(error)}")
            return
        for target in fresh:
            self._take_over(target, last)

    def listen(self) -> None:
        """Listen to the fallbacks of classes that other code accelerated, once that module is loaded; again does
        nothing."""
        module: Any = sys.modules.get("tailwatch.sse.accelerate")
        if self._unlisten is None and hasattr(module, "unlisten"):  # all of it is loaded
            module.listen(self._fell_back)
            self._unlisten = module.unlisten

    def unlisten(self) -> None:
        """Undo listen()."""
        if self._unlisten is not None:
            self._unlisten(self._fell_back)
            self._unlisten = None

    def _take_over(self, target: FastSSETarget, last: bool) -> None:
        try:
            self._undo[target.name] = target.accelerate(self._fell_back)
        except Exception as error:
            if last:
                self._note_once(target.name, f"fast_sse left {target.name} as it is: {_reason(error)}")

    def _note_once(self, name: str, sentence: str) -> None:
        if name not in self._noted:
            self._noted.add(name)
            self._note(sentence)

    def undo(self) -> list[str]:
        """Put everything back. Returns what could not be undone, a sentence each."""
        undos, self._undo = list(self._undo.items()), {}
        return [sentence for name, undo in reversed(undos) if (sentence := _undone(name, undo))]

    def _fell_back(self, shape: str, reason: str) -> None:
        self._count(shape, reason)
        self._pending.append((shape, reason))

    def log_fallbacks(self) -> None:
        """Log the fallbacks since the last call, once a shape."""
        while self._pending:
            shape, reason = self._pending.popleft()
            if shape not in self._logged and len(self._logged) < _PENDING_LIMIT:
                self._logged.add(shape)
                level = logging.INFO if reason in _HARMLESS else logging.WARNING
                logger.log(level, "fast_sse: %s: %s", shape, _MEANINGS.get(reason, reason))


def _undone(name: str, undo: Undo) -> str | None:
    try:
        return undo()
    except Exception as error:
        return f"fast_sse could not put {name} back: {_reason(error)}"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
