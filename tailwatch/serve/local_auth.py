"""Being on this machine, proved by a file: what lets `tailwatch doctor URL` read a running server's numbers.

A request has the name of a file in /tmp and the secret in it. The server accepts it when that file belongs to the
user it runs as (or to root), no other user may read it, and it holds the secret. A page in a browser, a client behind a
reverse proxy and another user of the machine cannot make such a file; the server itself keeps nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

SNAPSHOT_PATH = "/tailwatch/snapshot"
HEADER = "x-tailwatch-proof"
_DIRECTORY = "/tmp"
_HEADER_VALUE = re.compile(r"(tailwatch-[A-Za-z0-9_]{1,32}) ([0-9a-f]{64})")


@contextmanager
def proof() -> Iterator[str]:
    """A value of HEADER that holds while the block runs. Raises OSError where /tmp cannot be written."""
    import secrets
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="tailwatch-", dir=_DIRECTORY) as file:
        secret = secrets.token_hex(32)
        file.write(secret.encode())
        file.flush()
        yield f"{os.path.basename(file.name)} {secret}"


def holds(value: str) -> bool:
    """Whether a value of HEADER proves that it comes from this machine. Opens a file: not on an event loop."""
    match = _HEADER_VALUE.fullmatch(value)
    if match is None:
        return False
    try:
        descriptor = os.open(os.path.join(_DIRECTORY, match[1]), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    from hmac import compare_digest

    try:
        return _is_private(os.fstat(descriptor)) and compare_digest(os.read(descriptor, 128), match[2].encode())
    finally:
        os.close(descriptor)


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_uid in (os.geteuid(), 0)
