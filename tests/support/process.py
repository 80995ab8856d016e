"""Child processes of tests. Each ends with its test, and with the test process (guardian.py)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .guardian import MARK
from .waiting import DEADLINE_SECONDS, until


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's environment without tailwatch's variables, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILWATCH")}
    return {**kept, **variables}


class Process:
    """A command with pipes, that exchanges lines with its test.

    env: the whole environment (by default the test's own). stderr: as of subprocess.Popen; by default the test's.
    Used as a context manager it is killed at the end, if it still runs.
    """

    def __init__(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> None:
        if env is not None and MARK in os.environ:
            env = {MARK: os.environ[MARK], **env}
        self.popen = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=env,
            cwd=cwd,
            start_new_session=start_new_session,
            pass_fds=pass_fds,
        )
        self.pid = self.popen.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def read_line(self) -> str:
        """The next line of its standard output, without the line end; AssertionError where it has ended."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, f"the child has ended: {self.popen.wait(30)}"
        return line.rstrip("\n")

    def read(self) -> Any:
        """The next line of its standard output, as JSON."""
        return json.loads(self.read_line())

    def write(self, line: object) -> None:
        """A line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def ask(self, line: object) -> Any:
        """Writes a line, and reads one as JSON."""
        self.write(line)
        return self.read()

    def finish(self, text: str | None = None, seconds: float = 50) -> tuple[str, str]:
        """Writes text, closes its standard input and waits for its end. What it wrote meanwhile: output, errors."""
        out, errors = self.popen.communicate(text, timeout=seconds)
        return out or "", errors or ""

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and its end; has no effect after the first time."""
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # of what was not written yet
                    pipe.close()


class Python(Process):
    """``python -c program arguments…``."""

    def __init__(self, program: str, *arguments: object, options: Sequence[str] = (), **how: Any) -> None:
        super().__init__(sys.executable, *options, "-c", program, *map(str, arguments), **how)


class Script(Process):
    """``python FILE arguments…``."""

    def __init__(self, file: Path | str, *arguments: object, **how: Any) -> None:
        super().__init__(sys.executable, str(file), *map(str, arguments), **how)


class Tailwatch(Process):
    """``python -m tailwatch arguments…``."""

    def __init__(self, *arguments: object, **how: Any) -> None:
        super().__init__(sys.executable, "-m", "tailwatch", *map(str, arguments), **how)


class Serving(Process):
    """A server under uvicorn. Its standard error is a file, which does not have to be read while it runs."""

    def __init__(self, *command: str | Path, log: Path, **how: Any) -> None:
        self._log = log
        with log.open("wb") as file:
            super().__init__(*command, stdout=subprocess.DEVNULL, stderr=file.fileno(), **how)

    def log(self) -> str:
        """What it has written to its standard error."""
        return self._log.read_text(errors="replace")

    @functools.cached_property
    def port(self) -> int:
        """Where it listens, once it does."""
        return int(until(self._address, "the server's address")[1])  # type: ignore[index]

    def _address(self) -> re.Match[str] | None:
        running = self.running
        found = re.search(r"running on http://127\.0\.0\.1:(\d+)", self.log())
        assert found or running, f"the server has ended: {self.log()}"
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Signals it, and waits for its end. What it has written."""
        self.signal(number)
        self.popen.wait(DEADLINE_SECONDS)
        return self.log()
