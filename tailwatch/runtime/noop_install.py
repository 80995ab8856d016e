"""install() and its like on a system other than Linux: the app is served unchanged, and nothing is measured."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from tailwatch.errors import NotInstalledError
from tailwatch.options.config import Config
from tailwatch.platform import WORKS_ELSEWHERE, unsupported
from tailwatch.runtime.manual import StreamContext
from tailwatch.runtime.noop import NoopStep, NoopStream

if TYPE_CHECKING:
    from tailwatch import _hot

logger = logging.getLogger("tailwatch")

_current: NoopWatch | None = None
_warned = False


class NoopWatch:
    """What install() returns here: a Watch that measures nothing.

    Attributes:
        app: what to serve: the object that was installed.
        config: the options, checked.
    """

    snapshot = load_signal = trace = freeze = refreeze = gc_status = doctor = staticmethod(unsupported)

    def __init__(self, config: Config, app: Any) -> None:
        self.config = config
        self.app = app
        self.notes: list[str] = []

    def stream(self, *, arrival: int | None = None, **labels: object) -> StreamContext:
        """A request stamped by hand, which nothing counts."""
        return StreamContext(cast("_hot.Stream", NoopStream(arrival)))

    def step(self, name: str, *, batch: int = 1, waiting: int | None = None) -> NoopStep:
        """A step that nothing counts."""
        return NoopStep(name, batch, waiting)


class NoopMiddleware:
    """Middleware, which forwards all requests unchanged.

    Raises:
        OptionError: a bad option.
    """

    def __init__(self, app: Any, **options: object) -> None:
        self.app = app
        install(app, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI entry point."""
        await self.app(scope, receive, send)


def install(app: Any = None, **options: object) -> NoopWatch:
    """Check the options, warn once that nothing is measured here, and change nothing.

    Raises:
        OptionError: a bad option.
    """
    global _current, _warned
    config = Config.load(app=app is not None, **options)
    if not _warned:
        _warned = True
        logger.warning("tailwatch: install() measures nothing on this system: it needs Linux; %s", WORKS_ELSEWHERE)
    if _current is None:
        _current = NoopWatch(config, app)
    elif _current.app is None:
        _current.app = app
    return _current


def uninstall() -> list[str]:
    """Forget the installation. Returns what could not be undone: nothing."""
    global _current
    _current = None
    return []


def current() -> NoopWatch:
    """The Watch of this process.

    Raises:
        NotInstalledError: install() was not called.
    """
    if _current is None:
        raise NotInstalledError("tailwatch is not installed in this process: call tailwatch.install(app) first")
    return _current


def stream(*, arrival: int | None = None, **labels: object) -> StreamContext:
    """A request stamped by hand, which nothing counts.

    Raises:
        NotInstalledError: install() was not called.
    """
    return current().stream(arrival=arrival)


def step(name: str, *, batch: int = 1, waiting: int | None = None) -> NoopStep:
    """A step that nothing counts.

    Raises:
        NotInstalledError: install() was not called.
    """
    return current().step(name, batch=batch, waiting=waiting)
