"""Parent and children talk in JSON lines over the children's stdin and stdout, never over the measured sockets."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailwatch.errors import TailwatchError

if TYPE_CHECKING:
    from types import TracebackType

Line = dict[str, Any]
STDERR_LINES = 15
PATIENCE = 60.0  # seconds without a word after which a child counts as lost


class ChildError(TailwatchError):
    """A child of the demo ended or fell silent; the message has the end of its stderr."""


class ParentPipe:
    """The child's end. Takes over stdout; what the program prints goes to stderr from then on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def receive(self) -> Line | None:
        """The next line from the parent; None when the parent is gone."""
        text = sys.stdin.readline()
        return json.loads(text) if text else None

    def send(self, line: Line) -> None:
        """One line to the parent."""
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


class Child:
    """The parent's end: a process that runs `module`.main(). Leaving the context ends it, whatever happened."""

    def __init__(self, module: str) -> None:
        self.name = module.rpartition(".")[2]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        # Without the current directory in sys.path: the installed package, never a source tree beside us.
        code = f"import sys; sys.path[:] = [p for p in sys.path if p]; from {module} import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self._buffer = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(hurry=kind is not None)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, line: Line, patience: float = PATIENCE) -> Line:
        """Send one line, receive one. ChildError when the child ends, or writes nothing for `patience` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._lost("ended") from None
        until = time.monotonic() + patience
        while b"\n" not in self._buffer:
            self._buffer += self._read(until)
        text, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(text))

    @property
    def ended(self) -> bool:
        """Whether the process has."""
        return self._process.poll() is not None

    def check(self) -> None:
        """ChildError when the process has ended."""
        if self.ended:
            raise self._lost("ended")

    def close(self, *, hurry: bool = False) -> None:
        """End the process: closed pipes first, then a signal, then a stronger one. hurry: a signal at once."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # it ended with a line unread: there is nothing left to close
            self._process.stdin.close()
        pushes = (self._process.terminate, self._process.kill)
        if not any(self._wait(push, 0.5 if hurry else 5.0) for push in (() if hurry else (None,)) + pushes):
            raise ChildError(f"the demo's {self.name} process {self.pid} does not end")
        self._process.stdout.close()
        self._stderr.close()

    def _wait(self, push: Callable[[], None] | None, seconds: float) -> bool:
        """Whether it ends within these seconds, after a push if one is given."""
        if push is not None:
            push()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self, until: float) -> bytes:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise self._lost("fell silent")
        data = os.read(self._process.stdout.fileno(), 1 << 20)
        if not data:
            raise self._lost("ended")
        return data

    def _lost(self, how: str) -> ChildError:
        if how == "ended":
            try:
                how = f"ended with status {self._process.wait(5)}"
            except subprocess.TimeoutExpired:
                how = "closed its pipe"
        self._stderr.seek(0)
        tail = self._stderr.read().decode(errors="replace").splitlines()[-STDERR_LINES:]
        shown = "\n".join(f"    {line}" for line in tail) or "    (nothing)"
        return ChildError(f"the demo's {self.name} process {how}; the end of its stderr:\n{shown}")
