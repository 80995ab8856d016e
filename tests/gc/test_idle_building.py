"""What other threads are in the midst of building has no reference but theirs: CPython raises SystemError otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("builds_beside_freezes.py")


def found_beside(policy: str, turns: int) -> dict[str, Any]:
    """What the script found in so many freezes and slices."""
    command = [sys.executable, "-X", "faulthandler", str(SCRIPT), policy, str(turns)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(turns: int) -> None:
    """Nothing goes wrong under "idle", as in fewer turns under "freeze", which holds no object."""
    control, idle = found_beside("freeze", min(turns, 3_000)), found_beside("idle", turns)
    assert (control["found"], control["mode"], control["slices"]) == ({}, "", 0)
    assert (idle["found"], idle["mode"]) == ({}, "slices")
    assert idle["slices"] > turns / 2
    assert min(control["made"], idle["made"]) > 0


def test_what_threads_build_beside_freezes_and_slices_is_whole() -> None:
    """Tuples, frozen sets, dicts, generators, frames, of eight threads."""
    check(3_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_threads_build_beside_100_000_freezes_and_slices_is_whole() -> None:
    """The same for minutes."""
    check(100_000)
