"""The fault server for live tests, in a process of its own, ended with the test."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.process import Script

SERVER = Path(__file__).with_name("fault_server.py")


class Fault(Script):
    """A running fault server."""

    def __init__(self, *options: str) -> None:
        super().__init__(SERVER, *options)
        self.port = self.read()

    def url(self, **how: object) -> str:
        """Of completions, answered as ordered."""
        query = "&".join(f"{name}={value}" for name, value in how.items())
        return f"http://127.0.0.1:{self.port}/v1/completions?{query}"

    def truth(self) -> dict[str, Any]:
        """What it stamped itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/truth", timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


@pytest.fixture
def fault_server() -> Iterator[Callable[..., Fault]]:
    """Starts one with the given options."""
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> Fault:
            server = Fault(*options)
            stack.enter_context(server)
            return server

        yield start
