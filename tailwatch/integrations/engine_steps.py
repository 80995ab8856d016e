"""What an engine calls once for each iteration, by name, and how its batch is read.

A method is looked up in sys.modules and never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

BatchSize = tuple[int, "int | None"]
"""Requests in the batch, 0: nothing ran; and requests left with work to do, None: not known, or hidden behind a batch
that runs already."""

Read = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], BatchSize]
"""What a step was: from the engine, the arguments of the call, and what it returned."""

Rank = tuple[str, int, int]
"""A step of one rank: its mark, the same in all ranks and of no other step near it; the number of the rank, and of the
group of those that it meets in each layer."""

ReadRank = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], "Rank | None"]
"""From the worker and the arguments of the call; None: it meets no others in it."""


@dataclass(frozen=True, slots=True)
class Part:
    """A method that an engine's loop calls on its scheduler, or on what that holds.

    name: from the scheduler on, dotted. Where what stands before the last dot is None, there is nothing to read.
    what: what it is to ``_hot.SchedulerSteps.around()``; "": its name is that.
    without: what is not known where it is absent; "": then no step is.
    view: the method of the reader that gives what stands for its arguments and its result; "": they are vLLM's.
    formerly: its name in versions that do not have it by that.
    """

    name: str
    what: str = ""
    without: str = ""
    view: str = ""
    formerly: str = ""


@dataclass(frozen=True, slots=True)
class Following:
    """How the steps of an engine are read one by one, each from its schedule to its update. All of it may raise.

    scheduler: the object whose methods are called, of the engine; None: not of this one.
    model: the name of its model, of the engine; "": it is not found.
    reader: reads an engine that is not vLLM's: it holds its scheduler weakly and has ``running``, ``waiting`` and the
        views of the parts; ``recorded_by``, if it has that, is called with the recorder of its steps. None: the
        scheduler has what is read.
    """

    scheduler: Callable[[Any], Any]
    parts: tuple[Part, ...]
    model: Callable[[Any], str]
    reader: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a class, by where it stands."""

    module: str
    owner: str
    method: str

    @property
    def name(self) -> str:
        """Where it stands, dotted."""
        return f"{self.module}.{self.owner}.{self.method}"

    @property
    def absent(self) -> str:
        """A sentence where its module is loaded and has no such method: another version than is known. Else ""."""
        module = sys.modules.get(self.module)
        if module is None or getattr(module.__spec__, "_initializing", False) or self.home() is not None:
            return ""
        return f"{named(self.module)} has no {self.owner}.{self.method} in {self.module}: {self.without}"

    @property
    def without(self) -> str:
        """What is not known where it is absent."""
        return "its steps are not counted"

    def home(self) -> Any:
        """The class that has it, None where that is not loaded, or not yet, or has none of that name."""
        module = sys.modules.get(self.module)
        if not isinstance(module, ModuleType) or getattr(module.__spec__, "_initializing", False):
            return None
        owner = vars(module).get(self.owner)
        return owner if isinstance(owner, type) and callable(vars(owner).get(self.method)) else None


@dataclass(frozen=True, slots=True)
class RankStep(Method):
    """A method that computes one rank's part of a step, in a process of its own. It is no step of an engine.

    read: may raise whatever it likes; nothing is recorded of that step then.
    """

    read: ReadRank

    @property
    def without(self) -> str:
        """What is not known where it is absent."""
        return "which rank its steps wait for is not known"


@dataclass(frozen=True, slots=True)
class EngineStep(Method):
    """A method that is one iteration of an engine, or a part of one.

    read: may raise whatever it likes; the step then counts as one request.
    kept: engines look it up once, as they are made, so that what stands in its place then stays there.
    following: None: its steps are counted only.
    queues: it may begin a batch and answer another: its batch is the one that was answered.
    """

    read: Read
    kept: bool = False
    following: Following | None = None
    queues: bool = False


def named(module: str) -> str:
    """The package of a module, with the version that it gives itself: "vllm 0.33.0"."""
    package = module.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{package} {version}" if isinstance(version, str) else package
