"""The limits of a test run: no test hangs, no process outlives it, and what must run alone does.

A test that exceeds its limit (pytest-timeout: 60 s, or its ``timeout`` marker) fails with the stacks of all threads of
this process and of its descendants. Where even that is not possible, because the interpreter does not run signal
handlers, the process writes its stacks and ends; pytest-xdist starts another one and reports the test.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from . import guardian

GRACE_SECONDS = 20  # from a limit to the end of the process, where the test cannot be failed
FRAMES = 12  # of a stack, the innermost: what is outside of them is pytest
KEY = "processes_left"


def stacks_of_threads() -> str:
    """Of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"-- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame)[-FRAMES:])}")
    return "\n".join(parts)


def stacks_of_descendants() -> str:
    """Of each process below this one: its command, and its Python stacks or where it is in the kernel."""
    parts = []
    for process in psutil.Process().children(recursive=True):
        try:
            if guardian.__file__ in process.cmdline():
                continue
            parts.append(f"-- process {process.pid} ({process.status()}): {process.cmdline()}\n{_stack(process.pid)}")
        except psutil.NoSuchProcess:
            continue
    return "\n".join(parts)


def _stack(pid: int) -> str:
    if "python" in os.path.basename(os.path.realpath(f"/proc/{pid}/exe")):
        command = ["py-spy", "dump", "--nonblocking", "--pid", str(pid)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
        except (OSError, subprocess.TimeoutExpired):  # not installed, or not permitted
            pass
    try:
        return f"in the kernel at {Path(f'/proc/{pid}/wchan').read_text()}"
    except OSError as error:
        return str(error)


class Limits:
    """A pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._guardian = guardian.start()
        self._locks = Path(tempfile.gettempdir()) / f"tailwatch-test-alone-{_run(config)}"
        self._left: list[str] = []

    # No test hangs.

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """Instead of pytest-timeout's own timer."""

        def expire(number: int, frame: FrameType | None) -> None:
            report = f"{stacks_of_threads()}\n{stacks_of_descendants()}"
            pytest.fail(f"the limit of {settings.timeout:.0f} s\n{report}", pytrace=False)

        signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        faulthandler.dump_traceback_later(settings.timeout + GRACE_SECONDS, exit=True)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool:
        """And its end."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        return True

    # What must run alone runs alone, and last.

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Those marked ``alone`` at the end."""
        items.sort(key=_is_alone)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """While a test marked ``alone`` runs, no other process of this run is in a test."""
        turnstile, room = (os.open(f"{self._locks}.{name}", os.O_CREAT | os.O_RDWR, 0o600) for name in ("gate", "room"))
        alone = fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH
        try:
            fcntl.flock(turnstile, alone)  # else those in the room could follow each other for ever
            fcntl.flock(room, alone)
            if alone is fcntl.LOCK_SH:
                fcntl.flock(turnstile, fcntl.LOCK_UN)
            return (yield)
        finally:
            for lock in (room, turnstile):
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may hold the file too
                os.close(lock)

    # No process outlives the run.

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Ends what the tests left running, and fails the run for it."""
        if not self._config.pluginmanager.hasplugin("dsession"):  # whose children are the workers
            self._left += [_named(pid) for pid in guardian.marked(os.environ[guardian.MARK])]
            guardian.kill_marked(os.environ[guardian.MARK])
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[KEY] = self._left
        if self._left and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker of pytest-xdist reports of itself at its end."""
        self._left += getattr(node, "workeroutput", {}).get(KEY, [])

    def pytest_unconfigure(self) -> None:
        """Removes the locks, where the run is this process's."""
        if not hasattr(self._config, "workerinput"):
            for lock in ("gate", "room"):
                Path(f"{self._locks}.{lock}").unlink(missing_ok=True)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Names the processes that were left."""
        for left in self._left:
            terminalreporter.write_line(f"left running by a test: {left}", red=True)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _run(config: pytest.Config) -> str:
    """A name that the processes of one run share, and no other run has."""
    return str(os.getppid() if hasattr(config, "workerinput") else os.getpid())


def _named(pid: int) -> str:
    try:
        return f"{pid} {psutil.Process(pid).cmdline()}"
    except psutil.NoSuchProcess:
        return f"{pid} (ended)"
