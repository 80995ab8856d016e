"""Putting a function of ours in the place of another's, and taking it away again."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Undo = Callable[[], None]


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Undo:
    """Put make(original) in the place of a function, or of a method's plain or static function.

    Raises AttributeError or TypeError where there is none. What others put there after us stays when it is undone.
    """
    from functools import wraps  # here: each interpreter with TAILWATCH set imports this file, few replace anything

    if name not in vars(owner):
        raise AttributeError(f"{owner.__name__} has no {name}")
    original = vars(owner)[name]
    static = isinstance(original, staticmethod)
    function = original.__func__ if static else original
    if not callable(function):
        raise TypeError(f"{owner.__name__}.{name} is not a function")
    wrapped = wraps(function)(make(function))
    ours = staticmethod(wrapped) if static else wrapped
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner).get(name) is ours:
            setattr(owner, name, original)

    return undo
