"""The numbers of a server, read from its address, a file or standard input."""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.options.slo import parse_window
from tailwatch.serve import local_auth

HOW_TO_SAVE = (
    "write one in the server with json.dump(tailwatch.snapshot().as_dict(), file), "
    "or read a running server on this machine: tailwatch doctor http://127.0.0.1:8000"
)

_HOST_AND_PORT = re.compile(r"(\[[0-9a-f:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}(/.*)?")
_PATIENCE_SECONDS = 30


def add_source(parser: argparse.ArgumentParser) -> None:
    """Whose numbers: `file` or `dir`, or neither."""
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "file",
        nargs="?",
        metavar="URL|FILE",
        help="URL of a server on this machine, or a snapshot saved as JSON ('-': standard input)",
    )
    whose.add_argument(
        "--dir", metavar="DIR", help="directory of the process group, running or exited (default: found automatically)"
    )


class NotServedError(TailwatchError):
    """A server answers, and has no tailwatch."""


@contextmanager
def explained(whose: str) -> Iterator[None]:
    """Turns errors of reading into a TailwatchError with a message."""
    try:
        yield
    except TailwatchError:
        raise
    except urllib.error.URLError as error:
        raise TailwatchError(f"{whose}: cannot connect: {error.reason}") from error
    except OSError as error:
        raise TailwatchError(f"{whose}: {error.strerror or error}") from error
    except ValueError as error:
        raise TailwatchError(f"{whose}: not valid JSON: {error}") from error


def check_window(file: str | None, window: str) -> None:
    """OptionError where a window is none, or where nothing keeps the past: only a running server does."""
    parse_window(window)
    if file is None or url_of(file) is None:
        expected = "expected the URL of a running server beside it: a file and a group's directory keep no past"
        raise OptionError.of("window", window, expected)


def read(file: str, window: str | None = None) -> Mapping[str, Any]:
    """A saved snapshot, or what a server answers, of the last window ("10m"). Inside `explained`."""
    data = json.loads(_text(file, window))
    if not isinstance(data, dict):
        raise TailwatchError(f"{file}: not a snapshot (expected a JSON object); {HOW_TO_SAVE}")
    return data


def url_of(file: str) -> str | None:
    """The address of a server, "localhost:8000" too; None: it is a file."""
    if file.startswith(("http://", "https://")):
        return file
    return f"http://{file}" if _HOST_AND_PORT.fullmatch(file) and not Path(file).exists() else None


def _text(file: str, window: str | None) -> str:
    if (url := url_of(file)) is not None:
        return _asked(url, window)
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _asked(url: str, window: str | None) -> str:
    """What the server answers.

    Raises:
        TailwatchError: it has no tailwatch, or shows its numbers to other clients only.
        OSError: it cannot be reached.
    """
    where = urllib.parse.urljoin(url, local_auth.SNAPSHOT_PATH) + (f"?window={window}" if window else "")
    try:
        with local_auth.proof() as value:
            request = urllib.request.Request(where, headers={local_auth.HEADER: value})
            with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
                kind, text = answer.headers.get_content_type(), str(answer.read(), "utf-8", "replace")
        if kind == "application/json":
            return text
        reason = f"it answers {kind}"
    except urllib.error.HTTPError as error:
        error.close()  # it is an answer, too
        reason = f"HTTP {error.code}"
    if _has_metrics(url):
        raise TailwatchError(
            f"{url}: {reason}; a server with tailwatch shows its numbers only to its own user on the same machine"
        )
    raise NotServedError(
        f"{url}: {reason}: tailwatch is not installed there (or is of another version, or behind a proxy); "
        "start the server with `tailwatch run -- CMD`"
    )


def _has_metrics(url: str) -> bool:
    """Whether tailwatch's metrics are at one of their paths."""
    for path in ("/metrics", "/tailwatch/metrics"):
        try:
            with urllib.request.urlopen(urllib.parse.urljoin(url, path), timeout=_PATIENCE_SECONDS) as answer:
                if b"tailwatch_build_info" in answer.read():
                    return True
        except (OSError, ValueError):
            continue
    return False
