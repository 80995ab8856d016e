"""The demo's client: the load tester, beside a server that may end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the demo's client needs it: pip install '.[demo]'")

from tailwatch.demo import client, traffic
from tailwatch.demo.pipe import Child, ChildError
from tailwatch.loadtest.engine import Job

SERVER = """
import os, socket, time
from tailwatch.demo.pipe import ParentPipe
def main():
    parent = ParentPipe()
    listening = socket.create_server(("127.0.0.1", 0))
    while (line := parent.receive()) is not None:
        parent.send({"port": listening.getsockname()[1]})
        if "seconds" in line:
            time.sleep(line["seconds"])
            os._exit(3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server that takes every connection and answers none, and ends after the seconds of its first line."""
    (tmp_path / "silent_server.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return "silent_server"


def test_a_server_that_ends_ends_the_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the schedule does: the error names the server, and its status."""
    monkeypatch.setattr(client, "CHECK", 0.05)
    with Child(module) as server:
        port = server.ask({"seconds": 0.3})["port"]
        began = time.monotonic()
        with pytest.raises(ChildError, match="silent_server process ended with status 3"):
            client.measure(Job(traffic.open_loop(20.0, 30.0, 1), traffic.request), server, port)

    assert time.monotonic() - began < 15.0


def test_a_server_that_answers_nothing_leaves_no_stamps(module: str) -> None:
    """Every request is still sent, at its time, and is unfinished."""
    schedule = traffic.open_loop(100.0, 0.2, 1)
    with Child(module) as server:
        port = server.ask({})["port"]
        before = time.monotonic_ns()
        found = client.measure(Job(schedule, traffic.request, drain=0.3), server, port)

    assert found.result.outcomes.by_reason["abandoned"] == len(schedule) > 5
    assert found.stamps == [b""] * len(schedule)
    assert before < found.start_ns < time.monotonic_ns()
