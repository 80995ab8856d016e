"""``tailwatch._hot`` where there is none: the names that the encoders and the load client use. What else it has
watches a process, and is refused when it is called."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from tailwatch.platform import unsupported
from tailwatch.pure.client_response import ClientResponse as Answer
from tailwatch.pure.client_response import now
from tailwatch.pure.template import PureEncoder as Encoder
from tailwatch.pure.template import PureTemplate as Template

__all__ = ["Answer", "Encoder", "Plans", "Template", "note", "now"]


def note(frame: bytes, tokens: int, choice: int, usage_tokens: int, done: bool, error: bool, /) -> bytes:
    """The frame. Its number of tokens is not kept: nothing counts them here."""
    return frame


class Plans:
    """As tailwatch._hot.Plans, with no plan: every object goes to the class's own method."""

    def __init__(self, model: type, original: Callable[..., str], *callbacks: object) -> None:
        self._original = original
        self.closed = False

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **options: Any) -> str:
        return self._original(*args, **options)

    def plans(self) -> tuple[()]:
        """None."""
        return ()

    def close(self) -> None:
        """It is closed from now on."""
        self.closed = True


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return unsupported
