"""The shell commands of the README and the guides run, against a server that streams, in a group of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailwatch.group import temp_dirs

from ..support.process import Serving, clean_environment
from ..support.waiting import until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8000")
GROUP = re.compile(r"/dev/shm/(?:mine|ray-tailwatch)")

# What no test runs here, and why.
NOT_RUN = {
    r"vllm serve|sglang\.launch_server|transformers serve": "another server: tests/servers runs them",
    r"engine_only\.py": "needs vLLM and a model: tests/project/test_examples.py",
    r"bentoml|serve run|:3000|/tailwatch/metrics": "another server, run by hand for its page",
    r"python server\.py$": "LitServe's start: tests/servers runs it; the profilers of docs/nsight.md need a GPU",
    r"pip install": "installs: the steps of .ci/run do",
    r"^(docker|kubectl) ": "no container runtime and no cluster: test_kubernetes.py has what runs without",
    r"^nsys |^tailwatch nsys ": "Nsight Systems is not here: tests/nvtx reads a report that it has made",
    r"--merge torch_trace": "a trace of torch: tests/tracing/test_merge.py",
    r"[\[|]-|\[URL|URL|FILE|freeze\|collect": "the form of a command: test_readme.py checks its flags",
    r"gunicorn": "tests/group/test_server_workers.py starts it",
}
STARTS = re.compile(r"uvicorn app:app")  # goes on until it is stopped


def commands() -> list[str]:
    """Of all guides, each once, as they are written."""
    found: dict[str, None] = {}
    for guide in GUIDES:
        for block in re.findall(r"^```sh\n(.*?)^```$", guide.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.sub(r"(^|\s+)#.*", "", line).replace("~/tailwatch/bin/", "").strip()
                found |= {re.sub(r"\s+", " ", command): None} if command else {}
    return list(found)


RUN = [command for command in commands() if not any(re.search(pattern, command) for pattern in NOT_RUN)]


def test_nothing_is_left_out_in_vain() -> None:
    """Each reason still has a command, and most of the others are those that look at a server."""
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, each) for each in commands())] == []
    assert len(RUN) > 20


@dataclass
class Place:
    """Where commands run: a folder as the repository's root, a server, its group."""

    folder: Path
    port: int
    group: Path
    environment: dict[str, str]

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """The command with this server's address and group, shortened where it would go on; to its end."""
        here = GROUP.sub(str(self.group), ADDRESS.sub(f"127.0.0.1:{self.port}", command))
        here = re.sub(r"--duration \d+", "--duration 1", here).replace("tailwatch top", "tailwatch top --once")
        bash = ["bash", "-o", "pipefail", "-c", here]
        return subprocess.run(
            bash, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=50, check=False
        )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The example server under `tailwatch run`; it has answered a request."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("benchmarks", "examples"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "examples" / "fastapi_server.py", folder / "app.py")
    group = Path(temp_dirs.IN_MEMORY) / f"{temp_dirs.PREFIX}{os.urandom(4).hex()}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    server = (sys.executable, "-m", "tailwatch", "run", f"--dir={group}", "--trace-events=4096", "--")
    try:
        with Serving(
            *server, sys.executable, ROOT / "examples" / "fastapi_server.py", "0",
            log=folder / "log", env=clean_environment(PATH=path), cwd=folder,
        ) as serving:  # fmt: skip
            asked = urllib.request.Request(f"http://127.0.0.1:{serving.port}/v1/completions", method="POST")
            with urllib.request.urlopen(asked, timeout=30) as answer:
                answer.read()
            yield Place(
                folder, serving.port, group, clean_environment(PATH=path, TAILWATCH_DIR=str(group), COLUMNS="200")
            )
            serving.stop()
    finally:
        temp_dirs.discard(str(group))


def get(address: str) -> bytes | None:
    """What it answers; None while nothing listens."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return bytes(answer.read())
    except urllib.error.URLError:
        return None


@pytest.mark.parametrize("command", [command for command in RUN if not STARTS.search(command)])
def test_it_runs(place: Place, command: str) -> None:
    """It ends with 0, or with 1 for a finding or a bound that was missed, and prints something."""
    if command.startswith("promtool") and not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    done = place.shell(command)
    finds = re.search(r"tailwatch (doctor|why|bench)\b", command) is not None
    assert done.returncode in ((0, 1) if finds else (0,)), done.stdout + done.stderr
    assert (done.stdout or done.stderr).strip() and "Traceback" not in done.stderr


def test_the_files_of_the_group_stand_in_the_reference(place: Place) -> None:
    """Each has a row."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").partition("## Files")[2]
    rows = [re.sub("[A-Z]+", r"[\\w]+", row) for row in re.findall(r"^\| `([^`]+)` \| `", text, re.MULTILINE)]
    found = os.listdir(place.group)

    assert len(found) > 1
    assert [name for name in found if not any(re.fullmatch(row, name) for row in rows)] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in RUN if STARTS.search(command)])
def test_it_starts(place: Place, command: str, tmp_path: Path) -> None:
    """A server that listens, is watched, and ends when it is asked to."""
    start = ("bash", "-c", f"{command.replace('tailwatch run', 'exec tailwatch run')} --port 0")
    environment = {name: value for name, value in place.environment.items() if name != "TAILWATCH_DIR"}
    with Serving(*start, log=tmp_path / "log", env=environment, cwd=place.folder) as serving:
        metrics = until(lambda: get(f"http://127.0.0.1:{serving.port}/metrics"), "a worker listens")
        assert b"tailwatch_build_info" in metrics
        serving.stop(signal.SIGINT)
