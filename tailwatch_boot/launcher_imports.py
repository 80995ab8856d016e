"""Importing tailwatch in an interpreter that does not have it, from where the launcher has it.

``tailwatch run`` may stand in another environment than the server. What it lends is itself: the package, the metadata
that hold its version, and the runtime of cffi, if the server's interpreter has none and can load it. Nothing else
of the launcher's environment becomes visible, and nothing stays in ``sys.meta_path``.
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
_LENT = ("tailwatch", "_cffi_backend")


class _LauncherFinder:
    """The last finder, asked when all others have nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What is launcher_importable, None for everything else."""
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [HOME]) if name in _LENT else None

    def find_distributions(self, context: Any) -> Any:
        """The metadata of tailwatch, as importlib.metadata asks for them."""
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        if context.name != "tailwatch":
            return iter(())
        return MetadataPathFinder.find_distributions(DistributionFinder.Context(name="tailwatch", path=[HOME]))


@contextmanager
def launcher_importable() -> Iterator[None]:
    """Inside, ``import tailwatch`` finds the interpreter's own, else the launcher's."""
    lender: Any = _LauncherFinder()
    sys.meta_path.append(lender)
    try:
        yield
    finally:
        without(lender)
