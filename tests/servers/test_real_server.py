"""A real server of several processes, under ``tailwatch run``: tests/servers/prove.py with the one that is cheap."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.ports import free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("litserve") is None, reason="litserve is not installed: pip install litserve"
    ),
]

PROVE = Path(__file__).parents[1] / "servers" / "prove.py"


@pytest.mark.slow  # 40 s: four processes, each with a round of streams of its own
@pytest.mark.timeout(300)
def test_each_process_of_litserve_is_charged_what_it_cost(tmp_path: Path) -> None:
    """A collection of many objects in its API, engine, manager and main process in turn: what is reported is what
    independent logs have, token for token; what delays no stream is charged to none."""
    file = tmp_path / "servers.json"
    command = [sys.executable, str(PROVE), "litserve", "--venv", sys.prefix, "--port", str(free_port())]
    command += ["--objects", "2500000"]  # each pause is to exceed what prove.py takes for a slow gap, on any machine
    done = subprocess.run(
        [*command, "--log", str(tmp_path / "log"), "--json", str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())["servers"]["litserve"]
    assert sorted(each["process"] for each in found["planted"]) == ["api-0", "engine-0", "main-0", "manager-0"]
    assert found["failed"] == []
    engine = next(each for each in found["planted"] if each["process"] == "engine-0")
    assert engine["delay reported ms"] >= 0.5 * engine["late by our stamps ms"]
