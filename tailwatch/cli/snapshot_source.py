"""The numbers of a server, read from its address, a file or standard input."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailwatch.errors import TailwatchError
from tailwatch.serve import local_auth

HOW_TO_SAVE = (
    "write one in the server with json.dump(tailwatch.snapshot().as_dict(), file), "
    "or read a running server on this machine: tailwatch doctor http://127.0.0.1:8000"
)


@contextmanager
def explained(whose: str) -> Iterator[None]:
    """Turns errors of reading into a TailwatchError with a message."""
    try:
        yield
    except TailwatchError:
        raise
    except urllib.error.HTTPError as error:
        error.close()  # it is an answer, too
        raise TailwatchError(
            f"{whose}: HTTP {error.code}; "
            "a server with tailwatch shows its numbers only to its own user on the same machine"
        ) from error
    except urllib.error.URLError as error:
        raise TailwatchError(f"{whose}: cannot connect: {error.reason}") from error
    except OSError as error:
        raise TailwatchError(f"{whose}: {error.strerror or error}") from error
    except ValueError as error:
        raise TailwatchError(f"{whose}: not valid JSON: {error}") from error


def read(file: str) -> Mapping[str, Any]:
    """A saved snapshot, or what a server answers. Inside `explained`."""
    data = json.loads(_text(file))
    if not isinstance(data, dict):
        raise TailwatchError(f"{file}: not a snapshot (expected a JSON object); {HOW_TO_SAVE}")
    return data


def _text(file: str) -> str:
    if file.startswith(("http://", "https://")):
        url = urllib.parse.urljoin(file, local_auth.SNAPSHOT_PATH)
        with local_auth.proof() as value:
            request = urllib.request.Request(url, headers={local_auth.HEADER: value})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read(), "utf-8")
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
