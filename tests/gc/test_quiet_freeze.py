"""An engine process, which has no requests of its own, freezes its heap when its group has no stream in flight."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch import _hot

from ..support.process import Python
from ..support.waiting import until

pytestmark = pytest.mark.integration

ENGINE = """
import json, sys
import tailwatch
watch = tailwatch.install(role="engine", dir=sys.argv[1], gc="freeze")
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    if line.strip() != "check only":
        watch.membership.renew()
    watch.coordinator.check()
    done = watch.gc.state.done
    print(json.dumps({"done": [each.reason for each in done], "load": watch.core.load()}), flush=True)
"""


class Engine(Python):
    """A process of the group whose daemon's check is also made when it is asked."""

    def look(self, what: str = "look") -> dict[str, Any]:
        """What it has frozen, and why; requests in flight and ever opened, as it sees them."""
        answer: dict[str, Any] = self.ask(what)
        return answer

    def sees(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Asks until it is so: a group's members are found within a second or two."""
        return until(lambda: seen if what(seen := self.look()) else None)


@contextmanager
def started(directory: Path) -> Iterator[Engine]:
    """One, until the block ends."""
    with Engine(ENGINE, directory) as engine:
        assert engine.read() is True
        yield engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with started(tmp_path / "group") as engine:
        yield engine


@pytest.fixture
def api(tmp_path: Path, engine: Engine) -> Iterator[tailwatch.Watch]:
    watch = tailwatch.install(role="api", dir=str(tmp_path / "group"), gc="observe")
    yield watch
    tailwatch.uninstall()


def test_an_engine_freezes_once_no_request_waits(engine: Engine, api: tailwatch.Watch) -> None:
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


SERVED = """
import sys
import tailwatch
tailwatch.install(role="api", dir=sys.argv[1], gc="observe")
for _ in range(40):
    with tailwatch.stream(model="m") as stream:
        stream.token()
"""


def serve(directory: Path) -> None:
    """40 requests of a process that ends then."""
    subprocess.run([sys.executable, "-c", SERVED, str(directory)], check=True)


def test_what_the_group_served_before_it_came_warms_no_engine(tmp_path: Path) -> None:
    """One that is started again would freeze, for good, before it has loaded its model."""
    serve(tmp_path / "group")
    with started(tmp_path / "group") as engine:
        for _ in range(3):
            seen = engine.look()
            assert (seen["load"], seen["done"]) == ([0, 40], [])
        serve(tmp_path / "group")
        engine.sees(lambda seen: bool(seen["done"] == ["first idle moment"]))


STREAMING = """
import sys
import tailwatch
tailwatch.install(role="api", dir=sys.argv[1], gc="observe")
with tailwatch.stream(model="m") as stream:
    stream.token()
    for _ in range(40):
        with tailwatch.stream(model="m") as served:
            served.token()
    print("streams", flush=True)
    sys.stdin.read()
"""


def test_a_stream_of_a_process_that_has_just_come_is_in_flight(engine: Engine, tmp_path: Path) -> None:
    """An engine looks around once more before it freezes: it has not seen that one yet."""
    assert engine.sees(lambda seen: True)["done"] == []
    with Python(STREAMING, tmp_path / "group") as late:
        assert late.read_line() == "streams"
        assert engine.look("check only") == {"done": [], "load": [1, 41]}


def test_streams_of_a_process_that_left_are_not_in_flight(tmp_path: Path) -> None:
    """What it left is not merged while another holds the lock, and it lives on: nothing waits for its streams."""
    watch = tailwatch.install(role="engine", dir=str(tmp_path), gc="observe")
    left = _hot.Core("api", 1, (0, 0, 0, 0, 0), 0, lambda scope: "", lambda sent, stream: sent)
    assert left.join(str(tmp_path), 0) is None
    stream = left.stream("m", "r", None, "", "")
    watch.membership.renew()
    assert watch.core.load() == (1, 1)
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        left.leave()
        assert watch.membership.load()[0] == 0
    finally:
        os.close(held)
        stream.close()
        tailwatch.uninstall()
