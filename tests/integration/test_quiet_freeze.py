"""An engine process, which has no requests of its own, freezes its heap when its group has no stream in flight."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailwatch

ENGINE = """
import json, sys
import tailwatch
watch = tailwatch.install(role="engine", dir=sys.argv[1], gc="freeze")
print(json.dumps(watch.company.joined), flush=True)
for line in sys.stdin:
    watch.company.renew()
    watch._check_gc()
    done = watch.gc.state.done
    print(json.dumps({"done": [each.reason for each in done], "load": watch.core.load()}), flush=True)
"""


class Engine:
    """A process of the group whose daemon's check is also made when it is asked."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-c", ENGINE, str(directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() is True

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def look(self) -> dict[str, Any]:
        """What it has frozen, and why; requests in flight and ever opened, as it sees them."""
        assert self.process.stdin is not None
        self.process.stdin.write("look\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = self._read()
        return answer

    def sees(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Asks until it is so: a group's members are found within a second or two."""
        deadline = time.monotonic() + 30
        while not what(seen := self.look()):
            assert time.monotonic() < deadline, seen
        return seen


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "group")
    yield engine
    engine.process.kill()
    engine.process.communicate()


@pytest.fixture
def api(tmp_path: Path, engine: Engine) -> Iterator[tailwatch.Watch]:
    watch = tailwatch.install(role="api", dir=str(tmp_path / "group"), gc="observe")
    yield watch
    tailwatch.uninstall()


def test_an_engine_freezes_once_nobody_waits(engine: Engine, api: tailwatch.Watch) -> None:
    """Not before a request has come, not while one is in flight; and once more after warm-up, then never again."""
    assert engine.sees(lambda seen: True)["done"] == []
    with tailwatch.stream(model="m") as stream:
        stream.token()
        seen = engine.sees(lambda seen: bool(seen["load"] == [1, 1]))
        assert seen["done"] == []
    engine.sees(lambda seen: bool(seen["done"] == ["first idle moment"]))
    with tailwatch.stream(model="m"):
        for _ in range(40):
            with tailwatch.stream(model="m") as stream:
                stream.token()
        seen = engine.sees(lambda seen: bool(seen["load"] == [1, 42]))
        assert seen["done"] == ["first idle moment"]
    engine.sees(lambda seen: bool(seen["done"] == ["first idle moment", "warm-up"]))
    for _ in range(40):
        with tailwatch.stream(model="m") as stream:
            stream.token()
    assert engine.sees(lambda seen: bool(seen["load"] == [0, 82]))["done"] == ["first idle moment", "warm-up"]


def test_streams_of_a_killed_process_are_not_in_flight(engine: Engine, tmp_path: Path) -> None:
    """Else an engine would wait for ever for a moment without them."""
    killed = """
import os, signal, sys
import tailwatch
tailwatch.install(role="api", dir=sys.argv[1], gc="observe")
stream = tailwatch.stream(model="m").__enter__()
stream.token()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "group")], check=False)
    assert engine.sees(lambda seen: bool(seen["load"] == [0, 1]))
    engine.sees(lambda seen: bool(seen["done"] == ["first idle moment"]))
