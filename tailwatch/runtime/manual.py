"""Requests and engine steps stamped by hand: ``with tailwatch.stream(...)`` and ``with tailwatch.step(...)``."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, SupportsIndex, cast

from tailwatch.errors import OptionError

if TYPE_CHECKING:
    from tailwatch import _hot


class EnteredBlock:
    """For a context variable, which would keep a block alive that its task has dropped."""

    __slots__ = ("_block",)

    def __init__(self, block: StreamContext) -> None:
        self._block = weakref.ref(block)

    @property
    def stream(self) -> _hot.Stream | None:
        """Of a block that is neither left nor dropped."""
        block = self._block()
        return None if block is None else block.stream


by_hand_variable: ContextVar[EnteredBlock | None] = ContextVar("tailwatch_by_hand", default=None)
"""The block in which a task works: what it runs there is its stream's own code, and what tasks run that it starts."""


class StreamContext:
    """``with tailwatch.stream(...) as s`` and ``async with``: ends the stream as the block ends.

    Args:
        stream: which one.
        ended: called with it and the model afterwards; None: nothing is.
        model: that the request was made to; "": not named.
    """

    __slots__ = ("__weakref__", "_ended", "_entered", "_model", "_stream", "stream")

    def __init__(
        self, stream: _hot.Stream, ended: Callable[[_hot.Stream, str], object] | None = None, model: str = ""
    ) -> None:
        self._stream = stream
        self._ended = ended
        self._model = model
        self._entered: Token[EnteredBlock | None] | None = None
        self.stream: _hot.Stream | None = None
        """Inside the block; a context that outlives it has None."""

    def __enter__(self) -> _hot.Stream:
        self.stream = self._stream
        self._entered = by_hand_variable.set(EnteredBlock(self))
        return self._stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._stream.end(error)
        self.stream = None
        if self._entered is not None:
            with suppress(ValueError):  # a generator that was closed in another context
                by_hand_variable.reset(self._entered)
            self._entered = None
        if self._ended is not None:
            self._ended(self._stream, self._model)

    async def __aenter__(self) -> _hot.Stream:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)


def step_error(name: object, batch: object, waiting: object) -> OptionError:
    """Which argument of step() was refused, and what it takes."""
    if not isinstance(name, str):
        return OptionError.of("name", name, "expected a str, the kind of step")
    if not _is_count(batch):
        return OptionError.of("batch", batch, "expected a number of requests")
    return OptionError.of("waiting", waiting, "expected a number of requests, or None if unknown")


def _is_count(value: object) -> bool:
    """Whether C takes it: any whole number of a C long."""
    try:
        return 0 <= operator.index(cast("SupportsIndex", value)) < 1 << 63
    except TypeError:
        return False
