"""A fresh server for one run: started, waited for, and stopped again with everything it started, whatever happens."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import IO

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.interrupts import HANGUP, arrived, is_ours

POLL = 0.05  # seconds
GENTLE = 10.0  # seconds between SIGTERM and SIGKILL
HURRIED = 1.0  # after Ctrl-C
LAST_WORDS = 2000  # characters of its output, in an error
PORT = "{port}"


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def command_of(written: str, words: Sequence[str], port: int) -> list[str]:
    """A server's command with a variant's words behind it, and the port in the place of {port}.

    Raises:
        OptionError: it is no command.
    """
    try:
        parts = [*shlex.split(written), *words]
    except ValueError as error:
        raise OptionError.of("server", written, f"expected a command: {error}") from error
    if not parts or not parts[0]:
        raise OptionError.of("server", written, "expected a command")
    return [part.replace(PORT, str(port)) for part in parts]


@contextlib.contextmanager
def server(
    command: Sequence[str], environment: Mapping[str, str], host: str, port: int, *, path: str | None, patience: float
) -> Iterator[Callable[[], str]]:
    """Runs a server inside. Ready: it accepts connections, and answers a GET of path with 2xx where one is given.

    It gives a function: how the server has ended meanwhile, and its last words; "" while it runs. Its whole process
    group gets SIGTERM afterwards, and SIGKILL where that does not end it; a SIGTERM or SIGHUP to ourselves ends it too.

    Raises:
        TailwatchError: it could not be started, died, or was not ready in time; the message has its last words.
    """
    _wait_until_free(host, port)
    with tempfile.TemporaryFile() as output, _terminable():
        process: subprocess.Popen[bytes] | None = None
        try:
            with _signals_held():
                process = _start(command, environment, output.fileno())
            _wait_until_ready(process, output, host, port, path, patience)
            yield lambda: "" if process.poll() is None else f"{_status(process)}{_last_words(output)}"
        finally:
            if process is not None:
                _stop(process)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Signals that end this process arrive at the end of the block: a server that was started is known by then."""
    came: list[int] = []
    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int] = {}
    main = threading.current_thread() is threading.main_thread()
    try:
        for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if main else ():
            found = signal.getsignal(number)
            if found is not None and found != signal.SIG_IGN:  # what is ignored here is ignored in the server, too
                before[number] = found
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def _start(command: Sequence[str], environment: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise TailwatchError(f"{command[0]}: the server could not be started: {error}") from error


def _wait_until_ready(
    process: subprocess.Popen[bytes], output: IO[bytes], host: str, port: int, path: str | None, patience: float
) -> None:
    deadline = time.monotonic() + patience
    while not (_accepts(host, port) and (path is None or _answers(host, port, path))):
        if process.poll() is not None:
            raise TailwatchError(f"the server ended before it was ready ({_status(process)}){_last_words(output)}")
        if time.monotonic() > deadline:
            raise TailwatchError(f"the server was not ready after {patience:g} s on port {port}{_last_words(output)}")
        time.sleep(POLL)


def _wait_until_free(host: str, port: int) -> None:
    """The last one's port closes a moment after it was killed."""
    deadline = time.monotonic() + GENTLE
    while _accepts(host, port):
        if time.monotonic() > deadline:
            raise TailwatchError(f"port {port}: another server listens there; each run needs a fresh one")
        time.sleep(POLL)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _answers(host: str, port: int, path: str) -> bool:
    """Whether a GET gives 2xx."""
    request = f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n".encode()
    try:
        with socket.create_connection((host, port), timeout=5.0) as asked:
            asked.sendall(request)
            return asked.recv(64).split(b" ")[1:2][0].startswith(b"2")
    except (OSError, IndexError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Also what it started itself: its session is its own."""
    try:
        _signal(process, signal.SIGTERM)
        process.wait(HURRIED if arrived() else GENTLE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To its process group, which outlives it where children of it do."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """What ends a program becomes an exit that stops the server first. Only the main thread can set that."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, HANGUP)}
    may = threading.current_thread() is threading.main_thread()
    mine = [number for number, now in before.items() if may and now not in (signal.SIG_IGN, None) and not is_ours(now)]
    for number in mine:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _status(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _last_words(output: IO[bytes]) -> str:
    """The end of what it printed."""
    number = output.fileno()
    size = os.fstat(number).st_size
    words = os.pread(number, LAST_WORDS, max(0, size - LAST_WORDS)).decode("utf-8", "replace").strip()
    return f"; its last words:\n{words}" if words else ", and printed nothing"
