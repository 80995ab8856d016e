"""What the fast SSE path can take over, by name, and how that is done and undone.

A target is looked up in sys.modules and never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Protocol

from tailwatch.sse.accelerate import accelerate
from tailwatch.sse.verified_builder import GuardedBuilder

OnFallback = Callable[[str, str], object]
Undo = Callable[[], "str | None"]
"""Puts back what was there. Returns what could not be undone, a sentence."""

Make = Callable[[GuardedBuilder], Callable[..., str]]


class FastSSETarget(Protocol):
    """One thing to take over."""

    @property
    def name(self) -> str:
        """Where it stands, dotted."""

    def loaded(self) -> bool:
        """Whether its module is loaded."""

    def accelerate(self, on_fallback: OnFallback) -> Undo:
        """Take it over. Raises AttributeError or TypeError where it is not what it was."""


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A Pydantic class whose objects are streamed; its serialisation gets a template inside.

    text: the attribute of its objects that holds the token, for readers of the table.
    looks_at_no_text: the functions in Python that write its objects were read, and do not. Without it they go on
        writing what they wrote.
    """

    module: str
    attribute: str
    text: str
    looks_at_no_text: bool = False

    @property
    def name(self) -> str:
        """Where it stands, dotted."""
        return f"{self.module}.{self.attribute}"

    def loaded(self) -> bool:
        """Whether its module is loaded."""
        return self.module in sys.modules

    def accelerate(self, on_fallback: OnFallback) -> Undo:
        """Take it over. Raises AttributeError or TypeError where it is not what it was."""
        model = getattr(sys.modules[self.module], self.attribute)
        return accelerate(model, on_fallback=on_fallback, trust_serializers=self.looks_at_no_text).undo


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module, or a method of a class in it, that makes whole frames: construction is replaced too.

    owner: the class; "" for a function of the module, which other modules of its package may hold under the same name.
    """

    module: str
    attribute: str
    make: Make
    owner: str = ""

    @property
    def name(self) -> str:
        """Where it stands, dotted."""
        return ".".join(part for part in (self.module, self.owner, self.attribute) if part)

    def loaded(self) -> bool:
        """Whether its module is loaded."""
        return self.module in sys.modules

    def accelerate(self, on_fallback: OnFallback) -> Undo:
        """Take it over. Raises AttributeError or TypeError where it is not what it was."""
        module = sys.modules[self.module]
        home = getattr(module, self.owner) if self.owner else module
        original = vars(home).get(self.attribute)
        if not isinstance(original, FunctionType):
            raise TypeError(f"{self.name} is not a plain function")
        builder = GuardedBuilder(original, self.make, on_fallback=on_fallback)
        if not builder.same_signature:
            raise TypeError(f"{self.name} takes other arguments than it did")
        for place in self._places(home, original):
            setattr(place, self.attribute, builder.function)
        return lambda: self._undo(home, builder)

    def _places(self, home: Any, holding: object) -> Iterator[Any]:
        """Where it is held: its home, and the loaded modules of the package that imported it by name."""
        yield from (home,) if vars(home).get(self.attribute) is holding else ()
        if not self.owner:
            package = self.module.partition(".")[0]
            others = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package and m is not home]
            yield from (m for m in others if isinstance(m, ModuleType) and vars(m).get(self.attribute) is holding)

    def _undo(self, home: Any, builder: GuardedBuilder) -> str | None:
        builder.stop()
        covered = vars(home).get(self.attribute) is not builder.function
        for place in list(self._places(home, builder.function)):
            setattr(place, self.attribute, builder.original)
        return f"{self.name} was replaced by other code after us: ours inside it only hands on" if covered else None


@dataclass(frozen=True, slots=True)
class JsonDumps:
    """A module that writes its frames with json.dumps: it gets a ``json`` of its own, with another dumps."""

    module: str
    make: Make

    @property
    def name(self) -> str:
        """Where it stands, dotted."""
        return f"{self.module}.json.dumps"

    def loaded(self) -> bool:
        """Whether its module is loaded."""
        return self.module in sys.modules

    def accelerate(self, on_fallback: OnFallback) -> Undo:
        """Take it over. Raises AttributeError or TypeError where it is not what it was."""
        module: Any = sys.modules[self.module]
        theirs = module.json
        if not isinstance(theirs, ModuleType) or theirs.__name__ != "json":
            raise TypeError(f"{self.module}.json is not the standard library's")
        builder = GuardedBuilder(theirs.dumps, self.make, ascii=True, on_fallback=on_fallback)
        ours = ModuleType("json", theirs.__doc__)
        vars(ours).update({**vars(theirs), "dumps": builder.function})
        module.json = ours
        return lambda: self._undo(module, builder, ours, theirs)

    def _undo(self, module: Any, builder: GuardedBuilder, ours: ModuleType, theirs: ModuleType) -> str | None:
        builder.stop()
        if module.json is not ours:
            return f"{self.module}.json was replaced by other code after us: it stays as it is"
        module.json = theirs
        return None
