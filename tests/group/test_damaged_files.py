"""Files of a living group are truncated, overwritten or removed: no process ends, and no scrape fails."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tailwatch import snapshots
from tailwatch.errors import TailwatchError
from tailwatch.tracing import ring_files

from ..support.process import Python, Serving, clean_environment
from ..support.waiting import until

pytestmark = pytest.mark.integration

API = """
import tailwatch

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    token = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\\n\\n'
    await send({"type": "http.response.body", "body": token, "more_body": True})
    await send({"type": "http.response.body", "body": b""})

app = tailwatch.install(app, gc="observe").app
"""
ENGINE = """
import gc, json, sys
import tailwatch
watch = tailwatch.install(role=sys.argv[2], dir=sys.argv[1], gc="observe", trace_events=1000)
print(json.dumps(watch.membership.joined), flush=True)
for line in sys.stdin:
    with tailwatch.stream(model="m") as stream:
        stream.token()
    gc.collect()
    print(json.dumps(tailwatch.snapshot().opened), flush=True)
"""
DOCTOR = """
import contextlib, io, json, sys
from tailwatch.cli import main
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            main(["doctor", "--dir", sys.argv[1]])
    print(json.dumps(True), flush=True)
"""


def truncated(path: Path) -> None:
    os.truncate(path, 0)


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(max(path.stat().st_size, 4096)))


def stretched(path: Path) -> None:
    os.truncate(path, 1 << 40)


def removed(path: Path) -> None:
    path.unlink(missing_ok=True)


def opened(text: str) -> int:
    return sum(map(int, re.findall(r"^tailwatch_requests_total\{[^}]*\} (\d+)$", text, re.MULTILINE)))


SLOW = [pytest.param(damage, marks=pytest.mark.slow) for damage in (halved, stretched, removed)]


@pytest.mark.parametrize("damage", [truncated, overwritten, *SLOW])
def test_no_file_of_a_living_group_can_kill(tmp_path: Path, directory: Path, damage: Callable[[Path], None]) -> None:
    """Each file in the directory, of the living, a killed one and a retired one, while all of them are used."""
    (tmp_path / "api.py").write_text(API)
    command = (sys.executable, "-m", "uvicorn", "api:app", "--port", "0", "--lifespan", "off")
    environment = clean_environment(TAILWATCH_DIR=str(directory), TAILWATCH_TRACE_EVENTS="1000")
    with (
        Serving(*command, log=tmp_path / "log", cwd=tmp_path, env=environment) as server,
        Python(ENGINE, directory, "engine") as engine,
        Python(DOCTOR, directory) as doctor,
    ):
        assert engine.read() is True

        def get(path: str, body: bytes | None = None) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", body, timeout=30) as response:
                assert response.status == 200
                return str(response.read().decode())

        for _ in range(2):  # the first is merged when the second is killed
            with Python(ENGINE, directory, "worker") as worker:
                assert worker.read() is True
                worker.ask("work")
                worker.popen.send_signal(signal.SIGKILL)
                worker.popen.wait()
            if not list(directory.glob("*.gone")):
                until(lambda: list(directory.glob("*.gone")), "the killed one is merged")
        traces = ring_files.files_of(str(directory))
        assert len(traces) == 4 and any(file.over and file.bytes == os.stat(file.path).st_size for file in traces)
        known = opened(get("/metrics"))
        assert known >= 2
        files = sorted(path for path in directory.iterdir() if path.is_file())
        assert {path.suffix for path in files} >= {".seg", ".gone", ".trace"}
        sent = 0
        for path in files:
            with suppress(FileNotFoundError):  # merged meanwhile
                damage(path)
            get("/v1/completions", b"{}")
            engine.ask("work")
            sent += 2
            assert opened(get("/metrics")) > 0
            with suppress(TailwatchError):  # each of the traces is damaged by now
                ring_files.write_group(str(directory), str(tmp_path / "timeline"))
            doctor.ask("look")
        assert server.running and engine.running and doctor.running

        # Those that live mend their files: a process that comes now finds all that they counted.
        def mended() -> bool:
            with suppress(TailwatchError):  # none of the files can be read yet
                return snapshots.take_directory(str(directory)).opened >= sent
            return False

        until(mended, "the files are mended")
        assert snapshots.take_directory(str(directory)).opened <= known + sent
        assert opened(get("/metrics")) >= sent
