"""LitServe under `tailwatch run`: its inference worker is another process than the one that streams."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("litserve") is None, reason="litserve is not installed: pip install litserve"
)

DEADLINE_SECONDS = 60
APP = """
import gc, sys, time
import litserve

class Echo(litserve.LitAPI):
    def setup(self, device):
        self.heap = [[i] for i in range(400_000)]

    def predict(self, request):
        for word in request.messages[-1].content.split():
            if word == "collect":
                gc.collect()
            time.sleep(0.005)
            yield word + " "

if __name__ == "__main__":
    server = litserve.LitServer(Echo(spec=litserve.OpenAISpec()), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
"""


class Server:
    """The app above, on a port that a socket of ours holds: bound, and not listening, it keeps others off it."""

    def __init__(self, directory: Path, port: int) -> None:
        (directory / "app.py").write_text(APP)
        self.directory, self.address = directory / "group", f"http://127.0.0.1:{port}"
        self._log = directory / "log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILWATCH")}
        command = [sys.executable, "-m", "tailwatch", "run", f"--dir={self.directory}", "--gc=observe", "--slow-ms=20"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--", sys.executable, "app.py", str(port)],
                **{"cwd": directory, "env": kept, "stdout": log, "stderr": log, "start_new_session": True},
            )

    @property
    def log(self) -> str:
        """What it and its processes said."""
        return self._log.read_text()

    @property
    def metrics(self) -> dict[str, float]:
        """Samples by name and labels; nothing while it does not serve."""
        assert self._process.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"{self.address}/metrics", timeout=30) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def stop(self) -> None:
        """Ctrl-C, and what that leaves."""
        self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_SECONDS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """It, with its worker in the group."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        started = Server(tmp_path, held.getsockname()[1])
        try:
            until(lambda: {process(name) for name in started.metrics} >= {"api-0", "engine-0"})
            yield started
        finally:
            started.stop()


def process(sample: str) -> str:
    """Whose it is; "" for those of the group."""
    found = re.search(r'process="([^"]+)"', sample)
    return found[1] if found else ""


def until(condition: Callable[[], object]) -> None:
    """Waits for something that must come."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def stream(server: Server, prompt: str) -> str:
    """What OpenAI's client puts together."""
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="-", max_retries=0) as client:
        message = {"role": "user", "content": prompt}
        chunks = client.chat.completions.create(model="echo", messages=[message], stream=True)  # type: ignore[list-item,call-overload]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_a_pause_of_the_inference_worker_is_in_the_stream_s_numbers(server: Server) -> None:
    """A collection in predict(), in the middle of a stream: /metrics and doctor say generation 2, in the engine; a
    stream without one is charged nothing by it."""
    overlap = 'tailwatch_stream_overlap_seconds_total{cause="gc2",source="%s",phase="itl"}'
    late = overlap.replace("overlap", "late")
    pauses = 'python_gc_duration_seconds_sum{generation="2",process="engine-0"}'
    assert stream(server, "w " * 40) == "w " * 40
    before = server.metrics
    assert before.get(overlap % "engine", 0.0) == 0.0

    prompt = "w " * 40 + "collect " + "w " * 20
    assert stream(server, prompt) == prompt
    until(lambda: server.metrics.get(late % "engine", 0.0) > 0)
    after = server.metrics
    length = after[pauses] - before[pauses]
    assert 0.5 * length <= after[late % "engine"] <= after[overlap % "engine"] <= length * 1.001
    assert after.get(overlap % "api", 0.0) == 0.0

    command = [sys.executable, "-m", "tailwatch", "doctor", "--dir", str(server.directory), "--slow"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS).stdout
    assert re.search(r"generation 2, .*engine process", said.splitlines()[0]), said
    assert re.search(r"in engine: [0-9.]+ m?s .*generation 2", said), said
    assert "this process alone" not in server.log
