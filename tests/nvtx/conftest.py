"""An NVTX tool of our own, built here, and scripts that run under it in a fresh interpreter."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "csrc" / "third_party"


@dataclass(frozen=True)
class Event:
    """One call of the tool, see tests/native/nvtx_inject.c."""

    at: int
    pid: int
    tid: int
    what: str
    domain: str
    text: str
    category: int
    payload: Any
    registered: bool
    range: int
    depth: int


@dataclass(frozen=True)
class Range:
    """A range that began and ended: its begin, and its end."""

    begin: Event
    end: Event


class Story:
    """All that the tool saw, in the order in which it came."""

    def __init__(self, events: list[Event], printed: str) -> None:
        self.events = events
        self.printed = printed

    def __call__(self, what: str, text: str | None = None, domain: str = "tailwatch") -> list[Event]:
        """Calls of a kind, of a text (None: of any)."""
        return [e for e in self.events if e.what == what and e.domain == domain and text in (None, e.text)]

    @property
    def categories(self) -> dict[int, str]:
        """Names by number."""
        return {e.category: e.text for e in self("category")}

    def before(self, event: Event) -> Event:
        """The call of the same thread before this one; names of categories and texts are none."""
        earlier = (e for e in self.events[: self.events.index(event)] if (e.pid, e.tid) == (event.pid, event.tid))
        return [e for e in earlier if e.what not in ("category", "register")][-1]

    def pushed(self, text: str | None = None, *, open_ends: int = 0) -> list[Range]:
        """Push/pop ranges. Each pop has a push, of its thread and depth; open_ends of all pushes have no pop."""
        stacks: dict[tuple[int, int], list[Event]] = defaultdict(list)
        found: list[Range] = []
        for e in self.events:
            if e.domain != "tailwatch" or e.what not in ("push", "pop"):
                continue
            stack = stacks[e.pid, e.tid]
            if e.what == "push":
                assert e.depth == len(stack), e
                stack.append(e)
            else:
                assert stack, f"a pop without a push: {e}"
                begin = stack.pop()
                assert e.depth == begin.depth and e.at >= begin.at
                found.append(Range(begin, e))
        left = [e for stack in stacks.values() for e in stack]
        assert len(left) == open_ends, left
        return [r for r in found if text in (None, r.begin.text)]

    def started(self, text: str | None = None, *, open_ends: int = 0) -> list[Range]:
        """Start/end ranges. Each end has a start, in the same process; open_ends of all starts have no end."""
        open_: dict[tuple[int, int], Event] = {}
        found: list[Range] = []
        for e in self.events:
            if e.domain != "tailwatch" or e.what not in ("start", "end"):
                continue
            if e.what == "start":
                open_[e.pid, e.range] = e
            else:
                assert (e.pid, e.range) in open_, f"an end without a start: {e}"
                found.append(Range(open_.pop((e.pid, e.range)), e))
        assert len(open_) == open_ends, list(open_.values())
        return [r for r in found if text in (None, r.begin.text)]


@pytest.fixture(scope="session")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tool as a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here (Debian package: gcc): the NVTX tool of these tests cannot be built")
    library = tmp_path_factory.mktemp("nvtx") / "nvtx_inject.so"
    source = ROOT / "tests" / "native" / "nvtx_inject.c"
    command = [compiler, "-std=gnu11", "-O2", "-shared", "-fPIC", "-isystem", str(HEADERS), str(source)]
    subprocess.run([*command, "-o", str(library), "-ldl"], check=True, capture_output=True)
    return library


def run_script(path: Path, script: str, **environment: str) -> str:
    """What a script printed, run in a fresh interpreter."""
    path.mkdir(exist_ok=True)
    file = path / "script.py"
    file.write_text(script)
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONUNBUFFERED": "1", **environment}
    done = subprocess.run([sys.executable, str(file)], env=env, cwd=path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


RECORD = struct.Struct("=qqQiiiI12s32sBB2x168s")


def read_story(file: Path, printed: str = "") -> Story:
    """What the tool kept; nothing where it was never asked."""
    data = file.read_bytes() if file.exists() else bytes(RECORD.size)
    (used,) = struct.unpack_from("=Q", data)
    return Story([event_of(RECORD.unpack_from(data, RECORD.size * (1 + n))) for n in range(used)], printed)


def event_of(record: tuple[Any, ...]) -> Event:
    """One record of tests/native/nvtx_inject.c."""
    at, payload, number, pid, tid, depth, category, *texts, registered, has_payload, text = record
    what, domain, text = (each.split(b"\0")[0].decode() for each in (*texts, text))
    payload = payload if has_payload else None
    return Event(at, pid, tid, what, domain, text, category, payload, bool(registered), number, depth)


@pytest.fixture
def watched(tool: Path, tmp_path: Path) -> Callable[..., Story]:
    """watched(script, **environment): runs a script under the tool; returns what it saw."""

    def run(script: str, **environment: str) -> Story:
        witness = tmp_path / "witness"
        witness.unlink(missing_ok=True)
        paths = {"NVTX_INJECTION64_PATH": str(tool), "NVTX_WITNESS_FILE": str(witness)}
        return read_story(witness, run_script(tmp_path, script, **{**paths, **environment}))

    return run


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., str]:
    """alone(script, **environment): runs a script without a tool; returns what it printed."""
    return lambda script, **environment: run_script(tmp_path, script, **environment)
