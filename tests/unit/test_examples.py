"""The examples run as their first lines say."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = {"fastapi_server.py"}
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in SERVERS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    """It ends well, says something and warns about nothing."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_the_stream_by_hand_shows_its_numbers(tmp_path: Path) -> None:
    """by_hand.py counts its six requests and every token, and finds the collections."""
    command = [sys.executable, str(EXAMPLES / "by_hand.py")]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True).stdout
    good, missed = map(int, re.search(r"requests: (\d+) good, (\d+) missed; 240 tokens", text).groups())
    assert good + missed == 6
    assert re.search(r"gc(2|_full) paused [0-9.]+ ms and cost streams up to [0-9.]+ ms", text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """fastapi_server.py on a port of the system's choice; its address."""
    command = [sys.executable, str(EXAMPLES / "fastapi_server.py"), "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr
    guard = threading.Timer(60, process.kill)
    guard.start()
    address = None
    for line in process.stderr:
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
            address = found[1]
            break
    guard.cancel()
    assert address, "the server ended before it served"
    drain = threading.Thread(target=process.stderr.read)
    drain.start()
    yield address
    process.send_signal(signal.SIGINT)
    process.wait(30)
    drain.join()
    process.stderr.close()


def test_the_server_streams_and_serves_its_metrics(server: str) -> None:
    """A request streams its tokens, and /metrics counts them under their model and route."""
    request = urllib.request.Request(f"{server}/v1/completions?prompt=c%20b%20a", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        events = answer.read().decode().strip().split("\n\n")
    assert [re.search(r'"text": "(\w) "', event)[1] for event in events[:-1]] == ["a", "b", "c"]
    assert events[-1] == "data: [DONE]"
    with urllib.request.urlopen(f"{server}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    assert 'tailwatch_output_tokens_total{model_name="toy",route="/v1/completions"} 3' in metrics
