"""Changes modules of a server as they are imported, in every process that has this."""

from __future__ import annotations

from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any


class AtImport(MetaPathFinder):
    """Patches modules once they have run, by what stands at their names."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the others find, with the patch after it."""
        if name not in self._patches or self._asking:
            return None
        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), self._patches[name](module))  # type: ignore[method-assign]
        return spec
