"""examples/traces: the scripts run as in their first lines, with a tool and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .conftest import ROOT

TRACES = ROOT / "examples" / "traces"


def run(script: str, *arguments: str, cwd: Path) -> str:
    """It ends well, and warns about nothing."""
    command = [sys.executable, "-W", "error", str(TRACES / script), *arguments]
    env = {**os.environ, "TAILWATCH_QUIET": "1"}  # without the line that a start logs
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_loop_for_nsight_systems_runs_without_it(tmp_path: Path) -> None:
    """And reports that no tool is attached."""
    assert "no NVTX tool is attached" in run("nsys.py", cwd=tmp_path)


def test_the_loop_for_nsight_systems_marks_its_steps(watched) -> None:
    """Sixty steps, its prefill, a token each, and its three collections."""
    story = watched((TRACES / "nsys.py").read_text())

    assert len(story.started("decode")) == 60
    assert [r.begin.payload for r in story.started("prefill")] == [4]
    assert len(story("mark", "first token") + story("mark", "token")) == 60
    assert len(story.pushed("gc2")) >= 3


def test_a_profile_after_the_measured_run(tmp_path: Path) -> None:
    """It measures, profiles five requests more, and leaves a manifest."""
    printed = run("torch_profile.py", "out", cwd=tmp_path)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())

    assert "measured before: " in printed
    assert manifest["complete"]
    assert "tailwatch.pftrace" in manifest["files"]
