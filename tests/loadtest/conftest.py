"""The fault server for live tests, in a process of its own, ended with the test."""

from __future__ import annotations

import contextlib
import gc
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailwatch import cli

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


@pytest.fixture(autouse=True)
def _frozen() -> Iterator[None]:
    """The heap of the test process: a run in it collects first, a third of a second each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fault_server() -> Iterator[Callable[..., Fault]]:
    """Starts one with the given options."""
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> Fault:
            server = Fault(*options)
            stack.enter_context(server)
            return server

        yield start


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`tailwatch ARGUMENTS` in this process: its exit status, output and errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.main([str(one) for one in arguments]), *capsys.readouterr()

    return call
