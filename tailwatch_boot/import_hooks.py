"""Calls an action when a module has been imported, without importing it, and without leaving a trace on it."""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[ModuleType], None]


def without(finder: Any) -> None:
    """Take a finder out of ``sys.meta_path``. Another thread may be walking along the list: it gets a new one."""
    sys.meta_path = [each for each in sys.meta_path if each is not finder]


class ImportHooks:
    """Calls an action when the module it waits for has been imported, once; then that module is waited for no more.

    It stands in ``sys.meta_path`` while it waits for anything. It finds nothing itself: the finders behind it are
    asked, and what they found is passed on when its code has run. Actions must not raise.
    """

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = dict(actions)
        self._asking: set[tuple[int, str]] = set()

    def start(self) -> None:
        """Begin to wait; modules that are there already are passed on now."""
        sys.meta_path.insert(0, self)
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self.done(module, name)

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Wait no more: for these, or for anything."""
        for name in tuple(self._actions) if names is None else names:
            self._actions.pop(name, None)
        if not self._actions and self in sys.meta_path:
            without(self)

    @property
    def names(self) -> tuple[str, ...]:
        """What is waited for."""
        return tuple(self._actions)

    def done(self, module: ModuleType, name: str) -> None:
        """The code of a module has run."""
        action = self._actions.get(name)
        self.forget((name,))
        if action is not None:
            action(module)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What the finders behind this one find; None for what is not waited for, and for a reload."""
        asking = (get_ident(), name)
        if name not in self._actions or target is not None or asking in self._asking:
            return None  # the last: a finder behind us asks all others
        self._asking.add(asking)
        try:
            spec = self._found_behind(name, path)
        finally:
            self._asking.discard(asking)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _NotifyingLoader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def _found_behind(self, name: str, path: Any) -> ModuleSpec | None:
        finders: list[Any] = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, None) if find is not None else None
            if spec is not None:
                return spec
        return None


class _NotifyingLoader:
    """A loader that puts the one it stands for back before the module's code runs, and passes it on afterwards. It
    equals that one, and copies of it are copies of that one."""

    def __init__(self, loader: Any, waiting: ImportHooks) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_waiting") or name.startswith("__"):  # asked before __init__, or for our own type
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._loader == (other._loader if isinstance(other, _NotifyingLoader) else other))

    def __hash__(self) -> int:
        return hash(self._loader)

    def __reduce_ex__(self, protocol: Any) -> Any:
        from copy import copy

        return copy, (self._loader,)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code. Raises what that raises."""
        spec = module.__spec__
        if spec is not None and spec.loader is self:  # type: ignore[comparison-overlap]
            spec.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException as error:  # before Python 3.11 our frame stays in its traceback
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise
        self._waiting.done(module, module.__name__)
