"""What an engine calls once for each iteration, by name, and how its batch is read.

A method is looked up in sys.modules and never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Said = tuple[int, "int | None"]
"""Requests in the batch, 0: nothing ran; and requests left with work to do, None: not known, or hidden behind a batch
that runs already."""

Read = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], Said]
"""What a step was: from the engine, the arguments of the call, and what it returned."""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """A method that is one iteration of an engine, or a part of one.

    read: may raise whatever it likes; the step then counts as one request.
    kept: engines look it up once, as they are made, so that what stands in its place then stays there.
    """

    module: str
    owner: str
    method: str
    read: Read
    kept: bool = False

    @property
    def name(self) -> str:
        """Where it stands, dotted."""
        return f"{self.module}.{self.owner}.{self.method}"

    def home(self) -> Any:
        """The class that has it, None where that is not loaded, or not yet, or has none of that name."""
        module = sys.modules.get(self.module)
        if not isinstance(module, ModuleType) or getattr(module.__spec__, "_initializing", False):
            return None
        owner = vars(module).get(self.owner)
        return owner if isinstance(owner, type) and callable(vars(owner).get(self.method)) else None
