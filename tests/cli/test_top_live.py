"""`tailwatch top` in a terminal of its own, beside processes that know nothing of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.process import Python, clean_environment

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 30
API = """
import sys, time, tailwatch
async def app(scope, receive, send): pass
watch = tailwatch.install(app, dir=sys.argv[1], gc="observe")
print("ready", flush=True)
while True:
    with tailwatch.stream(model="m") as stream:
        for _ in range(50):
            stream.token()
            time.sleep(0.002)
"""
ENGINE = """
import gc, sys, tailwatch
watch = tailwatch.install(role="engine", dir=sys.argv[1], gc="observe")
gc.disable()
heap = [[i] for i in range(50_000)]
print("ready", flush=True)
for line in sys.stdin:
    if line == "stand still\\n":
        watch.core.policy_begin()
    elif line == "go on\\n":
        watch.core.policy_end()
    else:
        gc.collect()
    print("done", flush=True)
"""
ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>78]")


class Member(Python):
    """A process of the group."""

    def order(self, what: str) -> None:
        """Has it done when this returns."""
        self.write(what)
        assert self.read_line() == "done"


@contextlib.contextmanager
def member(code: str, directory: Path) -> Iterator[Member]:
    """One, once it has joined, until the block ends."""
    with Member(code, directory) as process:
        assert process.read_line() == "ready"
        yield process


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[Path, Member, Member]]:
    """A directory, its API process with a stream at work, and its engine."""
    directory = tmp_path / "group"
    with member(API, directory) as api, member(ENGINE, directory) as engine:
        yield directory, api, engine


class Screen:
    """tailwatch top in a pseudo terminal."""

    def __init__(self, *arguments: str, columns: int = 120, rows: int = 50) -> None:
        self._terminal, theirs = pty.openpty()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.raw, self._quiet = b"", False
        environment = clean_environment(TERM="xterm")
        environment.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailwatch", "top", *arguments],
            **{"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": environment},
            preexec_fn=_with_a_terminal,
        )

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], (), (), 0.05)
        if ready:
            self.raw += os.read(self._terminal, 65536)
        self._quiet = not ready
        return bool(ready)

    @property
    def frames(self) -> list[list[str]]:
        """The lines of each screen so far, the newest last: one that is still being drawn is left out."""
        parts = self.raw.replace(b"\r", b"").split(b"\x1b[H")[1 : None if self._quiet else -1]
        return [ESCAPES.sub(b"", part).decode(errors="replace").split("\n") for part in parts]

    def until(self, condition: Callable[[list[str]], object], *, fresh: bool = False) -> list[str]:
        """A screen of which this is true; fresh: drawn from now on."""
        deadline, seen = time.monotonic() + DEADLINE_SECONDS, len(self.frames) if fresh else 0
        while time.monotonic() < deadline and self.process.poll() is None:
            self._read()
            frames = self.frames
            for frame in frames[seen:]:
                if condition(frame):
                    return frame
            seen = max(seen, len(frames) - 1)
        raise AssertionError(self.raw.decode(errors="replace")[-4000:])

    def end(self) -> tuple[int, str]:
        """Its exit status, and what stands on the terminal when it has ended."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self._read()
        while self._read():
            pass
        after = self.raw.rpartition(b"\x1b[?1049l")[2]
        return self.process.returncode, ESCAPES.sub(b"", after).decode(errors="replace")

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was: its modes, the cursor, the screen."""
        last = (self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l"), b"\x1b[?1049l" in self.raw)
        return termios.tcgetattr(self._theirs) == self.modes and all(last)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._terminal)


def _with_a_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def top() -> Iterator[Callable[..., Screen]]:
    """Starts it; gone after the test."""
    started: list[Screen] = []

    def start(*arguments: str, **size: int) -> Screen:
        started.append(Screen(*arguments, **size))
        return started[-1]

    yield start
    for screen in started:
        screen.close()


def row(frame: list[str], name: str) -> str:
    """The line of a process."""
    return next((line.rstrip() for line in frame if line.startswith(name)), "")


def full_collections(frame: list[str]) -> int:
    """Of the engine."""
    cells = row(frame, "engine-0").split()
    return int(cells[3]) if len(cells) > 3 else 0


def lost_to_the_engine(frame: list[str]) -> bool:
    """Whether streams lost anything to its collections."""
    return any(re.match(r"engine +generation 2", line) for line in frame)


def test_a_planted_pause_shows_under_its_process(
    group: tuple[Path, Member, Member], top: Callable[..., Screen], tmp_path: Path
) -> None:
    """Collections of the engine, planted while it watches: counted there, charged to the streams as the engine's.
    Ctrl-C ends it with status 0, the terminal as it was and the last numbers on it; the directory is untouched."""
    directory, _, engine = group
    before = sorted(path.name for path in directory.iterdir())
    screen = top("--dir", str(directory), "--interval", "0.2", "--json", str(tmp_path / "top.json"))
    first = screen.until(lambda frame: row(frame, "engine-0"))
    count = full_collections(first)
    screen.until(lambda frame: "the last" in frame[0] and full_collections(frame) == 0)
    for _ in range(3):
        engine.order("collect")
    seen = screen.until(lambda frame: full_collections(frame) == 3)
    assert "gc2" in row(seen, "engine-0") and count < 3
    while not lost_to_the_engine(screen.until(lambda frame: True, fresh=True)):
        engine.order("collect")  # the API process looks for newcomers once a second
    screen.press(b"\x03")
    status, left = screen.end()
    assert (status, screen.restored) == (130, True)
    assert "engine-0" in left and "Traceback" not in left
    shown = json.loads((tmp_path / "top.json").read_text())
    assert {("engine", "gc2")} <= {(lost["source"], lost["cause"]) for lost in shown["lost"]}
    assert shown["in_flight"] <= 1 and shown["tokens"] > 0
    assert sorted(path.name for path in directory.iterdir()) == before


def test_open_pauses_and_processes_that_come_and_go(
    group: tuple[Path, Member, Member], top: Callable[..., Screen]
) -> None:
    """An open pause shows as it grows; another process appears; one that is killed is shown as ended."""
    directory, _, engine = group
    screen = top("--dir", str(directory), "--interval", "50ms")
    screen.until(lambda frame: row(frame, "engine-0").endswith("running"))
    engine.order("stand still")
    screen.until(lambda frame: "PAUSED for" in row(frame, "engine-0"))
    engine.order("go on")
    screen.until(lambda frame: row(frame, "engine-0").endswith("running"))
    with member(ENGINE, directory) as late:
        screen.until(lambda frame: str(late.pid) in row(frame, "engine-1"))
        late.order("collect")
    screen.until(lambda frame: row(frame, "engine-1").endswith("exited"))
    screen.press(b"q")
    assert screen.end()[0] == 0 and screen.restored


def test_it_follows_the_terminal_s_size(group: tuple[Path, Member, Member], top: Callable[..., Screen]) -> None:
    """Made narrow, it draws again at once, without waiting for its interval, and leaves columns out."""
    screen = top("--dir", str(group[0]), "--interval", "1h")
    screen.until(lambda frame: any("hand-over" in line for line in frame))
    screen.resize(40, 30)
    narrow = screen.until(lambda frame: any(line.startswith("latency") and "p90" not in line for line in frame))
    assert max(len(line.rstrip()) for line in narrow) <= 40
    screen.press(b"\x03")
    assert screen.end()[0] == 130


def test_ctrl_z_gives_the_terminal_back(group: tuple[Path, Member, Member], top: Callable[..., Screen]) -> None:
    """Stopped, the terminal is as it was; it goes on where it was continued."""
    screen = top("--dir", str(group[0]), "--interval", "0.1")
    screen.until(lambda frame: row(frame, "engine-0"))
    os.kill(screen.process.pid, signal.SIGTSTP)
    _, status = os.waitpid(screen.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    while screen._read():
        pass
    assert screen.restored
    screen.raw = b""
    os.kill(screen.process.pid, signal.SIGCONT)
    screen.until(lambda frame: row(frame, "engine-0"))
    os.kill(screen.process.pid, signal.SIGTERM)
    assert screen.end()[0] == 143 and screen.restored


def test_a_terminal_that_goes_away_ends_it(group: tuple[Path, Member, Member], top: Callable[..., Screen]) -> None:
    """Its window is closed: no process is left behind, and nothing has failed."""
    screen = top("--dir", str(group[0]), "--interval", "0.1")
    screen.until(lambda frame: row(frame, "engine-0"))
    os.close(screen._terminal)
    assert screen.process.wait(DEADLINE_SECONDS) == 0
    screen._terminal = os.open(os.devnull, os.O_RDONLY)


def test_a_group_that_vanishes_ends_it(group: tuple[Path, Member, Member], top: Callable[..., Screen]) -> None:
    """As after `tailwatch run`: status 0, the last numbers, and a sentence."""
    directory, api, engine = group
    screen = top("--dir", str(directory), "--interval", "0.1")
    screen.until(lambda frame: row(frame, "engine-0"))
    api.kill()
    engine.kill()
    screen.until(lambda frame: any("no process of the group is running" in line for line in frame))
    shutil.rmtree(directory)
    status, left = screen.end()
    assert (status, screen.restored) == (0, True)
    assert "engine-0" in left and "the group has ended" in left and f"{directory} is gone" in left.replace("\r\n", "")


def test_a_directory_that_turns_bad_is_a_failure(
    group: tuple[Path, Member, Member], top: Callable[..., Screen]
) -> None:
    """Once others may write to it, it is not read any more: status 1 and why."""
    directory = group[0]
    screen = top("--dir", str(directory), "--interval", "0.1")
    screen.until(lambda frame: row(frame, "engine-0"))
    directory.chmod(0o777)
    status, left = screen.end()
    assert (status, screen.restored) == (1, True)
    assert str(directory) in left.replace("\r\n", "") and "Traceback" not in left


def test_a_dead_group_is_one_table(group: tuple[Path, Member, Member], top: Callable[..., Screen]) -> None:
    """On a terminal too: everything its processes left, and the end."""
    directory, api, engine = group
    engine.order("collect")
    api.kill()
    engine.kill()
    screen = top("--dir", str(directory))
    status, printed = screen.end()
    assert status == 0 and "since the group started" in " ".join(printed.split())  # a long path breaks the line
    assert row(printed.replace("\r", "").split("\n"), "engine-0").endswith("exited")


def test_an_address_leads_to_the_group(tmp_path: Path, serve: Callable[..., Any]) -> None:
    """The server is asked once; with one that shares nothing it prints what to do."""
    import tailwatch

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Serves nothing."""

    def once(port: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tailwatch", "top", f"http://127.0.0.1:{port}", "--once"]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    for options, status, words in (({"dir": tmp_path / "g"}, 0, "api-0"), ({}, 2, "tailwatch run -- CMD")):
        watch = tailwatch.install(app, gc="observe", **options)  # type: ignore[arg-type]
        try:
            done = once(serve(watch.app).port)
        finally:
            tailwatch.uninstall()
        assert done.returncode == status, done.stderr
        assert words in done.stdout + done.stderr
