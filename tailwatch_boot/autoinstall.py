"""Automatic installation in one process: import hooks, the apps and processes found, and the removal of all of it."""

from __future__ import annotations

import os
import sys

from tailwatch_boot import asgi_servers, processes
from tailwatch_boot.import_hooks import ImportHooks
from tailwatch_boot.monkeypatch import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_TRUE = ("1", "true", "yes", "on")
_GROUP = "TAILWATCH_DIR"
_IN_MEMORY = "/dev/shm"
_current: Autoinstall | None = None


def current() -> Autoinstall | None:
    """The automatic installation of this process; None where it was not begun."""
    return _current


def begin(word: str) -> None:
    """Open them, once; ``word`` is the value of ``TAILWATCH``, in lower case."""
    global _current
    if _current is None:
        _current = Autoinstall(None if word in _TRUE else f"TAILWATCH={word}: expected one of {', '.join(_TRUE)}")
        _current.open()


class Autoinstall:
    """refusal: why nothing may come through, a sentence; it is logged at the first server that is seen."""

    def __init__(self, refusal: str | None = None) -> None:
        self._refusal = refusal
        self._logged = False
        self._closed = False
        self._undo: list[Callable[[], None]] = []
        self._waiting = ImportHooks(
            {
                **{name: self._at_server for name in asgi_servers.SERVERS},
                **{name: self._at_marker for name in processes.MARKERS},
                **{name: self._at_other for name in processes.OTHER_SERVERS},
                "multiprocessing.context": self._at_spawning,
                "multiprocessing.util": self._at_forking,
            }
        )

    def open(self) -> None:
        """Begin to wait."""
        self._waiting.start()

    def close(self) -> None:
        """Take back everything; what a server holds on to lets its app through as it is."""
        self._closed = True
        self._waiting.forget()
        undo, self._undo = self._undo, []
        for each in undo:
            try:
                each()
            except Exception:  # what was replaced has become read-only: it lets everything through from now on
                continue

    # ---- what comes by ----

    def watched(self, app: Any) -> Any:
        """What to serve in the place of an app. Never raises."""
        if self._closed:
            return app
        served = self._through("app", app)
        if served is None:
            processes.note("app", type(app).__name__)
            return app
        self._waiting.forget((*asgi_servers.SERVERS, *processes.MARKERS, *processes.OTHER_SERVERS))
        return served

    def elsewhere(self, server: str, error: Exception) -> None:
        """A server does not keep its app where we look for it."""
        package = server.partition(".")[0]
        processes.note("app", package)
        version = getattr(sys.modules.get(package), "__version__", "of an unknown version")
        self._log(f"{package} {version} is not watched: its app was not found where expected ({error})")

    def called_by_server(self) -> None:
        """A server has called our plugin: a child of its is watched from now on. Where a command began, the app or
        an import is not enough: many commands of a server do not serve."""
        parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", lambda: None)
        if parent() is not None:
            self._watch_process()

    def _gather(self) -> None:
        """A server's processes are a group, also where none was named: those that it starts find it in their
        environment. Its directory is made by the first that joins."""
        if _GROUP in os.environ or self._refusal is not None or not processes.may_serve():
            return
        if sys.platform != "linux" or not os.access(_IN_MEMORY, os.W_OK):
            return
        path = os.environ[_GROUP] = f"{_IN_MEMORY}/tailwatch-run-{os.urandom(4).hex()}"

        def undo() -> None:
            if os.environ.get(_GROUP) == path:
                del os.environ[_GROUP]

        self._undo.append(undo)

    def _at_server(self, module: ModuleType) -> None:
        self._gather()
        try:
            self._undo.append(asgi_servers.SERVERS[module.__name__](module, self))
        except Exception as error:
            self.elsewhere(module.__name__, error)

    def _at_marker(self, module: ModuleType) -> None:
        if not processes.is_helper():
            self._waiting.forget(processes.MARKERS)
            self._gather()
            self._watch_process()

    def _at_other(self, module: ModuleType) -> None:
        processes.note("server", processes.OTHER_SERVERS[module.__name__])

    def _at_forking(self, module: ModuleType) -> None:
        try:
            module.register_after_fork(self, Autoinstall._in_child)  # forkserver's children too
        except Exception:
            return

    def _at_spawning(self, module: ModuleType) -> None:
        def make(after_fork: Any) -> Any:
            def after_spawn() -> None:
                after_fork()
                self._in_child()

            return after_spawn

        try:
            self._undo.append(replace(module.SpawnProcess, "_after_fork", make))
        except Exception:
            return

    def _in_child(self) -> None:
        try:
            from multiprocessing.process import current_process

            wanted = self._inherited() or processes.is_worker(current_process())
        except Exception:
            return
        if wanted:
            self._watch_process()

    def _inherited(self) -> bool:
        """Whether a fork has brought us here already at work: then all that is left is what this process is."""
        watch = sys.modules.get("tailwatch.runtime.install")
        return watch is not None and getattr(watch, "_current", None) is not None

    # ---- the way in ----

    def _watch_process(self) -> None:
        if not self._closed and self._refusal is None:
            self._through("process")

    def _through(self, what: str, *arguments: Any) -> Any:
        """Calls autoinstall_app or autoinstall_process. None where that fails: logged once, and all is removed."""
        if self._refusal is not None:
            self._log(self._refusal)
            return None
        try:
            from tailwatch_boot.launcher_imports import launcher_importable

            with launcher_importable():  # what is imported is imported here: later nothing is
                from tailwatch.runtime import install
            install.when_uninstalled(self.close)
            return getattr(install, f"autoinstall_{what}")(*arguments)
        except Exception as error:
            self.close()
            self._log(f"{_reason(error)}; the server runs without tailwatch")
            return None

    def _log(self, sentence: str) -> None:
        if not self._logged:
            self._logged = True
            import logging

            logging.getLogger("tailwatch").warning("tailwatch: %s", sentence)


def _reason(error: Exception) -> str:
    if sys.version_info < (3, 10):  # noqa: UP036
        return f"tailwatch needs CPython 3.10 or later; this is {sys.version.partition(' ')[0]}"
    if isinstance(error, ImportError):
        return f"tailwatch cannot be imported in {sys.executable} ({error})"
    return str(error) if type(error).__module__.startswith("tailwatch") else f"{type(error).__name__}: {error}"
