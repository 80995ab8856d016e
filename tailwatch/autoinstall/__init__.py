"""What tailwatch_boot calls once it has found something to watch: install() as automatic installation does it.

Options come from the TAILWATCH_* variables. Whatever is installed already is joined, and keeps its options.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import parent_process
from typing import Any

from tailwatch.integrations.process_roles import role_of_process
from tailwatch.runtime import install


def app(served: Any) -> Any:
    """Watch this process and an app that it is about to serve. Returns what to serve.

    Raises:
        OptionError: a bad TAILWATCH_* variable.
        TypeError: the app is not an ASGI 3 app.
    """
    return install.autoinstall_app(served)


def process() -> None:
    """Watch this process, which serves no app, or none yet.

    Raises:
        OptionError: a bad TAILWATCH_* variable.
    """
    install.autoinstall_process(role_of_process() or ("main" if parent_process() is None else "worker"))


def when_uninstalled(close: Callable[[], None]) -> None:
    """Have uninstall() call close(), once."""
    install.when_uninstalled(close)
