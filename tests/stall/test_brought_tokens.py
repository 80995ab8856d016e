"""Tokens of another process that a thread brings to the loop, or that the loop reads: which pauses of the own process
delay them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..support.process import clean_environment

SCRIPT = Path(__file__).with_name("brings_tokens.py")
PAUSE_MS = 200
HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
LOOPS = ["asyncio", pytest.param("uvloop", marks=pytest.mark.skipif(not HAS_UVLOOP, reason="pip install uvloop"))]


def charged(directory: Path, loop: str, way: str, later: int) -> dict[str, Any]:
    """Seconds of the pause that the stream was charged."""
    command = [sys.executable, str(SCRIPT), str(directory), loop, way, str(PAUSE_MS), str(later)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not any(found["errors"].values())
    assert found["overlap"] >= PAUSE_MS / 1e3
    return found


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", ["thread", "loop"])
def test_a_pause_of_the_own_process_delays_what_comes_meanwhile(loop: str, way: str, tmp_path: Path) -> None:
    """The loop slept until a thread called it, which had to wait for the pause's end; or was woken in the pause."""
    assert charged(tmp_path / "group", loop, way, later=0)["delay"] > 0.5 * PAUSE_MS / 1e3


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", ["thread", "loop"])
def test_a_pause_before_the_token_is_ready_delays_nothing(loop: str, way: str, tmp_path: Path) -> None:
    """The loop slept on after the pause; a thread that had the token would have called it by then."""
    found = charged(tmp_path / "group", loop, way, later=100)
    assert found["delay"] < 0.25 * PAUSE_MS / 1e3
