"""The demo as a user runs it: real processes, real sockets, a short window; by default with a smaller heap."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.process import Python, Tailwatch
from ..support.waiting import DEADLINE_SECONDS, until

pytest.importorskip("fastapi", reason="the demo's server needs it: pip install '.[demo]'")
pytest.importorskip("httptools", reason="the demo's client needs it: pip install '.[demo]'")
pytest.importorskip("numpy")
pytest.importorskip("rich")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]  # three servers, one after the other

# Objects on the heap, requests of the warm-up (32 end it), tokens of the longest answer.
SMALL, WHOLE = (150_000, 32, 40), (720_000, 64, 128)
SHORT, LONG = ("--rate", "50", "--duration", "0.8"), ("--rate", "20", "--duration", "4")
# `tailwatch demo` of such a size
DEMO = """
import sys
from tailwatch import cli
from tailwatch.demo import measurement, settings, traffic
measurement.measure.__defaults__ = (int(sys.argv.pop(1)),)
settings.WARM_UP_REQUESTS = settings.WARM_UP_CONCURRENCY = int(sys.argv.pop(1))
traffic.MOST_TOKENS = int(sys.argv.pop(1))
sys.exit(cli.main())
"""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((SMALL, SHORT), marks=pytest.mark.alone),  # its arms are compared with each other
        pytest.param((WHOLE, LONG), marks=[pytest.mark.slow, pytest.mark.alone]),
    ],
)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """One short run of `tailwatch demo`, and the file it wrote."""
    file = tmp_path_factory.mktemp("demo") / "report.json"
    size, load = request.param
    command = [sys.executable, "-c", DEMO, *map(str, size), "demo", *load, "--seed", "3", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    return done, json.loads(file.read_text())


def test_all_arms_answer_every_request_of_the_same_plan(run: Any) -> None:
    """The plan's requests, no errors, none unfinished; every token asked for arrives."""
    _, report = run
    for arm in ("observe", "freeze", "idle"):
        client = report["arms"][arm]["client"]
        assert client["planned"] == client["finished"] == report["schedule"]["requests"] > 0
        assert (client["unfinished"], client["errors"]) == (0, {})
        tokens = report["schedule"]["requests"] * report["schedule"]["mean_tokens"]
        assert client["itl"]["count"] + client["ttft"]["count"] == pytest.approx(tokens)


def test_the_server_counts_what_the_client_counts(run: Any) -> None:
    """tailwatch's own numbers, from inside, are of the same requests and tokens."""
    _, report = run
    for arm in report["arms"].values():
        inside = arm["server"]["tailwatch"]["snapshot"]
        assert sum(inside["outcomes"].values()) == arm["client"]["planned"]
        assert inside["itl"]["count"] == arm["client"]["itl"]["count"]
        assert inside["tokens"] == arm["client"]["itl"]["count"] + arm["client"]["ttft"]["count"]


def test_its_timeline_is_of_the_same_gaps_and_pauses(run: Any) -> None:
    """All gaps are counted; the longest is there if it is a slow one, and so is the longest pause."""
    _, report = run
    for arm in report["arms"].values():
        timeline, numbers = arm["timeline"], arm["server"]["tailwatch"]
        assert timeline["slow"] + timeline["others"] == arm["client"]["itl"]["count"]
        if timeline["slow"]:
            assert max(timeline["gaps"]) == pytest.approx(arm["client"]["itl"]["max"], abs=1e-5)
        assert all(pause["seconds"] >= 0.001 for pause in timeline["pauses"])
        longest = max(numbers["longest"].values(), default=0.0)
        if longest > 0.002:
            # A pause after the snapshot and before the end of the records is in the timeline only.
            assert pytest.approx(longest, rel=0.05) in [pause["seconds"] for pause in timeline["pauses"]]


def test_the_heap_is_the_same_in_all_arms(request: pytest.FixtureRequest, run: Any) -> None:
    """As measured before traffic."""
    _, report = run
    (asked, *_), _ = request.node.callspec.params["run"]
    for arm in report["arms"].values():
        assert arm["server"]["objects"] == pytest.approx(asked, abs=30_000)  # and what an interpreter has


def test_the_policy_did_its_work_before_the_window(run: Any) -> None:
    """No freeze falls into the measured window of any arm; with idle, slices do, and each is a pause."""
    _, report = run
    numbers = {name: arm["server"]["tailwatch"] for name, arm in report["arms"].items()}
    assert numbers["observe"]["paused"].get("gc_own", 0) == numbers["freeze"]["paused"].get("gc_own", 0) == 0
    swept = numbers["idle"]["snapshot"]["gc"]["cpu"]["gc_own"]  # not its length: others have the processor too
    frozen_once = numbers["observe"]["longest"].get("2") or 0.1  # a pass over this heap, and a freeze makes two
    assert 0 < swept < 2 * max(frozen_once, 0.1) + 0.1 * report["schedule"]["seconds"]


def test_the_output_is_complete(run: Any) -> None:
    """The table, the sentences and the next commands, within a hundred columns."""
    done, report = run
    assert max(map(len, done.stdout.splitlines())) <= 100
    for words in (
        "GC left alone",
        "freeze",
        "idle",
        "collections 0/1/2",
        report["schedule"]["hash"],
        "tailwatch demo --serve",
    ):
        assert words in done.stdout


def test_its_file_is_one_that_doctor_reads(run: Any, tmp_path: Path) -> None:
    """`tailwatch doctor FILE` diagnoses the arm that was left alone."""
    file = tmp_path / "report.json"
    file.write_text(json.dumps(run[1]))

    with Tailwatch("doctor", file, cwd=tmp_path) as doctor:
        out, _ = doctor.finish()

    assert doctor.popen.returncode in (0, 1)
    assert "ITL" in out


@contextlib.contextmanager
def served(cwd: Path) -> Iterator[tuple[Tailwatch, list[str], str]]:
    """`tailwatch demo --serve`, what it wrote first, and its address."""
    with Tailwatch("demo", "--serve", cwd=cwd) as process:
        lines = [process.read_line() for _ in range(3)]
        yield process, lines, lines[1].partition("metrics: ")[2].strip().removesuffix("/metrics")


def answer(address: str, path: str, body: dict[str, Any] | None = None) -> str:
    """One request over a fresh connection; waits for a server that is just starting."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return str(response.read().decode())


def test_serve_answers_until_ctrl_c(tmp_path: Path) -> None:
    """The heap of a real server, 640-800 thousand objects; completions, chat, streamed and whole, the metrics address
    it printed, and an orderly end."""
    with served(tmp_path) as (process, lines, address):
        assert 640_000 <= int(lines[0].split()[0].replace(",", "")) <= 800_000
        text = json.loads(answer(address, "/v1/completions", {"prompt": "the tail", "max_tokens": 5}))
        chat = {"messages": [{"role": "user", "content": "why"}], "max_tokens": 4, "stream": True}
        frames = answer(address, "/v1/chat/completions", chat).split("\n\n")
        metrics = answer(address, "/metrics")
        process.signal(signal.SIGINT)
        status = process.popen.wait(DEADLINE_SECONDS)

    assert text["usage"]["completion_tokens"] == 5 and text["choices"][0]["text"]
    assert '"role":"assistant"' in frames[0] and frames[5:] == ["data: [DONE]", ""]
    assert "tailwatch_output_tokens_total" in metrics
    assert status == 130


def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    """Interrupted in the middle of starting: status 130, one sentence, and every child is gone."""
    arguments = (*SMALL, "demo", "--rate", "10")
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with Python(DEMO, *arguments, **pipes, cwd=tmp_path) as process:
        assert process.popen.stderr is not None
        first = process.popen.stderr.readline()
        children = until(lambda: _children(process.pid), "the demo starts a server")
        process.signal(signal.SIGINT)
        _, rest = process.finish()

    assert "starting a server" in first and "interrupted" in rest
    assert process.popen.returncode == 130
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def _children(pid: int) -> list[int]:
    """Processes whose parent this is."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]
