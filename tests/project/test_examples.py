"""The examples run as in their first lines."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from ..support.process import Process, Serving, clean_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = {"fastapi_server.py", "fast_sse.py", "three_process.py"}
ENGINES = {"engine_only.py"}
MODEL = os.environ.get("TAILWATCH_TEST_MODEL", "")  # of tests/servers/make_model.py
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in SERVERS | ENGINES)
SLOW = {
    name: pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(240)]) for name in ("router.py", "otel.py")
}

# router.py with a tenth of its times, smaller servers and fewer requests.
ROUTER = """
import router
router.SLOTS, router.REQUESTS, router.__file__ = (1, 2), 20, __file__
router.STREAM_SECONDS, router.LEARN_SECONDS = 0.03, 0.1
router.main()
"""


def output_of(script: Path, cwd: Path) -> str:
    """What it prints; it ends well and warns about nothing."""
    env = clean_environment(TAILWATCH_QUIET="1")
    with Process(sys.executable, "-W", "error", script, cwd=cwd, env=env, stderr=subprocess.PIPE) as process:
        out, errors = process.finish(seconds=200)
        assert (process.popen.returncode, errors) == (0, "")
    return out


@pytest.mark.parametrize("name", [SLOW.get(name, name) for name in SCRIPTS if name != "by_hand.py"])
def test_a_script_runs(name: str, tmp_path: Path) -> None:
    """It ends well, and prints something."""
    assert output_of(EXAMPLES / name, tmp_path).strip()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the example drives vLLM: pip install vllm")
@pytest.mark.skipif(not MODEL, reason="set TAILWATCH_TEST_MODEL to a directory made by tests/servers/make_model.py")
def test_an_engine_without_its_server(tmp_path: Path) -> None:
    """Its tokens are stamped in the engine, and the long prompt is among the causes of the late ones."""
    tailwatch = [sys.executable, "-m", "tailwatch"]
    run = [*tailwatch, "run", f"--dir={tmp_path}", "--", sys.executable, str(EXAMPLES / "engine_only.py"), MODEL]
    done = subprocess.run(run, capture_output=True, text=True, env=os.environ.copy(), cwd=tmp_path, timeout=200)
    assert done.returncode == 0 and "received 800 tokens" in done.stdout, done.stderr
    why = subprocess.run([*tailwatch, "why", "--dir", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert "1 000 tokens in this step" in why.stdout, why.stdout


@pytest.mark.slow
def test_the_router_learns_and_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a server, then a line a rule."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    (tmp_path / "short.py").write_text(ROUTER)
    lines = output_of(tmp_path / "short.py", tmp_path).splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == ["1", "2", "by_running", "by_ratio"]


def test_the_stream_by_hand_shows_its_numbers(tmp_path: Path) -> None:
    """by_hand.py counts its six requests and every token, and finds the collections."""
    lines = output_of(EXAMPLES / "by_hand.py", tmp_path).splitlines()
    numbers = {line.split()[0]: list(map(float, re.findall(r" (\d[\d.]*)", line))) for line in lines}
    good, missed, tokens = numbers["requests:"]
    assert (good + missed, tokens) == (6, 240)
    assert numbers["gc2" if "gc2" in numbers else "gc_full"][0] > 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """server(name): the address of an example that serves until the test ends."""
    with contextlib.ExitStack() as stack:

        def start(name: str) -> str:
            command = (sys.executable, EXAMPLES / name, "0")
            serving = stack.enter_context(Serving(*command, log=tmp_path / "log", cwd=tmp_path))
            stack.callback(serving.stop, signal.SIGINT)
            return f"http://127.0.0.1:{serving.port}"

        yield start


def metrics_of(address: str) -> str:
    """What /metrics answers."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        return answer.read().decode()


def test_the_server_streams_and_serves_its_metrics(server: Callable[[str], str]) -> None:
    """A request streams its tokens, and /metrics counts them under their model and route."""
    address = server("fastapi_server.py")
    request = urllib.request.Request(f"{address}/v1/completions?prompt=c%20b%20a", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        events = answer.read().decode().strip().split("\n\n")
    assert [re.search(r'"text": "(\w) "', event)[1] for event in events[:-1]] == ["a", "b", "c"]
    assert events[-1] == "data: [DONE]"
    assert 'tailwatch_output_tokens_total{model_name="toy",route="/v1/completions"} 3' in metrics_of(address)


def test_the_fast_server_answers_the_openai_sdk(server: Callable[[str], str]) -> None:
    """fast_sse.py streams a chat that the SDK reads, whatever is in it, and /metrics has counted its tokens."""
    address = server("fast_sse.py")
    words = ['"quoted"', "语言", "</script>", "back\\slash", "\N{SLICE OF PIZZA}"]
    asked = [{"role": "user", "content": " ".join(words)}]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        chunks = list(create(model="toy", messages=asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]).split() == words[::-1]
    assert (chunks[-2].choices[0].finish_reason, chunks[-1].usage.completion_tokens) == ("stop", 5)
    assert 'tailwatch_output_tokens_total{model_name="toy",route="/v1/chat/completions"} 5' in metrics_of(address)
