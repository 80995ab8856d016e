"""The fault server for live tests, in a process of its own, ended with the test."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("fault_server.py")


class Fault:
    """A running fault server."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def url(self, **how: object) -> str:
        """Of completions, answered as ordered."""
        query = "&".join(f"{name}={value}" for name, value in how.items())
        return f"http://127.0.0.1:{self.port}/v1/completions?{query}"

    def truth(self) -> dict[str, Any]:
        """What it stamped itself."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/truth", timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def end(self) -> None:
        """It ends with its standard input."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def fault_server() -> Iterator[Callable[..., Fault]]:
    """Starts one with the given options."""
    started: list[Fault] = []

    def start(*options: str) -> Fault:
        started.append(Fault(*options))
        return started[-1]

    yield start
    for server in started:
        server.end()
