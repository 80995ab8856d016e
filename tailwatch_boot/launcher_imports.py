"""Importing tailwatch in an interpreter that does not have it, from where the launcher has it.

``tailwatch run`` may stand in another environment than the server. It makes importable itself and the runtime of
cffi, if the server's interpreter has none and can load it. Nothing else of the launcher's environment becomes visible,
and nothing stays in ``sys.meta_path``.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

from tailwatch_boot.import_hooks import without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec
    from typing import Any

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LAUNCHER_PACKAGES = ("tailwatch", "_cffi_backend")


class _LauncherFinder:
    """Gives way to all others, but not to a folder that happens to have the name: Python takes one for a package."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the launcher has, None for everything else."""
        if name not in _LAUNCHER_PACKAGES:
            return None
        from importlib.machinery import PathFinder

        for finder in [each for each in sys.meta_path if each is not self]:
            found = finder.find_spec(name, path, target)
            if found is not None and found.origin is not None:
                return found
        return PathFinder.find_spec(name, [HOME])


@contextmanager
def launcher_importable() -> Iterator[None]:
    """Inside, ``import tailwatch`` finds the interpreter's own, else the launcher's."""
    finder: Any = _LauncherFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        without(finder)
