"""Follows Triton as it compiles kernels in the engine's process: its two hooks, before and after, are chained.

Triton calls them for a kernel that it compiles or loads, never for a launch (triton/runtime/jit.py of 3.3.1 and 3.6.0).
Nothing of ours is raised into it, and what was hooked before us is called as it would be without us.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tailwatch import _hot

_PLACES = (  # module, path of the owner, names of the hooks before and after
    ("triton.knobs", "runtime", "jit_cache_hook", "jit_post_compile_hook"),  # from 3.4 on
    ("triton.runtime.jit", "JITFunction", "cache_hook", "compiled_hook"),
)
_MOST_OPEN = 64  # compilations that have begun: one that raises has no end


class KernelCompiles:
    """The hooks of one process.

    Args:
        record: called with a kernel's name and when its compilation began and ended, monotonic ns.
        note: called with a sentence for the doctor.
    """

    def __init__(self, record: Callable[[str, int, int], object], note: Callable[[str], object]) -> None:
        self._record = record
        self._note = note
        self._began: dict[Any, int] = {}
        self._owner: Any = None
        self._ours: dict[str, tuple[Any, Any]] = {}  # by name: ours, and what was there before

    def follow_loaded(self) -> None:
        """Chain the hooks where Triton is loaded, which an engine does before its first step."""
        if self._owner is not None:
            return
        for name, path, before, after in _PLACES:
            module = sys.modules.get(name)
            owner = getattr(module, path, None)
            if owner is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            if not (hasattr(owner, before) and hasattr(owner, after)):
                continue
            self._owner = owner
            self._chain(before, self._begin)
            self._chain(after, self._end)
            return

    def undo(self) -> list[str]:
        """Put the hooks back. Returns what could not be undone, a sentence each."""
        owner, ours, self._owner, self._ours = self._owner, self._ours, None, {}
        left = []
        for name, (hook, earlier) in ours.items():
            if getattr(owner, name) is hook:
                setattr(owner, name, earlier)
            else:
                left.append(f"Triton's {name} was replaced by other code after us: ours inside it only hands on")
        self._began.clear()
        return left

    def _chain(self, name: str, see: Callable[[dict[str, Any]], None]) -> None:
        earlier = getattr(self._owner, name)

        def hook(*args: Any, **kwargs: Any) -> Any:
            result = earlier(*args, **kwargs) if earlier is not None else None
            if not result and name in self._ours:  # true: another cache has the kernel
                try:
                    see(kwargs)
                except Exception as error:
                    self._note(f"compilations of kernels are not counted: {type(error).__name__}: {error}")
            return result

        self._ours[name] = (hook, earlier)
        setattr(self._owner, name, hook)

    def _begin(self, call: dict[str, Any]) -> None:
        if len(self._began) >= _MOST_OPEN:
            self._began.clear()
        self._began[_key(call)] = _hot.now()

    def _end(self, call: dict[str, Any]) -> None:
        began = self._began.pop(_key(call), None)
        if began is not None:
            self._record(call["fn"].name, began, _hot.now())


def _key(call: dict[str, Any]) -> tuple[str, str]:
    return call["fn"].name, str(call["key"])
