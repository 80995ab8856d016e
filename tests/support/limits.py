"""The limits of a test run: no test hangs, no process outlives it, and what must run alone does.

A test that exceeds its limit (pytest-timeout: 60 s, or its ``timeout`` marker) fails with the stacks of all threads of
this process and of its descendants. Where even that is not possible, because the interpreter does not run signal
handlers, the process writes the stacks of its threads to standard error and ends; pytest-xdist reports the test and
starts another process.
"""

from __future__ import annotations

import contextlib
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from . import guardian

GRACE_SECONDS = 40  # from a limit to the end of the process, where the test cannot be failed
AGAIN_SECONDS = 30  # after a limit, and longer than its report takes, where the test has caught its failure and goes on
PY_SPY = Path(sys.executable).with_name("py-spy")
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
    found = [process for process in psutil.Process().children(recursive=True) if not _is_guardian(process)]
    with ThreadPoolExecutor(8) as pool:
        return "\n".join(pool.map(_described, found))


def _is_guardian(process: psutil.Process) -> bool:
    return guardian.__file__ in _command(process)


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended, or is another user's
        return []


def _described(process: psutil.Process) -> str:
    return f"-- process {process.pid}: {_command(process)}\n{_python_stack(process.pid) or _kernel_stack(process.pid)}"


def _python_stack(pid: int) -> str:
    command = [PY_SPY, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):  # not installed, or held up
        return ""


def _kernel_stack(pid: int) -> str:
    try:
        return f"not read by py-spy; in the kernel at {Path(f'/proc/{pid}/wchan').read_text()}"
    except OSError as error:
        return str(error)


class Limits:
    """A pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._guardian = guardian.start()
        self._errors = os.dup(2)  # while pytest does not capture it
        self._locks = Path(tempfile.gettempdir()) / f"tailwatch-test-alone-{os.getuid()}-{_run(config)}"
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of ``nohup pytest &``; children inherit it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # a handler is not inherited: children have the default
            signal.signal(signal.SIGHUP, lambda *_: None)
        self._left: list[str] = []

    # No test hangs.

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """Instead of pytest-timeout's own timer."""

        def expire(number: int, frame: FrameType | None) -> None:
            report = f"{stacks_of_threads()}\n{stacks_of_descendants()}"
            pytest.fail(f"the limit of {settings.timeout:.0f} s\n{report}", pytrace=False)

        signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_SECONDS)
        faulthandler.dump_traceback_later(settings.timeout + GRACE_SECONDS, exit=True, file=self._errors)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        """Has no effect: pytest-timeout cancels where a test fails, and its teardown has a limit too."""
        return True

    def _cancel_timer(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

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
        try:  # with locks of the process, which a forked child does not have
            fcntl.lockf(turnstile, alone)  # else those in the room could follow each other for ever
            fcntl.lockf(room, alone)
            if alone is fcntl.LOCK_SH:
                fcntl.lockf(turnstile, fcntl.LOCK_UN)
            return (yield)
        finally:
            self._cancel_timer()
            os.close(room)
            os.close(turnstile)

    # No process outlives the run.

    @pytest.hookimpl(trylast=True)  # once the fixtures of the session have been torn down
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Ends what the tests left running, and fails the run for it."""
        if not self._config.pluginmanager.hasplugin("dsession"):  # whose children are the workers
            forked = {child for child in psutil.Process().children(recursive=True) if not _is_guardian(child)}
            marked = guardian.marked(os.environ[guardian.MARK])
            self._left += [_named(pid) for pid in {*marked, *(child.pid for child in forked if child.is_running())}]
            for child in forked:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
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
        return f"{pid} {_command(psutil.Process(pid))}"
    except psutil.NoSuchProcess:
        return f"{pid} (ended)"
