"""Follows Triton as it compiles kernels in the engine's process: as the listener of its compiler, chained.

Triton calls the listener with what each stage took, once a kernel is there (triton/compiler/compiler.py, 3.6.0), not
for a launch. Its hooks around a compilation are left alone: while one of them is set, Triton serializes the kernel's
constants first, which raises where one of these is a function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tailwatch import _hot

_MODULE = "triton.knobs"  # from 3.4 on


class KernelCompiles:
    """The listener of one process.

    Args:
        record: called with a kernel's name and when its compilation began and ended, monotonic ns.
        note: called with a sentence for the doctor.
    """

    def __init__(self, record: Callable[[str, int, int], object], note: Callable[[str], object]) -> None:
        self._record = record
        self._note = note
        self._knobs: Any = None
        self._ours: Callable[..., Any] | None = None
        self._earlier: Callable[..., Any] | None = None

    def follow_loaded(self) -> None:
        """Listen where Triton is loaded, which an engine does before its first step."""
        knobs: Any = getattr(sys.modules.get(_MODULE), "compilation", None)
        if self._knobs is not None or not hasattr(knobs, "listener"):
            return
        self._knobs, self._earlier, self._ours = knobs, knobs.listener, self._listener(knobs.listener)
        knobs.listener = self._ours

    def undo(self) -> list[str]:
        """Put the listener back. Returns what could not be undone, a sentence each."""
        knobs, ours, self._knobs, self._ours = self._knobs, self._ours, None, None
        if knobs is None:
            return []
        if knobs.listener is not ours:
            return [
                "the listener of Triton's compiler was replaced by other code after us: ours inside it only hands on"
            ]
        knobs.listener = self._earlier
        return []

    def _listener(self, earlier: Callable[..., Any] | None) -> Callable[..., Any]:
        def listener(*args: Any, **kwargs: Any) -> Any:
            if self._ours is listener:
                try:
                    self._see(**kwargs)
                except Exception as error:
                    self._note(f"compilations of kernels are not counted: {type(error).__name__}: {error}")
            return earlier(*args, **kwargs) if earlier is not None else None

        return listener

    def _see(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        now = _hot.now()
        if not cache_hit:
            self._record(str(src.name), now - 1000 * int(times.total), now)
