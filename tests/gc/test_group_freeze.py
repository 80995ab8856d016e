"""The first freeze of a group's processes is over before its server is ready, and what it costs is named."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..support.process import Python, Serving
from ..support.waiting import until

pytestmark = pytest.mark.integration

# A heap whose freeze takes long beside a request.
ENGINE = """
import json, sys
import tailwatch
heap = [[[i], {"i": i}] for i in range(400_000)]
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc=sys.argv[3])
watch.start_daemon()
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    done = watch.gc.state.done
    print(json.dumps({"reasons": [each.reason for each in done], "seconds": [each.seconds for each in done],
        "load": watch.membership.load()}), flush=True)
"""

APP = """
import sys
import uvicorn
import tailwatch

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    frame = b'data: {"model":"m","choices":[{"index":0,"text":"x"}]}\\n\\n'
    await send({"type": "http.response.body", "body": frame})

watch = tailwatch.install(app, dir=sys.argv[1], gc="freeze")
uvicorn.run(watch.app, port=0, log_level="info")
"""


@contextmanager
def engine(directory: Path, role: str = "engine", policy: str = "freeze") -> Iterator[Python]:
    """A process of the group without an app."""
    with Python(ENGINE, directory, role, policy) as process:
        assert process.read() is True
        yield process


@contextmanager
def server(directory: Path, tmp_path: Path) -> Iterator[Serving]:
    """An app under uvicorn."""
    (tmp_path / "app.py").write_text(APP)
    with Serving(sys.executable, tmp_path / "app.py", directory, log=tmp_path / "log") as serving:
        yield serving


def ask(port: int) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


def look(process: Python) -> dict[str, Any]:
    return dict(process.ask("look"))


def test_an_engine_freezes_before_the_server_is_ready(tmp_path: Path) -> None:
    """Once, at start-up; requests sent at once when the server listens meet no freeze of either process."""
    with engine(tmp_path / "group") as process:
        assert look(process)["reasons"] == []
        with server(tmp_path / "group", tmp_path) as serving:
            port = serving.port
            ready = look(process)
            assert ready["reasons"] == ["start-up"], "ready before it was frozen"
            for _ in range(8):
                assert b"data" in ask(port)
            until(lambda: look(process)["load"][1] == 8)
            assert look(process)["reasons"] == ["start-up"]


@pytest.mark.parametrize("role, policy", [("engine", "observe"), ("main", "freeze")])
def test_a_process_that_does_not_freeze_delays_no_start(tmp_path: Path, role: str, policy: str) -> None:
    """Nor one that no token passes through."""
    with engine(tmp_path / "group", role, policy) as process, server(tmp_path / "group", tmp_path) as serving:
        assert b"data" in ask(serving.port)
        assert look(process)["reasons"] == []


STREAMING = """
import sys
import tailwatch
tailwatch.install(role="api", dir=sys.argv[1], gc="observe")
with tailwatch.stream(model="m") as stream:
    stream.token()
    print("1", flush=True)
    sys.stdin.read()
"""


def test_a_stream_of_another_process_holds_the_freeze_off(tmp_path: Path) -> None:
    """A server that starts beside one that serves: the engine does not stop the stream in flight."""
    with engine(tmp_path / "group") as process, Python(STREAMING, tmp_path / "group") as streaming:
        assert streaming.read() == 1
        until(lambda: look(process)["load"] == [1, 1])
        with server(tmp_path / "group", tmp_path) as serving:
            assert b"data" in ask(serving.port)
            assert look(process)["reasons"] == []
            streaming.finish()
            until(lambda: look(process)["reasons"] == ["first idle moment"])


def test_the_doctor_names_a_freeze_beside_a_wait(tmp_path: Path) -> None:
    """An upper bound, by the process that stood still."""
    program = """
import json, sys
import tailwatch
heap = [[[i], {"i": i}] for i in range(400_000)]
watch = tailwatch.install(role="api", dir=sys.argv[1], gc="freeze")
with tailwatch.stream(model="m") as stream:
    done = tailwatch.freeze()
    stream.token()
found = {each.rule: each.detail for each in tailwatch.doctor()}
print(json.dumps([done.seconds, found.get("policy-pauses", "")]))
"""
    with Python(program, tmp_path / "group") as process:
        seconds, detail = json.loads(process.read_line())
    assert seconds > 0.05
    assert "Waits for first tokens coincided with" in detail and "in api" in detail
