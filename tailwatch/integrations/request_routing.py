"""The engine that a server has chosen for a request binds the stream of that request.

A server with several engines chooses in one function, which runs in the task that serves the request. It is wrapped
where it stands: it does what it did, and what it returned is looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from types import FunctionType
from typing import Any, Protocol


class Bindable(Protocol):
    """A stream."""

    def bind(self, engine: str | int | None, *, part: bool = False) -> None:
        """Finds which engine serves it, or a part of it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A method that chooses an engine, by module, class and name. engine_of: its number, from what the method returned;
    None where that names none. It may raise."""

    module: str
    owner: str
    method: str
    engine_of: Callable[[Any], int | None]

    @property
    def name(self) -> str:
        """Where it stands, dotted."""
        return f"{self.module}.{self.owner}.{self.method}"


class Routing:
    """Wraps the choices of the servers that are loaded.

    Args:
        choices: all that are known.
        stream: that of the request that the calling task serves, None where it serves none.
        failed: called inside the handler of an exception of ours.
    """

    def __init__(
        self, choices: tuple[Choice, ...], stream: Callable[[], Bindable | None], failed: Callable[[], object]
    ) -> None:
        self._waiting = list(choices)
        self._stream = stream
        self._failed = failed
        self._wrapped: list[tuple[Choice, type, FunctionType, FunctionType]] = []
        self._inert = False

    def active(self) -> bool:
        """Whether anything asks for the stream."""
        return bool(self._wrapped)

    @property
    def names(self) -> tuple[str, ...]:
        """What is wrapped, dotted names."""
        return tuple(choice.name for choice, *_ in self._wrapped)

    def wrap_loaded(self) -> None:
        """Wrap what is loaded by now. Cheap where nothing is; never raises."""
        for choice in [each for each in self._waiting if each.module in sys.modules]:
            owner = getattr(sys.modules[choice.module], choice.owner, None)
            if not isinstance(owner, type):
                continue  # its module is half way through its import, or another than the known one
            try:
                self._waiting.remove(choice)
            except ValueError:  # another thread, the daemon's or the one that starts the app, has just wrapped it
                continue
            original = vars(owner).get(choice.method)
            if isinstance(original, FunctionType):
                ours = self._around(original, choice.engine_of)
                setattr(owner, choice.method, ours)
                self._wrapped.append((choice, owner, original, ours))

    def undo(self) -> list[str]:
        """Put everything back. Returns what could not be undone, a sentence each."""
        self._inert = True
        wrapped, self._wrapped = self._wrapped, []
        return list(_put_back(wrapped))

    def _around(self, original: FunctionType, engine_of: Callable[[Any], int | None]) -> FunctionType:
        @wraps(original)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self._inert:
                self._bind(result, engine_of)
            return result

        return chosen  # type: ignore[return-value]  # a closure is a FunctionType

    def _bind(self, result: Any, engine_of: Callable[[Any], int | None]) -> None:
        try:
            stream = self._stream()
            if stream is not None and (engine := engine_of(result)) is not None:
                stream.bind(engine, part=True)  # one request may have several, for several prompts or choices
        except Exception:
            self._failed()


def _put_back(wrapped: list[tuple[Choice, type, FunctionType, FunctionType]]) -> Iterator[str]:
    for choice, owner, original, ours in reversed(wrapped):
        if vars(owner).get(choice.method) is ours:
            setattr(owner, choice.method, original)
        else:
            yield f"{choice.name} was replaced by other code after us: ours inside it only hands on"
