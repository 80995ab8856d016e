"""Ranges of your own beside tailwatch's, in the NVTX domain ``tailwatch``, for Nsight Systems and its like.

    from tailwatch import nvtx

    with nvtx.range("prefill", payload=request_number):  # also async with: it may lie across an await
        ...
    nvtx.mark("evicted", payload=blocks)

``range`` and ``mark`` need no package: tailwatch sends them to the tool itself, while it is installed and a tool is
attached; else they do nothing. ``annotate`` and ``domain`` are those of the PyPI package ``nvtx``, in the same domain,
and do nothing where that is not installed. Tools keep each text for ever: put what varies into ``payload``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tailwatch import platform

if TYPE_CHECKING:
    from tailwatch import _hot

DOMAIN = "tailwatch"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def attached() -> bool:
    """Whether a tool listens, and this process sends to it (see the option ``nvtx``)."""
    return _core() is not None


class range:
    """``with`` or ``async with``: a range in the tool, from the thread that enters to whichever leaves.

    Args:
        name: what it is called. 256 texts are kept apart, further ones are "other".
        payload: a number that is shown with it, as a signed one of 64 bits: ids, sizes. Of a larger one the low 64.

    The same object may be entered again, also while it is open. In a fork child nothing of the parent's is ended.
    """

    __slots__ = ("_open", "_payload", "name")

    def __init__(self, name: str, *, payload: int = 0) -> None:
        self.name = name
        self._payload = payload
        self._open: list[tuple[_hot.Core, int, int] | None] = []

    def __enter__(self) -> range:
        core = _core()
        opened = None if core is None else (core, *core.nvtx_begin(core.nvtx_name(self.name), self._payload))
        self._open.append(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (opened := self._open.pop()) is not None:
            core, number, begun = opened
            core.nvtx_end(number, begun)

    async def __aenter__(self) -> range:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def mark(name: str, *, payload: int = 0) -> None:
    """An instant in the tool. See ``range`` for both arguments."""
    core = _core()
    if core is not None:
        core.nvtx_mark(core.nvtx_name(name), payload)


def annotate(message: str | None = None, **options: Any) -> Any:
    """``nvtx.annotate`` of the PyPI package in our domain: a context manager and a decorator. Without the package an
    inert one, which leaves a decorated function as it is."""
    package = _package()
    return _Inert() if package is None else package.annotate(message, domain=DOMAIN, **options)


def domain() -> Any:
    """Our domain as an object of the PyPI package (``push_range``, ``pop_range``, ``start_range``, ``end_range``,
    ``mark``, ...); without the package one that does nothing."""
    package = _package()
    return _InertDomain() if package is None else package.get_domain(DOMAIN)


def _core() -> _hot.Core | None:
    if not platform.LINUX:
        return None
    from tailwatch.runtime.install import nvtx_core

    return nvtx_core()


def _package() -> ModuleType | None:
    try:
        return import_module("nvtx")
    except ImportError:
        return None


class _Inert:
    """What annotate() gives without the package."""

    def __enter__(self) -> _Inert:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def __call__(self, function: _Function) -> _Function:
        return function


class _InertDomain:
    """What domain() gives without the package: every method takes anything and returns None."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None
