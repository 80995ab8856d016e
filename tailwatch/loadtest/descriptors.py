"""How many sockets and files this process may have open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

try:
    import resource
except ImportError:  # Windows, which sets no such limit
    resource = None  # type: ignore[assignment]


def room() -> int | None:
    """The limit in force; None: there is none."""
    if resource is None:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def as_many_as_allowed() -> Iterator[None]:
    """A connection is a descriptor: as many as this user may have, meanwhile."""
    if resource is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
