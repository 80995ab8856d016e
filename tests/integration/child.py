"""A process of a test's own, that runs a program text and is talked to by lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class Child:
    """``python -c program arguments…``. What it prints is read with read(), what it is to do is told a line each."""

    def __init__(self, program: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid

    def read(self) -> Any:
        """The next line that it prints; JSONDecodeError where it has ended."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def say(self, what: str) -> None:
        """A line on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Ends it, as nothing that it could notice; more than once does no harm."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
