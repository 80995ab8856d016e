"""One hook per ASGI server: a function that is called with the app, in the process that serves it, before it serves.

Each hook replaces a function in a module that has just been imported, and returns how to undo that. Where the server's
version has another layout it raises AttributeError or TypeError, and the server is left as it is.

Read in uvicorn 0.54.0, hypercorn 0.18.0, granian 2.8.7, gunicorn 27.0.1, daphne 4.2.3.
"""

from __future__ import annotations

from tailwatch_boot.monkeypatch import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Protocol

    from tailwatch_boot.monkeypatch import Undo

    class Watcher(Protocol):
        """Takes the apps that servers load. Neither method raises."""

        def watched(self, app: Any) -> Any:
            """What to serve in the place of an app."""

        def elsewhere(self, server: str, error: Exception) -> None:
            """A server was read wrongly: its app is not where it was."""

    Hook = Callable[[ModuleType, Watcher], Undo]


def uvicorn(module: ModuleType, watcher: Watcher) -> Undo:
    """``Config.load`` of any Config, also of gunicorn's uvicorn workers, leaves what to serve in ``loaded_app``."""

    def make(load: Any) -> Any:
        def loaded(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(self, *args, **kwargs)
            watch_attribute(self, "loaded_app", watcher)
            return result

        return loaded

    return replace(module.Config, "load", make)


def hypercorn(module: ModuleType, watcher: Watcher) -> Undo:
    """``worker_serve`` is given a wrapper with the interface that the app has; old versions give the app."""

    def make(worker_serve: Any) -> Any:
        async def serve(app: Any, *args: Any, **kwargs: Any) -> Any:
            kind = type(app).__name__
            if kind == "ASGIWrapper":
                watch_attribute(app, "app", watcher)
            elif kind != "WSGIWrapper":
                app = watcher.watched(app)
            return await worker_serve(app, *args, **kwargs)

        return serve

    return replace(module, "worker_serve", make)


def granian(module: ModuleType, watcher: Watcher) -> Undo:
    """Its worker hands the ASGI app to the lifespan protocol and to a wrapper of requests: both get the same."""
    known: list[tuple[Any, Any]] = []

    def once(app: Any) -> Any:
        for theirs, ours in known:
            if app is theirs or app is ours:
                return ours
        known.append((app, watcher.watched(app)))
        return known[-1][1]

    def make_wrapper(wrapper: Any) -> Any:
        return lambda app, *args, **kwargs: wrapper(once(app), *args, **kwargs)

    def make_init(init: Any) -> Any:
        return lambda self, app, *args, **kwargs: init(self, once(app), *args, **kwargs)

    undo_wrapper = replace(module, "_callback_wrapper", make_wrapper)
    try:
        undo_init = replace(module.LifespanProtocol, "__init__", make_init)
    except Exception:
        undo_wrapper()
        raise

    def undo() -> None:
        undo_wrapper()
        undo_init()

    return undo


def gunicorn(module: ModuleType, watcher: Watcher) -> Undo:
    """Its own ASGI worker loads the app into ``asgi`` after the fork."""

    def make(load: Any) -> Any:
        def loaded(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(self, *args, **kwargs)
            watch_attribute(self, "asgi", watcher)
            return result

        return loaded

    return replace(module.ASGIWorker, "load_wsgi", make)


def daphne(module: ModuleType, watcher: Watcher) -> Undo:
    """Its server holds the app in ``application``, which it calls for each request."""

    def make(run: Any) -> Any:
        def running(self: Any, *args: Any, **kwargs: Any) -> Any:
            watch_attribute(self, "application", watcher)
            return run(self, *args, **kwargs)

        return running

    return replace(module.Server, "run", make)


def watch_attribute(owner: Any, name: str, watcher: Watcher) -> None:
    """Put what is to be served in the place of the app that an attribute holds. Never raises."""
    try:
        app = getattr(owner, name)
        ours = watcher.watched(app)
        if ours is not app:
            setattr(owner, name, ours)
    except Exception as error:
        watcher.elsewhere(type(owner).__module__, error)


SERVERS: dict[str, Hook] = {
    "uvicorn.config": uvicorn,
    "hypercorn.asyncio.run": hypercorn,
    "hypercorn.trio.run": hypercorn,
    "granian.asgi": granian,
    "gunicorn.workers.gasgi": gunicorn,
    "daphne.server": daphne,
}
"""By the module that is hooked."""
