"""What the public functions say on an operating system other than Linux."""

from __future__ import annotations

from typing import Any, NoReturn

from tailwatch.errors import UnsupportedError


def unsupported(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedError: watching a process works on Linux only."""
    raise UnsupportedError(
        "tailwatch watches processes on Linux only; here SLOs, saved snapshots and `tailwatch doctor FILE` work"
    )


Middleware = Watch = current = doctor = freeze = gc_status = install = load_signal = unsupported
profile = snapshot = step = stream = trace = uninstall = unsupported
